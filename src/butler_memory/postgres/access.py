"""Tenants and tokens: what must be known before a tenant is (G1, G2). Runs as the worker."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from butler_memory.domain.kinds import Role, TriggerClass
from butler_memory.domain.records import FromRow
from butler_memory.postgres.database import Conn


@dataclass(frozen=True)
class Token(FromRow):
    tenant_id: str
    id: UUID
    butler: str
    role: Role
    trigger_class: TriggerClass
    label: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True)
class Tenant:
    """What the engine needs of a tenant for each write."""

    tenant_id: str
    digest_key: bytes
    many_valued: bool


_TOKEN = "tenant_id, id, butler, role, trigger_class, label, created_at, revoked_at"


async def add_tenant(conn: Conn, tenant: str, many_valued: bool, version: str, dimensions: int, now: datetime) -> None:
    """A tenant, where it is new, and that it answers from vectors of this version (L5)."""
    await conn.execute(
        """
        WITH made AS (
            INSERT INTO memory.tenants (tenant_id, digest_key, many_valued, embedding_version, created_at)
            VALUES (%(tenant)s, %(key)s, %(many_valued)s, %(version)s, %(now)s) ON CONFLICT DO NOTHING
            RETURNING tenant_id
        )
        INSERT INTO memory.embedding_versions
            (tenant_id, version, model, dimensions, state, created_at, current_since)
        SELECT tenant_id, %(version)s, split_part(%(version)s, '@', 1), %(dimensions)s, 'current', %(now)s, %(now)s
        FROM made
        """,
        {
            "tenant": tenant,
            "key": secrets.token_bytes(32),
            "many_valued": many_valued,
            "version": version,
            "dimensions": dimensions,
            "now": now,
        },
    )


async def tenants(conn: Conn) -> list[str]:
    found = await conn.execute("SELECT tenant_id FROM memory.tenants ORDER BY tenant_id")
    return [row["tenant_id"] for row in await found.fetchall()]


async def many_valued_choices(conn: Conn) -> set[bool]:
    found = await conn.execute("SELECT DISTINCT many_valued FROM memory.tenants")
    return {row["many_valued"] for row in await found.fetchall()}


async def tenant(conn: Conn, tenant_id: str) -> Tenant | None:
    """Runs as the application: only the tenant's own row is visible."""
    found = await conn.execute(
        "SELECT tenant_id, digest_key, many_valued FROM memory.tenants WHERE tenant_id = %s", [tenant_id]
    )
    row = await found.fetchone()
    return Tenant(row["tenant_id"], bytes(row["digest_key"]), row["many_valued"]) if row else None


async def add_token(conn: Conn, token: Token, token_hash: str) -> None:
    await conn.execute(
        f"INSERT INTO memory.tokens (token_hash, {_TOKEN}) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
        [token_hash, token.tenant_id, token.id, token.butler, token.role, token.trigger_class, token.label,
         token.created_at, token.revoked_at],
    )  # fmt: skip


async def token_by_hash(conn: Conn, token_hash: str) -> Token | None:
    found = await conn.execute(
        f"SELECT {_TOKEN} FROM memory.tokens WHERE token_hash = %s AND revoked_at IS NULL", [token_hash]
    )
    row = await found.fetchone()
    return Token.from_row(row) if row else None


async def tokens(conn: Conn, tenant_id: str | None) -> list[Token]:
    found = await conn.execute(
        f"SELECT {_TOKEN} FROM memory.tokens WHERE %(tenant)s::text IS NULL OR tenant_id = %(tenant)s"
        " ORDER BY created_at, id",
        {"tenant": tenant_id},
    )
    return [Token.from_row(row) for row in await found.fetchall()]


async def revoke(conn: Conn, token_id: UUID, now: datetime) -> bool:
    done = await conn.execute(
        "UPDATE memory.tokens SET revoked_at = coalesce(revoked_at, %s) WHERE id = %s", [now, token_id]
    )
    return done.rowcount == 1
