"""Reading events: the feed of a tenant in an order that skips nothing, and the trail of one memory."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from psycopg import sql

from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.story import Happened
from butler_memory.postgres.database import Conn

# Whose events a caller may see: those of memories whose row, or tombstone, is in one of the caller's scopes.
_IN_SCOPE = sql.SQL(
    """
    (%(scopes)s::text[] IS NULL OR CASE e.entity_type
        WHEN 'fact' THEN EXISTS (
            SELECT 1 FROM memory.facts f
            WHERE (f.tenant_id, f.id) = (e.tenant_id, e.entity_id) AND f.scope = ANY(%(scopes)s))
        WHEN 'rule' THEN EXISTS (
            SELECT 1 FROM memory.rules r
            WHERE (r.tenant_id, r.id) = (e.tenant_id, e.entity_id) AND r.scope = ANY(%(scopes)s))
        ELSE EXISTS (
            SELECT 1 FROM memory.episodes p
            WHERE (p.tenant_id, p.id) = (e.tenant_id, e.entity_id) AND p.butler = ANY(%(butlers)s))
          OR EXISTS (
            SELECT 1 FROM memory.episode_tombstones t
            WHERE (t.tenant_id, t.id) = (e.tenant_id, e.entity_id) AND t.butler = ANY(%(butlers)s))
        END)
    """
)
_FEED = sql.SQL(
    """
    SELECT * FROM (
        SELECT e.id, e.entity_type, e.entity_id, e.entity_version, e.event_type, e.occurred_at, e.actor, e.request_id,
               e.payload, NULL::jsonb AS body
        FROM memory.memory_events e
        WHERE e.tenant_id = %(tenant)s AND e.id > %(after)s AND e.id <= %(upto)s AND {in_scope}
        ORDER BY e.id {direction} LIMIT %(limit)s
    ) AS found ORDER BY id
    """
)


async def newest_id(conn: Conn, tenant: str) -> int:
    """The id of the last event that can be seen; 0 before the first."""
    found = await conn.execute(
        "SELECT coalesce(max(id), 0) AS id FROM memory.memory_events WHERE tenant_id = %s", [tenant]
    )
    row = await found.fetchone()
    assert row is not None
    return int(row["id"])


async def writers(conn: Conn) -> frozenset[str]:
    """The transactions that have begun to write events, here or in any other tenant, and are not over yet.

    PostgreSQL locks the table for such a transaction before it takes its first event id, and lets go only after
    its commit can be seen.
    """
    found = await conn.execute(
        """
        SELECT virtualtransaction AS it FROM pg_catalog.pg_locks
        WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
          AND relation = 'memory.memory_events'::regclass
          AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        """
    )
    return frozenset(row["it"] for row in await found.fetchall())


async def end_of_window(conn: Conn, tenant: str, after: int, upto: int, size: int) -> int:
    """The id of the last of the next `size` events, whoever may see them."""
    found = await conn.execute(
        "SELECT coalesce(max(id), %(after)s) AS id FROM (SELECT id FROM memory.memory_events"
        " WHERE tenant_id = %(tenant)s AND id > %(after)s AND id <= %(upto)s ORDER BY id LIMIT %(size)s) AS ahead",
        {"tenant": tenant, "after": after, "upto": upto, "size": size},
    )
    row = await found.fetchone()
    assert row is not None
    return int(row["id"])


async def start_of_window(conn: Conn, tenant: str, upto: int, size: int) -> int:
    """The id before the first of the last `size` events."""
    found = await conn.execute(
        "SELECT coalesce(min(id), 1) - 1 AS id FROM (SELECT id FROM memory.memory_events"
        " WHERE tenant_id = %(tenant)s AND id <= %(upto)s ORDER BY id DESC LIMIT %(size)s) AS back",
        {"tenant": tenant, "upto": upto, "size": size},
    )
    row = await found.fetchone()
    assert row is not None
    return int(row["id"])


async def between(
    conn: Conn,
    tenant: str,
    after: int,
    upto: int,
    scopes: Sequence[str] | None,
    butlers: Sequence[str] | None,
    limit: int,
    *,
    latest: bool,
) -> list[Happened]:
    """At most `limit` events that these scopes may see, in the order of their ids: the first ones or the latest."""
    query = _FEED.format(in_scope=_IN_SCOPE, direction=sql.SQL("DESC" if latest else "ASC"))
    found = await conn.execute(
        query,
        {
            "tenant": tenant,
            "after": after,
            "upto": upto,
            "scopes": list(scopes) if scopes is not None else None,
            "butlers": list(butlers) if butlers is not None else None,
            "limit": limit,
        },
    )
    return [_happened(row) for row in await found.fetchall()]


async def of_memory(conn: Conn, tenant: str, kind: MemoryType, memory_id: UUID) -> list[Happened]:
    """The whole trail of one memory, with what is left of its text."""
    found = await conn.execute(
        """
        SELECT e.id, e.entity_type, e.entity_id, e.entity_version, e.event_type, e.occurred_at, e.actor, e.request_id,
               e.payload, b.body
        FROM memory.memory_events e
        LEFT JOIN memory.memory_event_bodies b ON (b.tenant_id, b.event_id) = (e.tenant_id, e.id)
        WHERE e.tenant_id = %s AND e.entity_type = %s AND e.entity_id = %s ORDER BY e.entity_version
        """,
        [tenant, kind, memory_id],
    )
    return [_happened(row) for row in await found.fetchall()]


async def butler_of_deleted(conn: Conn, tenant: str, episode_id: UUID) -> str | None:
    """Whose episode it was that left this tombstone."""
    found = await conn.execute(
        "SELECT butler FROM memory.episode_tombstones WHERE tenant_id = %s AND id = %s", [tenant, episode_id]
    )
    row = await found.fetchone()
    return str(row["butler"]) if row else None


def _happened(row: dict[str, object]) -> Happened:
    return Happened.from_row(
        row | {"type": row["entity_type"], "memory_id": row["entity_id"], "version": row["entity_version"]}
    )
