"""up and mcp: the two ways to serve."""

from __future__ import annotations

import shlex
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from butler_memory.cli import screen
from butler_memory.cli.session import Session, run

if TYPE_CHECKING:
    from butler_memory.serve import ServeInfo
    from butler_memory.settings import Settings


def up(
    session: Session,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="[default: 8150]", show_default=False)] = None,
    host: Annotated[str | None, typer.Option(help="[default: 127.0.0.1]", show_default=False)] = None,
) -> None:
    """Start everything: database, model and the MCP server. Ctrl-C stops it all."""
    chosen = {"port": str(port) if port else None, "host": host}
    settings = session.settings(**{name: text for name, text in chosen.items() if text is not None})
    with screen.Waiting("Starting the memory") as waiting:
        from butler_memory.serve import serve

        def announce(info: ServeInfo) -> None:
            waiting.stop()
            session.answer(_shape(info), *_welcome(info, _where(session, settings)))

        run_until_stopped(serve(settings, progress=waiting.say, announce=announce))
    screen.err().print(Text("Stopped.", style="dim"))


def mcp(
    session: Session,
    project: Annotated[
        str | None, typer.Option(metavar="SLUG", help="The project whose scope this connection has.")
    ] = None,
) -> None:
    """Serve one MCP client on standard input and output."""
    settings = session.settings(**({"project": project} if project else {}))
    from butler_memory.serve import serve_stdio

    run_until_stopped(serve_stdio(settings))


def run_until_stopped(work: Coroutine[Any, Any, None]) -> None:
    """A process that a signal ends before it is done says so as the shell does: 130 for Ctrl-C, 143 for SIGTERM."""
    from butler_memory.serve import StoppedEarly

    try:
        run(work)
    except StoppedEarly as stopped:
        raise typer.Exit(128 + stopped.signal) from None


def connect_line(info: ServeInfo) -> str:
    return (
        f'claude mcp add --transport http butler-memory {info.url} --header "Authorization: Bearer {info.butler_token}"'
    )


def _shape(info: ServeInfo) -> dict[str, Any]:
    return {
        "url": info.url,
        "butler_token": info.butler_token,
        "admin_token_file": str(info.admin_token_file),
        "data_dir": str(info.data_dir),
        "clock_offset_seconds": info.clock_offset.total_seconds(),
        "degraded": info.degraded,
        "connect": connect_line(info),
    }


def _welcome(info: ServeInfo, here: str) -> list[Text]:
    lines = [
        Text("The memory is running at ").append(info.url, style="bold").append(f"  (data in {info.data_dir})"),
        Text("\nConnect Claude Code:"),
        Text(f"  {connect_line(info)}", style="bold"),
        Text("\nLook around, in another terminal:"),
        Text(f'  butler-memory remember "I am allergic to penicillin" --predicate allergy{here}'),
        Text(f"  butler-memory stats{here}"),
        Text("\nCtrl-C stops everything."),
    ]
    if info.degraded:
        lines.append(
            screen.safe(f"\nWithout the embedding model, search is by keyword only: {info.degraded}", "yellow")
        )
    if info.clock_offset:
        lines.append(Text(f"\nThe clock is shifted by {info.clock_offset}: for tests and demos only.", style="yellow"))
    return lines


def _where(session: Session, settings: Settings) -> str:
    """What another terminal must say to find the same memory."""
    import platformdirs

    usual = platformdirs.user_data_dir("butler-memory", appauthor=False)
    place = str(settings.env.data_dir)
    options = [] if place == usual or settings.env.database_url else ["--data-dir", place]
    if session.config is not None:
        options += ["--config", str(session.config.absolute())]
    return "".join(f" {shlex.quote(word)}" for word in options)
