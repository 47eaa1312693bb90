"""job list, run, history, and worker: the engine's own jobs, seen and run by a person (J1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from butler_memory.cli import screen
from butler_memory.cli.serving import run_until_stopped
from butler_memory.cli.session import Session, require_tenant, run
from butler_memory.domain.kinds import JobName, RunOutcome

if TYPE_CHECKING:
    from butler_memory.bootstrap import Engine
    from butler_memory.workers.workers import Ran

Json = dict[str, Any]
_FAILED = 1
_EMBED = (JobName.CONSOLIDATE, JobName.REEMBED)  # what these store gets its vector at once
_STYLES = {"ok": "green", "failed": "bold red", "lost": "red", "stopped": "yellow"}

All = Annotated[bool, typer.Option("--all", help="Of every tenant, not only this one.")]
Name = Annotated[JobName, typer.Argument(metavar="NAME", help=", ".join(JobName))]


def list_(session: Session) -> None:
    """Show each job: when it ran well, when it runs next, and whether it is late."""
    run(_list(session))


async def _list(session: Session) -> None:
    async with session.memory() as (engine, who):
        jobs = (await engine.memory.stats(who, {}))["jobs"]
    rows = (
        [Text(name), screen.moment(job["last_ok_at"]), screen.moment(job["next_run_at"]), _condition(job)]
        for name, job in jobs.items()
    )
    session.answer({"jobs": jobs}, screen.table("Job", "Ran well", "Next", "State", rows=rows))


def _condition(job: Json) -> Text:
    last = job["last_run"] or {}
    why = f": {last['reason']}" if last.get("reason") else ""
    if job["late"]:  # also one that has been running for all that time
        return screen.safe(f"late, running{why}" if job["running"] else f"late{why}", "bold red")
    if job["running"]:
        return Text("running", style="green")
    return screen.safe(f"{last['outcome']}{why}", _STYLES[last["outcome"]]) if last else Text("not yet", style="dim")


def run_(session: Session, name: Name, all_: All = False) -> None:
    """Run a job now, whatever its time."""
    if not run(_run(session, name, all_)):
        raise typer.Exit(_FAILED)


async def _run(session: Session, name: JobName, every_tenant: bool) -> bool:
    """True where nothing failed."""
    async with session.engine(embeds=name in _EMBED) as engine:
        if not every_tenant:
            await require_tenant(engine, session.tenant)
        ran = await engine.workers.run_now(name, None if every_tenant else session.tenant)
    shapes = [_ran_shape(each) for each in ran]
    session.answer({"job": name.value, "runs": shapes}, *(_told(name, shapes)))
    return all(shape["outcome"] in ("ok", "busy") for shape in shapes)


def _ran_shape(ran: Ran) -> Json:
    shape: Json = {"tenant": ran.tenant, "butler": ran.butler or None}
    if ran.run is None:
        return shape | {"outcome": "busy", "reason": "another process is at it", "counts": {}}
    return shape | {"outcome": ran.run.outcome.value, "reason": ran.run.reason or None, "counts": dict(ran.run.counts)}


def _told(name: JobName, shapes: Sequence[Json]) -> list[Text]:
    if not shapes:
        return [Text(f"{name}: there is nothing to do.", style="dim")]
    return [_line(name, shape) for shape in shapes]


def _line(name: str, shape: Mapping[str, Any]) -> Text:
    where = " ".join(part for part in (shape["tenant"], shape["butler"]) if part)
    done = ", ".join(f"{what.replace('_', ' ')} {count}" for what, count in shape["counts"].items() if count)
    line = Text(f"{name}  ").append_text(screen.safe(where, "dim")).append("  ")
    line.append(shape["outcome"], style=_STYLES.get(shape["outcome"], "yellow"))
    line.append_text(screen.safe(f"  {shape['reason'] or done or 'nothing to do'}"))
    return line


def history(
    session: Session,
    name: Annotated[JobName | None, typer.Argument(metavar="[NAME]", help="One job; all if left out.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = 20,
    all_: All = False,
) -> None:
    """Show how the last runs ended, newest first."""
    run(_history(session, name, limit, all_))


async def _history(session: Session, name: JobName | None, limit: int, every_tenant: bool) -> None:
    from butler_memory.postgres import leases
    from butler_memory.postgres.changes import plain_json

    async with session.engine() as engine:
        if not every_tenant:
            await require_tenant(engine, session.tenant)
        tenant = None if every_tenant else session.tenant
        found = await engine.database.run_as_worker(lambda conn: leases.runs(conn, tenant, name, limit))
    runs: list[Json] = plain_json(found)
    rows = (
        [screen.moment(each["finished_at"]), *_run_cells(each)]
        for each in runs
    )  # fmt: skip
    table = screen.table("When", "Job", "Tenant", "How", "What", rows=rows)
    session.answer({"runs": runs}, table if runs else Text("No job has run yet.", style="dim"))


def _run_cells(ran: Json) -> list[Text]:
    done = ", ".join(f"{what.replace('_', ' ')} {count}" for what, count in ran["counts"].items() if count)
    where = " ".join(part for part in (ran["tenant"], ran["butler"]) if part)
    return [
        Text(ran["job"]),
        screen.safe(where),
        Text(ran["outcome"], style=_STYLES[ran["outcome"]]),
        screen.safe(ran["reason"] or done),
    ]


def worker(
    session: Session,
    once: Annotated[bool, typer.Option("--once", help="Run what is due now, then end: for cron and hosts.")] = False,
) -> None:
    """Run the engine's jobs and nothing else, until Ctrl-C."""
    if once:
        if not run(_once(session)):
            raise typer.Exit(_FAILED)
    else:
        run_until_stopped(_work(session))
        screen.err().print(Text("Stopped.", style="dim"))


async def _once(session: Session) -> bool:
    """True where nothing failed."""
    from butler_memory.bootstrap import require_enabled

    require_enabled(session.settings())
    async with session.engine(embeds=True) as engine:
        runs = await engine.workers.run_due()
    outcomes = [ran.outcome.value for ran in runs]
    said = Text(f"{len(runs)} runs: {', '.join(outcomes)}" if runs else "Nothing is due.")
    failed = RunOutcome.FAILED in outcomes
    more = [Text("'butler-memory job history' says which failed, and why.", style="dim")] if failed else []
    session.answer({"runs": outcomes}, said, *more)
    return not failed


async def _work(session: Session) -> None:
    from butler_memory.serve import serve_jobs

    settings = session.settings()

    def announce(engine: Engine) -> None:
        waiting.stop()
        shape = {"working": True, "data_dir": str(settings.env.data_dir)}
        session.answer(shape, Text("Running the jobs of the memory. Ctrl-C stops it; another worker then goes on."))

    with screen.Waiting("Opening the memory") as waiting:
        await serve_jobs(settings, progress=waiting.say, announce=announce)
