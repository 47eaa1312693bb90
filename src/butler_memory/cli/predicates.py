"""predicates list, set: how many values a kind of fact holds, and how long they last (F4)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from butler_memory.cli import screen
from butler_memory.cli.session import Session, run
from butler_memory.domain.kinds import Cardinality, Permanence, Sensitivity

if TYPE_CHECKING:
    from butler_memory.domain.predicates import Predicate

LONGEST_NAME = 200  # as in a fact


def list_(session: Session) -> None:
    """Show every predicate that is known: the built-in ones and this tenant's own."""
    run(_list(session))


async def _list(session: Session) -> None:
    async with session.memory() as (engine, who):
        known = (await engine.memory.predicates(who)).all()
    rows = (
        [
            screen.safe(entry.name),
            Text(f"{entry.cardinality}{' per time' if entry.temporal else ''}"),
            Text(entry.permanence),
            Text(entry.sensitivity),
            screen.safe(", ".join(entry.aliases)),
            Text("" if entry.builtin else "own"),
        ]
        for entry in known
    )
    human = screen.table("Predicate", "Values", "Permanence", "Sensitivity", "Also written", "", rows=rows)
    session.answer({"predicates": [_shape(entry) for entry in known]}, human)


def set_(
    session: Session,
    name: Annotated[str, typer.Argument(metavar="NAME", help="A predicate, or one of its aliases.")],
    cardinality: Annotated[Cardinality | None, typer.Option(help="How many values it holds.")] = None,
    temporal: Annotated[
        bool | None, typer.Option("--temporal/--no-temporal", help="Is a value bound to its time?")
    ] = None,
    permanence: Annotated[Permanence | None, typer.Option(help="How fast a value fades by default.")] = None,
    sensitivity: Annotated[Sensitivity | None, typer.Option(help="How careful to be with it.")] = None,
    alias: Annotated[
        list[str] | None, typer.Option("--alias", metavar="A", help="Another spelling; repeat it for all of them.")
    ] = None,
) -> None:
    """Change what a predicate means; what is not given stays as it is."""
    given = {
        "cardinality": cardinality, "temporal": temporal, "permanence": permanence, "sensitivity": sensitivity,
        "aliases": _names(alias) if alias else None,
    }  # fmt: skip
    changes = {attribute: value for attribute, value in given.items() if value is not None}
    if not changes:
        raise typer.BadParameter("give at least one of --cardinality, --temporal, --permanence, --sensitivity, --alias")
    run(_set(session, _names([name])[0], changes))


def _names(given: list[str]) -> tuple[str, ...]:
    from butler_memory.domain.text import key

    names = tuple(dict.fromkeys(key(name) for name in given))
    if not all(0 < len(name) <= LONGEST_NAME for name in names):
        raise typer.BadParameter(f"a predicate's name has 1 to {LONGEST_NAME} characters")
    return names


async def _set(session: Session, name: str, changes: dict[str, Any]) -> None:
    async with session.memory() as (engine, who):
        current = (await engine.memory.predicates(who)).find(name)
        entry = dataclasses.replace(current, **changes, builtin=False)
        moved = await engine.memory.set_predicate(who, entry)
    line = f"{entry.name}: {entry.cardinality} value{'s' if entry.cardinality is Cardinality.MANY else ''}"
    session.answer(
        {"predicate": _shape(entry), "reslotted": moved}, screen.safe(f"{line}; {moved} live facts were moved.")
    )


def _shape(entry: Predicate) -> dict[str, Any]:
    return dataclasses.asdict(entry)
