"""Roles, database, extension and schema, made from an administrator's connection.

owner    owns the schema and migrates it; never used to serve
app      serves: row-level security binds it, it owns nothing
worker   sees what must be seen before a tenant is known: tokens, leases, runs of jobs; no content
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import AsyncConnection, sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from butler_memory.errors import SetupError
from butler_memory.postgres.seam import explained_connect

ROLES = ("owner", "app", "worker")
OLDEST_SERVER = 160_000
# Two databases of one cluster may be provisioned at once: roles are shared, advisory locks are not.
# Within one database they can take turns, which ALTER ROLE needs. Any number will do, if it is always the same.
_LOCK = 0x70726F76697369
_MADE_BY_ANOTHER = (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation, psycopg.errors.DuplicateDatabase)


@dataclass(frozen=True)
class Urls:
    """How each role connects, as libpq connection strings."""

    owner: str
    app: str
    worker: str

    @property
    def app_role(self) -> str:
        return str(conninfo_to_dict(self.app)["user"])

    @property
    def worker_role(self) -> str:
        return str(conninfo_to_dict(self.worker)["user"])


def role_names(database: str) -> dict[str, str]:
    return {role: f"{database}_{role}" for role in ROLES}


def new_passwords() -> dict[str, str]:
    return {role: secrets.token_urlsafe(24) for role in ROLES}


def urls_for(admin: str, database: str, passwords: Mapping[str, str]) -> Urls:
    names = role_names(database)
    return Urls(
        **{role: make_conninfo(admin, user=names[role], password=passwords[role], dbname=database) for role in ROLES}
    )


async def provision(admin: str, database: str, passwords: Mapping[str, str]) -> Urls:
    """Make or mend everything above; safe to repeat, and safe when two processes do it at once."""
    urls = urls_for(admin, database, passwords)
    async with await explained_connect(admin) as conn:
        await check_server(conn)
        await conn.execute("SELECT pg_advisory_lock(%s)", [_LOCK])  # until the connection is closed
        try:
            await _make_roles(conn, database, passwords)
            await _make_database(conn, database)
        except psycopg.errors.InsufficientPrivilege as error:
            raise SetupError(
                "This administrator may not create roles or databases.",
                recovery="Use a role with CREATEROLE and CREATEDB, or a superuser.",
            ) from error
        async with await explained_connect(make_conninfo(admin, dbname=database)) as inside:
            await _make_schema(inside, database)
    return urls


async def check_server(conn: AsyncConnection[object]) -> None:
    if conn.info.server_version < OLDEST_SERVER:
        raise SetupError(
            f"PostgreSQL {conn.info.server_version // 10_000} is too old.",
            recovery="Use PostgreSQL 16 or newer, or leave BUTLER_MEMORY_DATABASE_URL unset for the embedded one.",
        )


async def _make_roles(conn: AsyncConnection[object], database: str, passwords: Mapping[str, str]) -> None:
    for role, name in role_names(database).items():
        with suppress(*_MADE_BY_ANOTHER):
            await conn.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        await conn.execute(
            sql.SQL("ALTER ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(passwords[role]))
        )


async def _make_database(conn: AsyncConnection[object], database: str) -> None:
    owner = role_names(database)["owner"]
    # Only a member of a role may give it a database; a superuser is one of all.
    await conn.execute(sql.SQL("GRANT {} TO CURRENT_USER").format(sql.Identifier(owner)))
    known = await conn.execute("SELECT 1 FROM pg_database WHERE datname = %s", [database])
    if await known.fetchone():
        return
    make = sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(database), sql.Identifier(owner))
    with suppress(*_MADE_BY_ANOTHER):
        await conn.execute(make)


async def _make_schema(conn: AsyncConnection[object], database: str) -> None:
    owner = sql.Identifier(role_names(database)["owner"])
    try:
        with suppress(*_MADE_BY_ANOTHER):
            await conn.execute("CREATE EXTENSION IF NOT EXISTS vector")
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.UndefinedFile) as error:
        raise SetupError(
            "This PostgreSQL server has no pgvector.",
            recovery="Install the pgvector extension on the server, or use the embedded server.",
        ) from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise SetupError(
            "This administrator may not create the pgvector extension.",
            recovery=f"Let a superuser run CREATE EXTENSION vector in the database '{database}', then repeat this.",
        ) from error
    try:
        await conn.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS memory AUTHORIZATION {}").format(owner))
    except psycopg.errors.InsufficientPrivilege as error:
        raise SetupError(
            f"This administrator may not create the schema 'memory' in the database '{database}'.",
            recovery="Use the database's owner or a superuser.",
        ) from error
