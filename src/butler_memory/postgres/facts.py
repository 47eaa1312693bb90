"""Facts by key, under the lock that makes writers of one key take turns."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from pgvector import HalfVector

from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.records import Fact
from butler_memory.postgres.changes import columns_of
from butler_memory.postgres.database import Conn

_COLUMNS = columns_of(MemoryType.FACT).as_string(None)


async def lock_key(conn: Conn, tenant: str, subject_key: str, predicate_key: str) -> None:
    """Writers of one key queue here, whatever scope or slot they end in: a row lock alone lets two insert."""
    await conn.execute(
        "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))",
        [f"{tenant}\x1f{subject_key}\x1f{predicate_key}"],
    )


async def live_on_key(conn: Conn, tenant: str, subject_key: str, predicate_key: str, scopes: list[str]) -> list[Fact]:
    found = await conn.execute(
        f"""
        SELECT {_COLUMNS} FROM memory.facts
        WHERE tenant_id = %s AND subject_key = %s AND predicate_key = %s AND scope = ANY(%s)
          AND validity IN ('active', 'fading')
        ORDER BY created_at, id
        """,
        [tenant, subject_key, predicate_key, scopes],
    )
    return [Fact.from_row(row) for row in await found.fetchall()]


async def superseded_in_slot(
    conn: Conn, tenant: str, subject_key: str, predicate_key: str, scope: str, slot: str
) -> list[Fact]:
    """What was known there before, the latest first."""
    found = await conn.execute(
        f"""
        SELECT {_COLUMNS} FROM memory.facts
        WHERE tenant_id = %s AND subject_key = %s AND predicate_key = %s AND scope = %s AND slot = %s
          AND validity = 'superseded'
        ORDER BY created_at DESC, id
        """,
        [tenant, subject_key, predicate_key, scope, slot],
    )
    return [Fact.from_row(row) for row in await found.fetchall()]


async def live_of_predicates(conn: Conn, tenant: str, predicate_keys: list[str]) -> list[Fact]:
    """All live facts under these predicates, for a change of what they mean."""
    found = await conn.execute(
        f"""
        SELECT {_COLUMNS} FROM memory.facts
        WHERE tenant_id = %s AND predicate_key = ANY(%s) AND validity IN ('active', 'fading')
        ORDER BY scope, subject_key, created_at, id FOR UPDATE
        """,
        [tenant, predicate_keys],
    )
    return [Fact.from_row(row) for row in await found.fetchall()]


async def close_values(
    conn: Conn, tenant: str, fact: dict[str, Any], vector: Any, version: str, at_least: float
) -> list[UUID]:
    """Other live values of the same many-valued key that mean nearly the same (F11): to link, not to merge."""
    found = await conn.execute(
        """
        SELECT id FROM memory.facts
        WHERE tenant_id = %(tenant)s AND subject_key = %(subject)s AND predicate_key = %(predicate)s
          AND scope = %(scope)s AND validity IN ('active', 'fading') AND embedding_version = %(version)s
          AND 1 - (embedding <=> %(vector)s) >= %(at_least)s
        ORDER BY embedding <=> %(vector)s, id LIMIT 3
        """,
        {
            "tenant": tenant,
            "subject": fact["subject_key"],
            "predicate": fact["predicate_key"],
            "scope": fact["scope"],
            "vector": HalfVector(vector),
            "version": version,
            "at_least": at_least,
        },
    )
    return [row["id"] for row in await found.fetchall()]
