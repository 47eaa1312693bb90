"""review list: what waits for a person's word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from butler_memory.cli import screen
from butler_memory.cli.session import Session, run

_NOTHING = "Nothing waits for you."
_WHAT_TO_DO = (
    "Still so? 'butler-memory confirm fact ID', or 'edit' or 'forget' it. Until then it is served as unconfirmed."
)


def list_(session: Session, limit: Annotated[int, typer.Option(min=1, max=1000)] = 50) -> None:
    """Show important facts that nobody has confirmed for long."""
    run(_list(session, limit))


async def _list(session: Session, limit: int) -> None:
    async with session.memory() as (engine, who):
        found = await engine.memory.unconfirmed(who, limit)
    if not found:
        session.answer({"unconfirmed": []}, Text(_NOTHING, style="dim"))
        return
    table = screen.table("ID", "Fact", "Unconfirmed since", "Scope", rows=map(_cells, found))
    session.answer({"unconfirmed": found}, table, Text(_WHAT_TO_DO, style="dim"))


def _cells(fact: Mapping[str, Any]) -> list[Text]:
    return [
        screen.safe(fact["id"]),
        screen.short(fact["line"]),
        screen.moment(fact["last_confirmed_at"]),
        screen.safe(fact["scope"]),
    ]
