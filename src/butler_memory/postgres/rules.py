"""Rules by meaning (R8): a duplicate is found by its word set, never by distance alone."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pgvector import HalfVector

from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.records import Rule
from butler_memory.postgres.changes import columns_of
from butler_memory.postgres.database import Conn

_COLUMNS = columns_of(MemoryType.RULE).as_string(None)


async def lock_meaning(conn: Conn, tenant: str, meaning: str) -> None:
    await conn.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 1))", [f"{tenant}\x1f{meaning}"])


async def same_meaning(conn: Conn, tenant: str, meaning: str, scopes: list[str]) -> list[Rule]:
    """Rules with this meaning in these scopes: the live ones, anti-patterns among them, and the disabled ones."""
    found = await conn.execute(
        f"""
        SELECT {_COLUMNS} FROM memory.rules
        WHERE tenant_id = %s AND meaning = %s AND scope = ANY(%s) AND status IN ('active', 'fading', 'disabled')
        ORDER BY created_at, id
        """,
        [tenant, meaning, scopes],
    )
    return [Rule.from_row(row) for row in await found.fetchall()]


async def close_rules(conn: Conn, tenant: str, scope: str, vector: Any, version: str, at_least: float) -> list[UUID]:
    """Live rules of the scope that are near in meaning: to link, not to merge (F11)."""
    found = await conn.execute(
        """
        SELECT id FROM memory.rules
        WHERE tenant_id = %(tenant)s AND scope = %(scope)s AND status IN ('active', 'fading')
          AND embedding_version = %(version)s AND 1 - (embedding <=> %(vector)s) >= %(at_least)s
        ORDER BY embedding <=> %(vector)s, id LIMIT 3
        """,
        {"tenant": tenant, "scope": scope, "vector": HalfVector(vector), "version": version, "at_least": at_least},
    )
    return [row["id"] for row in await found.fetchall()]
