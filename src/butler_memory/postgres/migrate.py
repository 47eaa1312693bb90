"""Brings the schema from whatever it is to what this code needs, at start, under a lock."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import psycopg
import sqlalchemy
from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from psycopg import sql

from butler_memory.errors import ButlerMemoryError, SetupError, Unavailable
from butler_memory.postgres.provision import OLDEST_SERVER, Urls
from butler_memory.postgres.seam import connect_problem

# Any number will do, as long as every process takes the same one.
_LOCK = 0x6D656D6F7279
# Alembic keeps the running migration in module globals: one at a time in a process, whatever the database.
_ONE_AT_A_TIME = threading.Lock()
OLDEST_VECTOR = (0, 7)  # the first with halfvec


async def migrate(urls: Urls) -> str:
    """Run the chain to its head and return the revision; two processes take turns."""
    return await asyncio.to_thread(_migrate, urls)


def head_revision() -> str:
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None
    return head


def _migrate(urls: Urls) -> str:
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: _connect(urls.owner), poolclass=sqlalchemy.NullPool
    )
    with _ONE_AT_A_TIME, engine.connect() as connection:
        try:
            connection.exec_driver_sql(f"SELECT pg_advisory_lock({_LOCK})")  # until the connection is closed
            return _run_chain(connection, urls)
        except sqlalchemy.exc.DBAPIError as error:
            raise _explained(error.orig) from error


def _run_chain(connection: sqlalchemy.Connection, urls: Urls) -> str:
    _check(connection)
    config = _config()
    config.attributes["connection"] = connection
    config.attributes["app"] = _quoted(urls.app_role)
    config.attributes["worker"] = _quoted(urls.worker_role)
    _refuse_newer(connection, config)
    command.upgrade(config, "memory@head")
    connection.exec_driver_sql(f"GRANT SELECT ON memory.alembic_version TO {config.attributes['app']}")
    connection.commit()
    return head_revision()


def _connect(conninfo: str) -> psycopg.Connection[object]:
    try:
        return psycopg.connect(conninfo, connect_timeout=10)
    except psycopg.Error as error:
        raise connect_problem(error) from None


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def _quoted(role: str) -> str:
    return sql.Identifier(role).as_string(None)


def _check(connection: sqlalchemy.Connection) -> None:
    version = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one())
    if version < OLDEST_SERVER:
        raise SetupError(f"PostgreSQL {version // 10_000} is too old.", recovery="Use PostgreSQL 16 or newer.")
    found = connection.exec_driver_sql(
        "SELECT n.nspname, e.extversion FROM pg_extension e JOIN pg_namespace n ON n.oid = e.extnamespace"
        " WHERE e.extname = 'vector'"
    ).one_or_none()
    if found is None:
        raise SetupError(
            "The database has no pgvector extension.",
            recovery="As an administrator: CREATE EXTENSION vector; or run 'butler-memory db provision'.",
        )
    schema, extension = found
    if tuple(int(part) for part in extension.split(".")[:2]) < OLDEST_VECTOR:
        raise SetupError(f"pgvector {extension} is too old.", recovery="ALTER EXTENSION vector UPDATE (0.7 or newer).")
    # Wherever pgvector lives, its types resolve; nothing of ours relies on the search path.
    connection.exec_driver_sql(f"SET search_path = pg_catalog, {_quoted(schema)}")
    if not connection.exec_driver_sql("SELECT to_regnamespace('memory') IS NOT NULL").scalar_one():
        connection.exec_driver_sql("CREATE SCHEMA memory")
    if not connection.exec_driver_sql("SELECT has_schema_privilege('memory', 'CREATE')").scalar_one():
        raise _not_allowed()


def _refuse_newer(connection: sqlalchemy.Connection, config: Config) -> None:
    context = MigrationContext.configure(
        connection, opts={"version_table": "alembic_version", "version_table_schema": "memory"}
    )
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    found = context.get_current_revision()
    if found is not None and found not in known:
        raise SetupError(
            f"The database is at revision {found}, which this version does not know: it is newer than the code.",
            recovery="Upgrade butler-memory; it never downgrades a database.",
        )


def _explained(error: BaseException | None) -> ButlerMemoryError:
    match error:
        case psycopg.errors.InsufficientPrivilege():
            return _not_allowed()
        case psycopg.OperationalError():
            return Unavailable("The database connection was lost; nothing was changed.", reason="connection_lost")
        case _:
            return SetupError(
                f"The schema could not be brought up to date (SQLSTATE {getattr(error, 'sqlstate', None)});"
                " nothing was changed.",
                recovery="If another program has tables in the schema 'memory', use another database; else report it.",
            )


def _not_allowed() -> SetupError:
    return SetupError(
        "The owner role may not create tables in the schema 'memory'.",
        recovery="Give BUTLER_MEMORY_OWNER_URL the schema's owner, or run 'butler-memory db provision'.",
    )
