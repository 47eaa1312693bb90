"""doctor: looks at everything, changes nothing (without --fix), and says how to mend what is wrong."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from butler_memory.cli import screen
from butler_memory.cli.findings import Finding, Status, from_error, ok
from butler_memory.cli.session import Session, run
from butler_memory.errors import ButlerMemoryError

_STYLES = {Status.OK: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}
_FAILED = 1


def doctor(
    session: Session,
    fix: Annotated[
        bool, typer.Option("--fix", help="Make the database, migrate it and fetch the model where needed.")
    ] = False,
) -> None:
    """Check everything, and say how to mend it."""
    with screen.Waiting("Looking") as waiting:
        found = run(_examine(session, waiting, fix=fix))
    well = all(finding.status is not Status.FAIL for finding in found)
    session.answer({"ok": well, "checks": [finding.as_dict() for finding in found]}, *map(_line, found))
    if not well:
        raise typer.Exit(_FAILED)


async def _examine(session: Session, waiting: screen.Waiting, *, fix: bool) -> list[Finding]:
    import asyncio

    from butler_memory.cli import checks

    found = [checks.python()]
    try:
        settings = session.settings()
    except ButlerMemoryError as error:  # nothing else can be looked at without them
        return [*found, from_error("settings", error)]
    found.append(ok("settings", f"from {settings.source}"))
    if fix:
        found += await checks.mend(settings, waiting.say)
    found += [checks.enabled(settings), checks.data_dir(settings), checks.clock(settings)]
    found.append(await asyncio.to_thread(checks.port, settings))
    found += await checks.database(settings, waiting.say)
    found.append(checks.reader(settings))
    found.append(await checks.embedding_model(settings))
    return found


def _line(finding: Finding) -> Text:
    line = Text(f"{finding.status:<4}  ", style=_STYLES[finding.status])
    line.append(f"{finding.name:<10} ", style="not bold default").append_text(screen.safe(finding.message))
    if finding.mend:
        line.append("\n      → ", style="not bold dim").append_text(screen.safe(finding.mend))
    return line
