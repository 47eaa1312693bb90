"""Reading single memories of any type, their links and provenance."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import sql

from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.records import AnyMemory
from butler_memory.postgres.changes import RECORDS, TABLES, columns_of
from butler_memory.postgres.database import Conn


async def find(conn: Conn, tenant: str, kind: MemoryType, memory_id: UUID, *, lock: bool = False) -> AnyMemory | None:
    """One memory by id; `lock` holds it until the transaction ends."""
    found = await conn.execute(
        sql.SQL("SELECT {} FROM memory.{} WHERE tenant_id = %s AND id = %s{}").format(
            columns_of(kind), sql.Identifier(TABLES[kind]), sql.SQL(" FOR UPDATE" if lock else "")
        ),
        [tenant, memory_id],
    )
    row = await found.fetchone()
    return RECORDS[kind].from_row(row) if row else None


async def find_many(conn: Conn, tenant: str, kind: MemoryType, ids: Sequence[UUID]) -> dict[UUID, AnyMemory]:
    if not ids:
        return {}
    found = await conn.execute(
        sql.SQL("SELECT {} FROM memory.{} WHERE tenant_id = %s AND id = ANY(%s)").format(
            columns_of(kind), sql.Identifier(TABLES[kind])
        ),
        [tenant, list(ids)],
    )
    return {row["id"]: RECORDS[kind].from_row(row) for row in await found.fetchall()}


async def beside(conn: Conn, tenant: str, kind: MemoryType, memory_id: UUID) -> dict[str, Any]:
    """What is known of a memory outside of its events: which model made its vector, and how often it was used."""
    found = await conn.execute(
        sql.SQL(
            "SELECT m.embedding_version, coalesce(r.reference_count, 0) AS reference_count, r.last_referenced_at"
            " FROM memory.{} m LEFT JOIN memory.refs r ON (r.tenant_id, r.id) = (m.tenant_id, m.id) AND r.type = %s"
            " WHERE m.tenant_id = %s AND m.id = %s"
        ).format(sql.Identifier(TABLES[kind])),
        [kind, tenant, memory_id],
    )
    return await found.fetchone() or {}


async def links(conn: Conn, tenant: str, kind: MemoryType, memory_id: UUID) -> list[dict[str, Any]]:
    """Links at either end of a memory, oldest first; `way` says which end it is."""
    found = await conn.execute(
        """
        SELECT 'out' AS way, relation, target_type AS type, target_id AS id, created_at
        FROM memory.memory_links WHERE tenant_id = %(tenant)s AND source_type = %(type)s AND source_id = %(id)s
        UNION ALL
        SELECT 'in', relation, source_type, source_id, created_at
        FROM memory.memory_links WHERE tenant_id = %(tenant)s AND target_type = %(type)s AND target_id = %(id)s
        ORDER BY created_at, id
        """,
        {"tenant": tenant, "type": kind, "id": memory_id},
    )
    return await found.fetchall()


async def episode_status(conn: Conn, tenant: str, ids: list[UUID]) -> dict[UUID, str]:
    """What became of each episode: available, or expired, forgotten or erased (E4)."""
    found = await conn.execute(
        """
        SELECT id, CASE state WHEN 'active' THEN 'available' ELSE 'forgotten' END AS status
        FROM memory.episodes WHERE tenant_id = %(tenant)s AND id = ANY(%(ids)s)
        UNION ALL
        SELECT id, reason FROM memory.episode_tombstones WHERE tenant_id = %(tenant)s AND id = ANY(%(ids)s)
        """,
        {"tenant": tenant, "ids": ids},
    )
    return {row["id"]: row["status"] for row in await found.fetchall()}


async def said_in_session(
    conn: Conn, tenant: str, kind: MemoryType, ids: Sequence[UUID], session: UUID, events: Sequence[str]
) -> frozenset[UUID]:
    """Which of these memories were already created or confirmed in this session? (F9)"""
    if not ids:
        return frozenset()
    found = await conn.execute(
        """
        SELECT DISTINCT entity_id FROM memory.memory_events
        WHERE tenant_id = %s AND entity_type = %s AND entity_id = ANY(%s)
          AND event_type = ANY(%s) AND payload ->> 'session' = %s
        """,
        [tenant, kind, list(ids), list(events), str(session)],
    )
    return frozenset(row["entity_id"] for row in await found.fetchall())


async def last_said_at(conn: Conn, tenant: str, kind: MemoryType, memory_id: UUID) -> datetime | None:
    """When a memory was last said: in an episode that is evidence for it, or by somebody who called us directly."""
    found = await conn.execute(
        """
        WITH in_episodes AS (
            SELECT max(coalesce(e.occurred_at, t.occurred_at)) AS said_at FROM memory.memory_links l
            LEFT JOIN memory.episodes e ON (e.tenant_id, e.id) = (l.tenant_id, l.target_id)
            LEFT JOIN memory.episode_tombstones t ON (t.tenant_id, t.id) = (l.tenant_id, l.target_id)
            WHERE l.tenant_id = %(tenant)s AND l.source_type = %(kind)s AND l.source_id = %(id)s
              AND l.target_type = 'episode' AND l.relation = 'derived_from'
        ),
        directly AS (
            SELECT max(occurred_at) AS said_at FROM memory.memory_events
            WHERE tenant_id = %(tenant)s AND entity_type = %(kind)s AND entity_id = %(id)s
              AND event_type IN ('created', 'confirmed', 'restored') AND actor NOT LIKE 'job:%%'
        )
        SELECT greatest(e.said_at, d.said_at) AS said_at FROM in_episodes e, directly d
        """,
        {"tenant": tenant, "kind": kind, "id": memory_id},
    )
    row = await found.fetchone()
    return row["said_at"] if row else None


async def newest(
    conn: Conn, tenant: str, kind: MemoryType, scopes: list[str] | None, states: list[str] | None, limit: int
) -> list[AnyMemory]:
    """The latest memories of one type, for `list`."""
    scope_column = "butler" if kind is MemoryType.EPISODE else "scope"
    state_column = {MemoryType.EPISODE: "state", MemoryType.FACT: "validity", MemoryType.RULE: "status"}[kind]
    found = await conn.execute(
        sql.SQL(
            "SELECT {columns} FROM memory.{table} WHERE tenant_id = %(tenant)s"
            " AND (%(scopes)s::text[] IS NULL OR {scope} = ANY(%(scopes)s))"
            " AND (%(states)s::text[] IS NULL OR {state} = ANY(%(states)s))"
            " ORDER BY created_at DESC, id LIMIT %(limit)s"
        ).format(
            columns=columns_of(kind),
            table=sql.Identifier(TABLES[kind]),
            scope=sql.Identifier(scope_column),
            state=sql.Identifier(state_column),
        ),
        {"tenant": tenant, "scopes": scopes, "states": states, "limit": limit},
    )
    return [RECORDS[kind].from_row(row) for row in await found.fetchall()]
