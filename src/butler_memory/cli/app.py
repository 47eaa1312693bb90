"""The table of commands, and what each way to end means for the shell."""

from __future__ import annotations

import logging
import platform
import sys

import typer
from typer.exceptions import TyperException

from butler_memory.cli import (
    consolidation,
    database,
    doctor,
    history,
    jobs,
    memories,
    predicates,
    reading,
    reembed,
    reviews,
    rules,
    screen,
    serving,
    tokens,
)
from butler_memory.cli.session import Session, command
from butler_memory.domain.kinds import Standing
from butler_memory.errors import ButlerMemoryError, InvalidInput

OK, FAILURE, USAGE, NOT_FOUND, CONFLICT, UNAVAILABLE = range(6)
EXIT_CODES = {
    "invalid_input": USAGE,
    "too_large": USAGE,
    "not_found": NOT_FOUND,
    "conflict": CONFLICT,
    "unavailable": UNAVAILABLE,
    "rate_limited": UNAVAILABLE,
    "setup": UNAVAILABLE,
}
PROGRAM = "butler-memory"
PLACE = ("json", "data_dir", "config")
MEMORY = (*PLACE, "tenant")


def version(session: Session) -> None:
    """Print the version."""
    from importlib.metadata import version as installed

    found = installed(PROGRAM)
    session.answer({"version": found, "python": platform.python_version()}, f"{PROGRAM} {found}")


def _group(about: str) -> typer.Typer:
    return typer.Typer(no_args_is_help=True, help=about)


def _served_commands() -> typer.Typer:
    group = _group("See what sessions were told, and why.")
    group.command("list")(command(reading.served_list, *MEMORY))
    group.command("show")(command(reading.served_show, *MEMORY))
    return group


def _rule_commands() -> typer.Typer:
    group = _group("Decide about a rule: its level, whether it is followed, whether a warning was wrong.")
    for standing in Standing:
        group.command(standing.value)(command(rules.of(standing), *MEMORY))
    return group


def _job_commands() -> typer.Typer:
    group = _group("See and run the memory's own jobs.")
    group.command("list")(command(jobs.list_, *MEMORY))
    group.command("run")(command(jobs.run_, *MEMORY))
    group.command("history")(command(jobs.history, *MEMORY))
    return group


def _review_commands() -> typer.Typer:
    group = _group("What waits for a person's word.")
    group.command("list")(command(reviews.list_, *MEMORY))
    group.command("show")(command(reviews.show, *MEMORY))
    group.command("accept")(command(reviews.accept, *MEMORY))
    group.command("reject")(command(reviews.reject, *MEMORY))
    return group


def _episode_commands() -> typer.Typer:
    group = _group("Look after episodes.")
    group.callback()(_nothing)  # keeps it a group, though it has one command
    group.command("requeue")(command(consolidation.requeue, *MEMORY))
    return group


def _nothing() -> None:
    """Look after episodes."""


def _token_commands() -> typer.Typer:
    group = _group("Make, list and revoke the tokens that clients connect with.")
    group.command("create")(command(tokens.create, *PLACE))
    group.command("list")(command(tokens.list_, *PLACE))
    group.command("revoke")(command(tokens.revoke, *PLACE))
    return group


def _predicate_commands() -> typer.Typer:
    group = _group("See and change what predicates mean.")
    group.command("list")(command(predicates.list_, *MEMORY))
    group.command("set")(command(predicates.set_, *MEMORY))
    return group


def _database_commands() -> typer.Typer:
    group = _group("Look after the database.")
    group.command("migrate")(command(database.migrate, *PLACE))
    group.command("url")(command(database.url, *PLACE))
    group.command("provision")(command(database.provision, "json"))
    return group


def build() -> typer.Typer:
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # 0.15 s of every --help
        pretty_exceptions_enable=False,  # they print local variables, which hold what people store
        help="Long-term memory for your agents: facts, rules and episodes on PostgreSQL, over MCP.",
    )
    app.command("up")(command(serving.up, *PLACE))
    app.command("mcp")(command(serving.mcp, "data_dir", "config"))
    app.command("remember")(command(memories.remember, *MEMORY))
    app.command("search")(command(reading.search, *MEMORY))
    app.command("recall")(command(reading.recall, *MEMORY))
    app.command("context")(command(reading.context, *MEMORY))
    app.command("list")(command(memories.list_, *MEMORY))
    app.command("get")(command(memories.get, *MEMORY))
    app.command("edit")(command(memories.edit, *MEMORY))
    app.command("confirm")(command(memories.confirm, *MEMORY))
    app.command("forget")(command(memories.forget, *MEMORY))
    app.command("restore")(command(memories.restore, *MEMORY))
    app.command("history")(command(history.history, *MEMORY))
    app.command("activity")(command(history.activity, *MEMORY))
    app.command("stats")(command(memories.stats, *MEMORY))
    app.add_typer(_served_commands(), name="served")
    app.add_typer(_rule_commands(), name="rule")
    app.command("consolidate")(command(consolidation.consolidate, *MEMORY))
    app.add_typer(_episode_commands(), name="episodes")
    app.add_typer(_review_commands(), name="review")
    app.add_typer(_job_commands(), name="job")
    app.command("worker")(command(jobs.worker, *PLACE))
    app.add_typer(_token_commands(), name="token")
    app.add_typer(_predicate_commands(), name="predicates")
    app.add_typer(_database_commands(), name="db")
    app.command("replay")(command(history.replay, *MEMORY))
    app.command("reembed")(command(reembed.reembed, *MEMORY))
    app.command("doctor")(command(doctor.doctor, *PLACE))
    app.command("version")(command(version, "json"))
    return app


def run() -> None:
    screen.any_encoding()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    arguments = sys.argv[1:]
    sys.exit(_exit_code(arguments, as_json="--json" in _before_dashes(arguments)))


def _exit_code(arguments: list[str], *, as_json: bool) -> int:
    try:
        _require_unicode(arguments)
        # typer shows usage errors as prose and ends the program; for machines they get our shape.
        code = build()(arguments, prog_name=PROGRAM, standalone_mode=not as_json)
        return code if isinstance(code, int) else OK
    except TyperException as error:
        usage = InvalidInput(error.format_message(), reason="usage", recovery=f"See '{PROGRAM} --help'.")
        screen.show_error(usage, as_json=as_json)
        return USAGE
    except ButlerMemoryError as error:
        screen.show_error(error, as_json=as_json)
        return EXIT_CODES.get(error.code, FAILURE)


def _before_dashes(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


def _require_unicode(arguments: list[str]) -> None:
    """Bytes that are no UTF-8 arrive as lone surrogates, which neither PostgreSQL nor JSON can hold."""
    try:
        "".join(arguments).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput("The arguments are not valid UTF-8.", reason="bad_text") from None
