"""Streams of a whole tenant, each in the order of the memories' ids, for the replay (L3).

Server-side cursors: however much a tenant has, only a few hundred rows of it are here at a time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import AsyncServerCursor, sql
from psycopg.rows import DictRow, dict_row, tuple_row

from butler_memory.domain.kinds import EventType, MemoryType
from butler_memory.domain.replay import LinkKey, Told, TrailEvent
from butler_memory.postgres.changes import TABLES, columns_of
from butler_memory.postgres.database import Conn

# Up to 32 kB of text each.
ROWS_AT_A_TIME = 500

_EVENTS = sql.SQL(
    """
    SELECT e.id, e.entity_id, e.entity_version, e.event_type, e.occurred_at, e.payload, b.body
    FROM memory.memory_events e
    LEFT JOIN memory.memory_event_bodies b ON (b.tenant_id, b.event_id) = (e.tenant_id, e.id)
    WHERE e.tenant_id = %(tenant)s AND e.entity_type = %(type)s
    ORDER BY e.entity_id, e.entity_version
    """
)
_LINKS = sql.SQL(
    """
    SELECT source_id, relation, target_type, target_id::text, created_at FROM memory.memory_links
    WHERE tenant_id = %(tenant)s AND source_type = %(type)s ORDER BY source_id
    """
)
_TOMBSTONES = sql.SQL(
    """
    SELECT id, butler, session_id, occurred_at, created_at, deleted_at, reason FROM memory.episode_tombstones
    WHERE tenant_id = %(tenant)s ORDER BY id
    """
)
_APPLICATIONS = sql.SQL(
    """
    SELECT rule_id, count(*) AS applied_count, count(*) FILTER (WHERE outcome = 'helpful') AS success_count,
           count(*) FILTER (WHERE outcome = 'harmful') AS harmful_count
    FROM memory.rule_applications WHERE tenant_id = %(tenant)s GROUP BY rule_id ORDER BY rule_id
    """
)


async def told(
    conn: Conn, tenant: str, kind: MemoryType, folded: Callable[[int], None]
) -> AsyncGenerator[tuple[UUID, Told], None]:
    """Each memory of one type as its events tell it. `folded` hears how many events went in."""
    memory: Told | None = None
    async with _streaming(conn, f"events_of_{kind}", _EVENTS, tenant, kind, tuple_row) as cursor:
        while batch := await cursor.fetchmany(ROWS_AT_A_TIME):
            for row in batch:
                event = TrailEvent(row[0], row[1], row[2], EventType(row[3]), row[4], row[5], row[6])
                if memory is None or event.memory_id != memory.id:
                    if memory is not None:
                        yield memory.id, memory
                    memory = Told(kind, event.memory_id)
                memory.add(event)
            folded(len(batch))
    if memory is not None:
        yield memory.id, memory


async def rows(conn: Conn, tenant: str, kind: MemoryType) -> AsyncGenerator[tuple[UUID, DictRow], None]:
    query = sql.SQL("SELECT {} FROM memory.{} WHERE tenant_id = %(tenant)s ORDER BY id").format(
        columns_of(kind), sql.Identifier(TABLES[kind])
    )
    async with _streaming(conn, f"rows_of_{kind}", query, tenant, kind, dict_row) as cursor:
        while batch := await cursor.fetchmany(ROWS_AT_A_TIME):
            for row in batch:
                yield row["id"], row


async def links(
    conn: Conn, tenant: str, kind: MemoryType
) -> AsyncGenerator[tuple[UUID, dict[LinkKey, datetime]], None]:
    """The links that start at each memory, all of one memory together."""
    source: UUID | None = None
    found: dict[LinkKey, datetime] = {}
    async with _streaming(conn, f"links_of_{kind}", _LINKS, tenant, kind, tuple_row) as cursor:
        while batch := await cursor.fetchmany(ROWS_AT_A_TIME):
            for start, relation, target_type, target, created_at in batch:
                if source is not None and start != source:
                    yield source, found
                    found = {}
                source = start
                found[(relation, target_type, target)] = created_at
    if source is not None:
        yield source, found


async def tombstones(conn: Conn, tenant: str) -> AsyncGenerator[tuple[UUID, DictRow], None]:
    async with _streaming(conn, "tombstones", _TOMBSTONES, tenant, MemoryType.EPISODE, dict_row) as cursor:
        while batch := await cursor.fetchmany(ROWS_AT_A_TIME):
            for row in batch:
                yield row["id"], row


async def applications(conn: Conn, tenant: str) -> AsyncGenerator[tuple[UUID, DictRow], None]:
    """How often each rule was marked, and how."""
    async with _streaming(conn, "applications", _APPLICATIONS, tenant, MemoryType.RULE, dict_row) as cursor:
        while batch := await cursor.fetchmany(ROWS_AT_A_TIME):
            for row in batch:
                yield row["rule_id"], row


@asynccontextmanager
async def _streaming(
    conn: Conn, name: str, query: sql.SQL | sql.Composed, tenant: str, kind: MemoryType, row_factory: Any
) -> AsyncIterator[AsyncServerCursor[Any]]:
    async with AsyncServerCursor[Any](conn, name, row_factory=row_factory) as cursor:
        await cursor.execute(query, {"tenant": tenant, "type": kind})
        yield cursor
