"""reembed: makes the vectors that are missing or another model's, now instead of in the background (L5)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from butler_memory.cli import screen
from butler_memory.cli.session import Session, run
from butler_memory.domain.kinds import JobName, RunOutcome
from butler_memory.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from butler_memory.bootstrap import Engine
    from butler_memory.cli.progress import Bar
    from butler_memory.workers.workers import Workers

_FAILED, _CONFLICT = 1, 4  # as in app.EXIT_CODES


@dataclass
class Outcome:
    """What became of one tenant. `busy`: another process is making its vectors, and goes on with that."""

    tenant: str
    outcome: str  # done, busy, failed
    embedded: int = 0
    swapped: bool = False
    reason: str = ""

    def line(self) -> Text:
        match self.outcome:
            case "busy":
                said = "another process is at it; it goes on there"
            case "failed":
                said = f"failed ({self.reason}); what was made is kept, and the next run goes on"
            case _ if self.swapped:
                said = f"{self.embedded} vectors made; it answers from this model now"
            case _:
                said = f"{self.embedded} vectors made" if self.embedded else "nothing to do"
        return screen.safe(f"{self.tenant}: {said}")


def reembed(
    session: Session, every: Annotated[bool, typer.Option("--all", help="All tenants, instead of one.")] = False
) -> None:
    """Make the vectors that are missing or another model's. Can be stopped; the next run goes on where it was."""
    version, found = run(_reembed(session, every=every))
    shape = {"version": version, "tenants": [asdict(each) for each in found]}
    session.answer(shape, *(each.line() for each in found))
    outcomes = {each.outcome for each in found}
    if outcomes != {"done"}:
        raise typer.Exit(_FAILED if "failed" in outcomes else _CONFLICT)


async def _reembed(session: Session, *, every: bool) -> tuple[str, list[Outcome]]:
    from butler_memory.cli.progress import Bar
    from butler_memory.postgres import access

    async with session.memory(embeds=True) as (engine, who):
        tenants = await engine.database.run_as_worker(access.tenants) if every else [who.tenant]
        with Bar("vectors") as bar:
            workers = _workers(engine, bar.advance)
            found = [await _one(engine, workers, bar, tenant) for tenant in tenants]
        return engine.models.current.version, found


def _workers(engine: Engine, report: Callable[[int], None]) -> Workers:
    """The job as the engine runs it, but that it tells how far it is, and that a person may go back to a model."""
    from functools import partial

    from butler_memory.bootstrap import timetable
    from butler_memory.upkeep.job import Job
    from butler_memory.upkeep.reembed import reembed as job
    from butler_memory.workers.workers import Workers

    work = partial(job, engine.database, engine.models, back=True, report=report)
    return Workers(engine.database, [Job(JobName.REEMBED, work)], timetable(engine.settings), engine.clock)


async def _one(engine: Engine, workers: Workers, bar: Bar, tenant: str) -> Outcome:
    from butler_memory.postgres import embeddings

    version = engine.models.current.version
    bar.begin(tenant, await engine.database.run(tenant, lambda conn: embeddings.count_to_make(conn, tenant, version)))
    outcome = Outcome(tenant, "done")
    while True:
        [ran] = await workers.run_now(JobName.REEMBED, tenant)
        if ran.run is None or ran.run.outcome is RunOutcome.LOST:
            outcome.outcome = "busy"
            return outcome
        if ran.run.outcome is not RunOutcome.OK:
            outcome.outcome, outcome.reason = "failed", ran.run.reason
            if ran.run.reason == "no_model":  # so it is for every tenant
                raise Unavailable(
                    "The embedding model is missing.",
                    reason="no_model",
                    recovery="'butler-memory doctor --fix' or 'up' fetches it.",
                )
            return outcome
        outcome.embedded += ran.run.counts["embedded"]
        outcome.swapped = outcome.swapped or ran.run.counts["swapped"] > 0
        if ran.run.caught_up:
            return outcome
