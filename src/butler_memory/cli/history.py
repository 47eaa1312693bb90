"""history, activity, replay: what happened, and whether the tables still say the same."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.text import Text

from butler_memory.cli import screen, words
from butler_memory.cli.reading import WHOLE_TENANT, Scope
from butler_memory.cli.session import HOME, Session, run

if TYPE_CHECKING:
    from butler_memory.bootstrap import Engine
    from butler_memory.security.principal import Principal

Json = dict[str, Any]
LOOK_AGAIN_SECONDS = 1.0
EVENTS_BETWEEN_STEPS = 50_000
DIFFERENT = 1


def history(session: Session, type_: words.Type, id_: words.Id) -> None:
    """Tell the whole life of one memory: what happened to it, when, and who did it."""
    run(_history(session, {"type": type_, "id": str(id_)}))


async def _history(session: Session, arguments: Json) -> None:
    async with session.memory() as (engine, who):
        found = await engine.memory.history(who, arguments)
    session.answer(found, *_life(found))


def _life(found: Json) -> Iterable[Text]:
    yield screen.safe(f"{found['type']} {found['id']}", "bold")
    for chapter in found["history"]:
        yield _dated(chapter["occurred_at"], chapter["told"])
    for link in found["links"]:
        arrow = "→" if link["way"] == "out" else "←"
        said = screen.safe(f"{arrow} {link['relation']} {link['type']} {link['id']}", "dim")
        yield said.append("  ").append(screen.short(link["line"])) if link["line"] else said


def _dated(moment: str, told: str) -> Text:
    return screen.safe(f"{moment[:16].replace('T', ' ')}  ", "dim").append(screen.neutral(told), style="not dim")


def activity(
    session: Session,
    since: Annotated[
        str | None, typer.Option(metavar="ID", help="What came after this event. [default: the latest]")
    ] = None,
    scope: Scope = None,
    limit: Annotated[int | None, typer.Option(metavar="N", help="At most 200. [default: 50]")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
) -> None:
    """Show what happened, oldest first; nothing is skipped and nothing comes twice."""
    from butler_memory.domain.requests import StreamActivity, parse

    arguments = {"since": since, "scope": WHOLE_TENANT if scope is None else scope, "limit": limit}
    parse(StreamActivity, arguments)  # the engine checks too; here it is before a database is started
    if not follow:
        run(_activity(session, arguments))
        return
    with suppress(KeyboardInterrupt):  # how this is meant to end
        run(_follow(session, arguments))


async def _activity(session: Session, arguments: Json) -> None:
    async with session.memory() as (engine, who):
        found = await engine.memory.activity_stream(who, arguments)
    lines = [_event(event) for event in found["events"]] or [Text("Nothing happened.", style="dim")]
    session.answer(found, *lines)


async def _follow(session: Session, arguments: Json) -> None:
    """With --json one event is one line, so that a program can read them as they come."""
    import asyncio

    async with session.memory() as (engine, who):
        while True:
            found = await engine.memory.activity_stream(who, arguments)
            for event in found["events"]:
                _show_event(session, event)
            arguments = arguments | {"since": found["next"]}
            if not found["events"]:
                await asyncio.sleep(LOOK_AGAIN_SECONDS)


def _show_event(session: Session, event: Json) -> None:
    if session.json:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()
    else:
        screen.show(_event(event))


def _event(event: Json) -> Text:
    line = _dated(event["occurred_at"], event["summary"])
    return line.append(screen.neutral(f"  {event['actor']} {event['entity_id']} #{event['id']}"), style="dim")


def replay(
    session: Session,
    verify: Annotated[bool, typer.Option("--verify", help="Compare the outcome with the tables.")] = False,
    everyone: Annotated[bool, typer.Option("--all", help="Every tenant instead of one.")] = False,
) -> None:
    """Fold all events; with --verify, name every row, link and counter that differs from them (exit code 1)."""
    if everyone and session.tenant != HOME:
        raise typer.BadParameter("choose one of --tenant and --all")
    tenants = run(_replay(session, verify=verify, everyone=everyone))
    same = not any(each["differences"] for each in tenants)
    session.answer({"ok": same, "verified": verify, "tenants": tenants}, *_replayed(tenants, verify=verify))
    if not same:
        raise typer.Exit(DIFFERENT)


async def _replay(session: Session, *, verify: bool, everyone: bool) -> list[Json]:
    if everyone:
        async with session.every_memory() as (engine, admins):
            return [await _replay_one(engine, who, verify=verify) for who in admins]
    async with session.memory() as (engine, who):
        return [await _replay_one(engine, who, verify=verify)]


async def _replay_one(engine: Engine, who: Principal, *, verify: bool) -> Json:
    next_step = EVENTS_BETWEEN_STEPS
    with screen.Waiting(f"Replaying {who.tenant}") as waiting:

        def step(events: int) -> None:
            nonlocal next_step
            if events >= next_step:
                waiting.say(f"Replaying {who.tenant}: {events:,} events")
                next_step += EVENTS_BETWEEN_STEPS

        return await engine.memory.replay(who, verify=verify, progress=step)


def _replayed(tenants: list[Json], *, verify: bool) -> Iterable[RenderableType]:
    for each in tenants:
        tallies = "; ".join(f"{kind}s: {_tally(counts)}" for kind, counts in each["memories"].items())
        yield screen.safe(each["tenant"], "bold").append(
            f"  {each['events']:,} events; {tallies}; links: {each['links']:,}", style="not bold"
        )
        if each["differences"]:
            yield from _differences(each)
        elif verify:
            yield Text("The tables say the same.", style="green")


def _tally(counts: Json) -> str:
    return ", ".join(f"{count:,} {state}" for state, count in counts.items()) or "none"


def _differences(replayed: Json) -> Iterable[RenderableType]:
    rows = [
        [*map(screen.safe, (each["id"], each["type"], each["what"].replace("_", " "), each["detail"]))]
        for each in replayed["listed"]
    ]
    yield screen.table("ID", "Type", "What differs", "Where", rows=rows)
    more = replayed["differences"] - len(replayed["listed"])
    total = f"{replayed['differences']:,} differences" if replayed["differences"] > 1 else "1 difference"
    yield Text(f"{total}{f', of which {more:,} are not listed' if more else ''}.", style="red")
