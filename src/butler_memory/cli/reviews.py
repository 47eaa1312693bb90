"""review list, accept, reject: what waits for a person's word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.console import RenderableType
from rich.text import Text

from butler_memory.cli import screen
from butler_memory.cli.consolidation import diff_line
from butler_memory.cli.session import Session, run

Json = dict[str, Any]
_NOTHING = "Nothing waits for you."
_UNCONFIRMED = (
    "Still so? 'butler-memory confirm fact ID', or 'edit' or 'forget' it. Until then it is served as unconfirmed."
)
_DECIDE = "'butler-memory review accept ID' lets it happen, 'reject ID' does not."
_LOOK = "'butler-memory review show ID' says what accepting it would do."

Id = Annotated[UUID, typer.Argument(metavar="ID", help="As 'review list' shows it.", show_default=False)]


def list_(session: Session, limit: Annotated[int, typer.Option(min=1, max=1000)] = 50) -> None:
    """Show what waits for your word: faded facts that are important, contested claims, large changes."""
    run(_list(session, limit))


async def _list(session: Session, limit: int) -> None:
    async with session.memory() as (engine, who):
        unconfirmed = await engine.memory.unconfirmed(who, limit)
        reviews = await engine.memory.reviews(who, limit)
    parts: list[RenderableType] = []
    if reviews:
        table = screen.table("ID", "What", "About", "Since", rows=map(_review_cells, reviews))
        parts += [table, Text(f"{_LOOK} {_DECIDE}", style="dim")]
    if unconfirmed:
        table = screen.table("ID", "Fact", "Unconfirmed since", "Scope", rows=map(_cells, unconfirmed))
        parts += [table, Text(_UNCONFIRMED, style="dim")]
    shape = {"reviews": reviews, "unconfirmed": unconfirmed}
    session.answer(shape, *(parts or [Text(_NOTHING, style="dim")]))


def _review_cells(review: Json) -> list[Text]:
    return [screen.safe(review["id"]), Text(review["kind"]), _about(review), screen.moment(review["created_at"])]


def _about(review: Json) -> Text:
    if review["kind"] == "contradiction":
        claim = review["claim"]["line"] if review["claim"] else "(gone)"
        against = "; ".join(fact["line"] for fact in review["against"] if fact)
        return screen.short(f"inferred: {claim}").append("\n").append_text(screen.short(f"you said: {against}"))
    proposal = review["proposal"]
    facts = len(proposal["proposed"].get("updated_facts", [])) + len(proposal["proposed"].get("new_facts", []))
    return screen.safe(f"{facts} facts from {len(proposal['episodes'])} episodes of {proposal['butler']}")


def show(session: Session, id_: Id) -> None:
    """Show what accepting one would do, line by line; nothing is written."""
    run(_show(session, id_))


async def _show(session: Session, review_id: UUID) -> None:
    async with session.memory(embeds=True) as (engine, who):
        review = await engine.memory.review(who, review_id)
    if review["kind"] == "contradiction":
        lines = [_about(review), Text("'butler-memory get fact ID' shows where it comes from.", style="dim")]
    else:
        lines = [_about(review), *map(diff_line, review["items"])]
    session.answer(review, *lines, Text(_DECIDE, style="dim"))


def accept(session: Session, id_: Id) -> None:
    """Let it happen: the claim takes the place of what it contests; the large change is written."""
    run(_decide(session, id_, accept=True))


def reject(session: Session, id_: Id) -> None:
    """Do not: the claim is retracted; the large change is dropped, and its episodes stay for 'episodes requeue'."""
    run(_decide(session, id_, accept=False))


async def _decide(session: Session, review_id: UUID, *, accept: bool) -> None:
    async with session.memory(embeds=accept) as (engine, who):
        decided = await engine.memory.decide_review(who, review_id, accept=accept)
    session.answer(decided, screen.safe(f"review {decided['id']}  {decided['state']}"))


def _cells(fact: Mapping[str, Any]) -> list[Text]:
    return [
        screen.safe(fact["id"]),
        screen.short(fact["line"]),
        screen.moment(fact["last_confirmed_at"]),
        screen.safe(fact["scope"]),
    ]
