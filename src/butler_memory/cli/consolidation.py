"""consolidate, and episodes requeue: what was read, and what came of it, as a diff that a person can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer
from rich.text import Text

from butler_memory.cli import screen
from butler_memory.cli.session import Session, run
from butler_memory.domain.kinds import JobName

if TYPE_CHECKING:
    from datetime import datetime

    from butler_memory.bootstrap import Engine
    from butler_memory.consolidation.run import Reading
    from butler_memory.workers.workers import Ran

Json = dict[str, Any]
_FAILED = 1
_READ, _PAUSED = ("applied", "empty"), "paused"
# What happened, as a sign in the margin, a colour, and a word.
_SIGNS = {
    "created": ("+", "green", ""),
    "superseded": ("~", "yellow", ""),
    "confirmed": ("=", "cyan", "confirmed"),
    "known": ("=", "dim", "known already"),
    "contested": ("?", "magenta", "against what you said: 'review list'"),
    "late": ("<", "dim", "older than what is known"),
    "linked": ("&", "cyan", ""),
    "marked": ("*", "cyan", ""),
    "refused": ("x", "red", "refused"),
}


def consolidate(
    session: Session,
    butler: Annotated[str | None, typer.Option("--butler", metavar="NAME", help="Only this one's episodes.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what the next batch would do; write nothing.")
    ] = False,
) -> None:
    """Read the episodes that wait, now, and show what comes of them."""
    if not run(_rehearse(session, butler) if dry_run else _consolidate(session, butler)):
        raise typer.Exit(_FAILED)


async def _consolidate(session: Session, butler: str | None) -> bool:
    async with session.memory(embeds=True) as (engine, who):
        began = engine.clock()
        ran = await engine.workers.run_now(JobName.CONSOLIDATE, who.tenant, butler)
        runs = await _runs_since(engine, who.tenant, butler, began)
    failed = [each for each in ran if each.run is None or each.run.outcome != "ok"]
    problems = [_problem(each) for each in failed]
    told = [line for each in runs if each["outcome"] != _PAUSED for line in _told(each)]
    lines = told + [_problem_line(each) for each in problems]
    shape = {"dry_run": False, "runs": runs, "not_run": problems}
    session.answer(shape, *(lines or [Text("No episode waits.", style="dim")]))
    return not any(each.run is not None for each in failed)


async def _runs_since(engine: Engine, tenant: str, butler: str | None, began: datetime) -> list[Json]:
    from butler_memory.postgres import consolidation
    from butler_memory.postgres.changes import plain_json

    found = await engine.database.run(tenant, lambda conn: consolidation.runs_since(conn, tenant, butler, began))
    return [plain_json({**vars(each), **each.proposal, "proposal": None}) for each in found]


def _problem(ran: Ran) -> Json:
    why = "another process is at it" if ran.run is None else ran.run.reason or ran.run.outcome.value
    return {"butler": ran.butler, "reason": why}


def _problem_line(problem: Json) -> Text:
    return screen.safe(f"{problem['butler']}: not read ({problem['reason']}); what waits is kept", "yellow")


async def _rehearse(session: Session, butler: str | None) -> bool:
    from butler_memory.llm.ports import BackendDown, ModelFailure
    from butler_memory.postgres import consolidation
    from butler_memory.postgres.changes import plain_json

    shapes: list[Json] = []
    async with session.memory(embeds=True) as (engine, who):
        waiting = await engine.database.run(who.tenant, lambda conn: consolidation.butlers_waiting(conn, who.tenant))
        for each in [name for name in waiting if butler in (None, name)]:
            try:
                reading = await engine.consolidation.rehearse(who.tenant, each, engine.clock())
            except ModelFailure as failure:
                outcome = _PAUSED if isinstance(failure, BackendDown) else "failed"
                shapes.append({"butler": each, "outcome": outcome, "reason": str(failure), "items": [], "read": []})
                continue
            if reading:
                shapes.append(plain_json(_rehearsed(each, reading)))
    lines = [line for shape in shapes for line in _told(shape)]
    note = Text("A dry run: nothing was written.", style="bold")
    session.answer({"dry_run": True, "runs": shapes}, *(lines or [Text("No episode waits.", style="dim")]), note)
    return all(shape["outcome"] not in (_PAUSED, "failed") for shape in shapes)


def _rehearsed(butler: str, reading: Reading) -> Json:
    from butler_memory.consolidation.apply import shape_of

    items = [shape_of(item) for item in reading.applied.items] if reading.applied else []
    return {
        "butler": butler,
        "outcome": "applied" if reading.applied else "refused",
        "reason": reading.reason or None,
        "read": [episode.id for episode in reading.batch.episodes],
        "items": items,
        "tokens_in": reading.reply.usage.tokens_in,
        "tokens_out": reading.reply.usage.tokens_out,
    }


def _told(reading: Json) -> list[Text]:
    if reading["outcome"] == _PAUSED:
        return [_problem_line(reading)]
    cost = reading.get("tokens_in", 0) + reading.get("tokens_out", 0)
    spent = f", {cost} tokens" if cost else ""
    lines = [screen.safe(f"{reading['butler']}: {_how(reading)}{spent}", "bold")]
    if reading["outcome"] in _READ:
        lines += [diff_line(item) for item in reading["items"]] or [Text("  nothing worth keeping", style="dim")]
    return lines


def _how(reading: Json) -> str:
    count = len(reading.get("read", []))
    episodes = f"{count} episode{'' if count == 1 else 's'}" if count else "the next episodes"
    match reading["outcome"]:
        case "failed":
            return f"{episodes} could not be read ({reading['reason']}); they are tried again, five times at most"
        case "refused":
            return f"{episodes} would change a large part of the memory: 'review list' shows what waits for your word"
        case _:
            return f"{episodes} read"


def diff_line(item: Mapping[str, Any]) -> Text:
    sign, style, word = _SIGNS[item["what"]]
    line = Text(f"  {sign} ", style=style).append(f"{item['kind']:<12} ", style="dim")
    line.append_text(screen.short(item["line"]))
    notes = [f"before: {screen.short(item['before'])}" if item.get("before") else "", word, item.get("reason") or ""]
    said = ", ".join(note for note in notes if note)
    return line.append(f"  ({said})", style="dim") if said else line


def requeue(
    session: Session,
    ids: Annotated[
        list[UUID] | None, typer.Argument(metavar="[ID...]", help="All that were given up, if left out.")
    ] = None,
) -> None:
    """Have episodes read again that failed or were given up."""
    run(_requeue(session, ids))


async def _requeue(session: Session, ids: Sequence[UUID] | None) -> None:
    async with session.memory() as (engine, who):
        done = await engine.memory.requeue(who, list(ids) if ids else None)
    count = len(done["requeued"])
    session.answer(
        done,
        Text(f"{count} episode{'' if count == 1 else 's'} will be read again." if count else "Nothing to requeue."),
    )
