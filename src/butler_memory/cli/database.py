"""db migrate, url, provision."""

from __future__ import annotations

import json
import re
import shlex
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote, urlencode

import typer
from rich.text import Text

from butler_memory.cli import screen
from butler_memory.cli.session import Session, run
from butler_memory.errors import InvalidInput, SetupError

if TYPE_CHECKING:
    from butler_memory.postgres.provision import Urls
    from butler_memory.settings import Settings

# PostgreSQL cuts names at 63 bytes without a word, and '_worker' comes behind the database's.
_DATABASE_NAME = re.compile(r"[a-z_][a-z0-9_]{0,55}")
_PLAIN_HOST = re.compile(r"[A-Za-z0-9._-]+")


class DbRole(StrEnum):
    APP = "app"
    OWNER = "owner"
    WORKER = "worker"


def migrate(session: Session) -> None:
    """Bring the schema to what this version needs. 'up' does it by itself."""
    run(_migrate(session))


async def _migrate(session: Session) -> None:
    from butler_memory.bootstrap import ready_database
    from butler_memory.postgres.schema_version import HEAD

    async with AsyncExitStack() as stack:
        waiting = stack.enter_context(screen.Waiting("Migrating"))
        await ready_database(session.settings(), stack, waiting.say)
    session.answer({"revision": HEAD}, screen.safe(f"The schema is at revision {HEAD}."))


def url(
    session: Session, role: Annotated[DbRole, typer.Option(help="app is bound by row-level security.")] = DbRole.APP
) -> None:
    """Print the database's URL, for psql and other tools."""
    settings = session.settings()
    conninfo = getattr(run(known_urls(settings)), role.value)
    if not conninfo:
        raise SetupError(
            f"BUTLER_MEMORY_{role.value.upper()}_URL is not set.",
            recovery="Set the line that 'butler-memory db provision' printed.",
        )
    running = bool(settings.env.database_url) or embedded_runs(settings)
    session.answer({"url": as_url(conninfo), "role": role.value, "running": running}, Text(as_url(conninfo)))
    if not running:
        screen.note("The embedded server runs only while a butler-memory process does, e.g. 'butler-memory up'.")


async def known_urls(settings: Settings) -> Urls:
    """Without starting anything, unless this data directory was never started."""
    from butler_memory.bootstrap import ready_database

    if settings.env.database_url:
        return named_urls(settings)
    if not (settings.env.data_dir / "roles.json").exists():
        async with AsyncExitStack() as stack:
            waiting = stack.enter_context(screen.Waiting("Making the database"))
            await ready_database(settings, stack, waiting.say)
    return embedded_urls(settings)


def named_urls(settings: Settings) -> Urls:
    from butler_memory.postgres.provision import Urls

    env = settings.env
    return Urls(owner=env.owner_url, app=env.database_url, worker=env.worker_url)


def embedded_urls(settings: Settings) -> Urls:
    from psycopg.conninfo import make_conninfo

    from butler_memory.postgres.cluster_files import PORT, socket_dir
    from butler_memory.postgres.provision import urls_for

    data_dir = settings.env.data_dir.expanduser().resolve()
    passwords = _role_passwords(data_dir / "roles.json")
    server = make_conninfo("", host=socket_dir(data_dir / "postgres"), port=PORT)
    return urls_for(server, settings.butler.db.name, passwords)


def _role_passwords(file: Path) -> dict[str, str]:
    try:
        kept: dict[str, str] = json.loads(file.read_text())
        return {role.value: kept[role.value] for role in DbRole}
    except (OSError, ValueError, KeyError, TypeError):
        raise SetupError(
            f"{file} is missing or damaged.", recovery="Remove it and run 'butler-memory up': new passwords are made."
        ) from None


def embedded_runs(settings: Settings) -> bool:
    import psycopg

    try:
        psycopg.connect(embedded_urls(settings).app, connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def as_url(conninfo: str) -> str:
    """One form for every tool. A socket's directory has slashes, so it stands behind the question mark."""
    from psycopg.conninfo import conninfo_to_dict

    parts = {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    who = ":".join(quote(parts.pop(name), safe="") for name in ("user", "password") if name in parts)
    database = quote(parts.pop("dbname", ""), safe="")
    place = ""
    if _PLAIN_HOST.fullmatch(parts.get("host", "")):
        place = parts.pop("host") + (f":{parts.pop('port')}" if "port" in parts else "")
    rest = f"?{urlencode(parts, quote_via=quote)}" if parts else ""
    return f"postgresql://{who}@{place}/{database}{rest}"


def provision(
    session: Session,
    admin_url: Annotated[str, typer.Option("--admin-url", metavar="URL", help="Of a role that may make roles.")],
    database: Annotated[str, typer.Option("--database", metavar="NAME", help="Made if it is new.")] = "butler_memory",
) -> None:
    """Prepare your own PostgreSQL: roles, database, pgvector, schema. Prints the settings to use."""
    if not _DATABASE_NAME.fullmatch(database):
        raise InvalidInput(
            "A database's name is 1 to 56 lower case letters, digits and '_', not beginning with a digit.",
            field="database",
        )
    lines = run(_provision(admin_url, database))
    session.answer(lines, *(Text(f"{name}={shlex.quote(value)}") for name, value in lines.items()))
    screen.note("Each run gives the three roles new passwords; the lines above are the only copy.")


async def _provision(admin_url: str, database: str) -> dict[str, str]:
    from butler_memory.postgres.migrate import migrate as run_chain
    from butler_memory.postgres.provision import new_passwords
    from butler_memory.postgres.provision import provision as make

    with screen.Waiting("Preparing the database"):
        urls = await make(admin_url, database, new_passwords())
        await run_chain(urls)
    return {
        "BUTLER_MEMORY_DATABASE_URL": as_url(urls.app),
        "BUTLER_MEMORY_OWNER_URL": as_url(urls.owner),
        "BUTLER_MEMORY_WORKER_URL": as_url(urls.worker),
    }
