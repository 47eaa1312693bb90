"""What time does to memories, a batch at a time: set-based, by index range, an event for each step (J2)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg import sql
from psycopg.types.json import Jsonb

from butler_memory.domain.kinds import EventType, MemoryType
from butler_memory.domain.records import Rule
from butler_memory.postgres.changes import TABLES, Author, columns_of, plain_json
from butler_memory.postgres.database import Conn
from butler_memory.postgres.important import important

_STATE = {MemoryType.FACT: "validity", MemoryType.RULE: "status"}
_NO_WARNING = "m.maturity <> 'anti_pattern'"
# A fact that starts fading also raises an alert, an event of its own: it says whether somebody should be asked.
_STEPS = {
    MemoryType.FACT: (EventType.FADED, EventType.CONFIDENCE_ALERT),
    MemoryType.RULE: (EventType.FADED,),
}

_TRANSITION = """
WITH due AS MATERIALIZED (
    SELECT m.id, {asks} AS asks FROM memory.{table} m
    WHERE m.tenant_id = %(tenant)s AND m.{state} = ANY(%(from)s) AND m.{column} <= %(now)s AND {also}
    ORDER BY m.{column}, m.id LIMIT %(limit)s FOR UPDATE OF m
),
changed AS (
    UPDATE memory.{table} m SET {state} = %(to)s, version = m.version + %(steps)s
    FROM due WHERE m.tenant_id = %(tenant)s AND m.id = due.id
    RETURNING m.id, m.version - %(steps)s AS before, due.asks
),
written AS (
    INSERT INTO memory.memory_events (tenant_id, event_type, entity_type, entity_id, entity_version, occurred_at,
                                      actor, payload)
    SELECT %(tenant)s, step.event, %(type)s, changed.id, changed.before + step.n, %(now)s, %(actor)s,
           CASE WHEN step.n = 1 THEN jsonb_build_object('set', jsonb_build_object(%(state)s::text, %(to)s::text))
                ELSE jsonb_build_object('set', '{{}}'::jsonb, 'asks', changed.asks) END
    FROM changed CROSS JOIN unnest(%(events)s::text[]) WITH ORDINALITY AS step(event, n)
    ORDER BY changed.id, step.n
)
SELECT count(*) AS n FROM changed
"""


async def fade(conn: Conn, author: Author, kind: MemoryType, limit: int) -> int:
    """Active ones whose confidence has fallen under what is served; returns how many."""
    also = "true" if kind is MemoryType.FACT else _NO_WARNING
    return await _transition(conn, author, kind, "fades_at", ["active"], "fading", _STEPS[kind], also, limit)


async def expire(conn: Conn, author: Author, kind: MemoryType, limit: int) -> int:
    """Live ones whose confidence is all but gone; an important fact waits to be asked about instead (J3)."""
    also = f"NOT {important('m')}" if kind is MemoryType.FACT else _NO_WARNING
    live = ["active", "fading"]
    return await _transition(
        conn, author, kind, "expires_at_conf", live, "expired", (EventType.EXPIRED,), also, limit
    )  # fmt: skip


async def _transition(
    conn: Conn,
    author: Author,
    kind: MemoryType,
    column: str,
    before: Sequence[str],
    after: str,
    events: Sequence[EventType],
    also: str,
    limit: int,
) -> int:
    statement = _TRANSITION.format(
        table=TABLES[kind],
        state=_STATE[kind],
        column=column,
        also=also,
        asks=important("m") if kind is MemoryType.FACT else "false",
    )
    found = await conn.execute(
        statement,
        {
            "tenant": author.tenant,
            "type": kind,
            "state": _STATE[kind],
            "from": list(before),
            "to": after,
            "now": author.now,
            "actor": author.actor,
            "events": [str(event) for event in events],
            "steps": len(events),
            "limit": limit,
        },
    )
    row = await found.fetchone()
    return int(row["n"]) if row else 0


async def fading_times(conn: Conn, tenant: str, kind: MemoryType, after: UUID | None, limit: int) -> list[Any]:
    """Live memories that decay, by id: what their times to fade and expire are made of."""
    no_warning = sql.SQL("true" if kind is MemoryType.FACT else _NO_WARNING)
    found = await conn.execute(
        sql.SQL(
            "SELECT m.id, m.confidence, m.decay_rate, m.last_confirmed_at, m.fades_at, m.expires_at_conf"
            " FROM memory.{table} m WHERE m.tenant_id = %(tenant)s AND m.{state} IN ('active', 'fading')"
            " AND (%(after)s::uuid IS NULL OR m.id > %(after)s) AND {no_warning}"
            " ORDER BY m.id LIMIT %(limit)s FOR UPDATE"
        ).format(table=sql.Identifier(TABLES[kind]), state=sql.Identifier(_STATE[kind]), no_warning=no_warning),
        {"tenant": tenant, "after": after, "limit": limit},
    )
    return await found.fetchall()


async def set_fading_times(
    conn: Conn, author: Author, kind: MemoryType, times: Sequence[tuple[UUID, datetime | None, datetime | None]]
) -> None:
    """New thresholds, new times: a revision of each row that they move."""
    await conn.execute(
        sql.SQL(
            """
            WITH changed AS (
                UPDATE memory.{table} m
                SET fades_at = t.fades_at, expires_at_conf = t.expires_at_conf, version = m.version + 1
                FROM unnest(%(ids)s::uuid[], %(fades)s::timestamptz[], %(expires)s::timestamptz[])
                     AS t(id, fades_at, expires_at_conf)
                WHERE m.tenant_id = %(tenant)s AND m.id = t.id
                RETURNING m.id, m.version
            )
            INSERT INTO memory.memory_events (tenant_id, event_type, entity_type, entity_id, entity_version,
                                              occurred_at, actor, payload)
            SELECT %(tenant)s, 'revised', %(type)s, changed.id, changed.version, %(now)s, %(actor)s,
                   jsonb_build_object('set', p.said)
            FROM changed JOIN unnest(%(ids)s::uuid[], %(said)s::jsonb[]) AS p(id, said) USING (id)
            """
        ).format(table=sql.Identifier(TABLES[kind])),
        {
            "tenant": author.tenant,
            "type": kind,
            "now": author.now,
            "actor": author.actor,
            "ids": [memory_id for memory_id, _, _ in times],
            "fades": [fades for _, fades, _ in times],
            "expires": [expires for _, _, expires in times],
            "said": [Jsonb(_said(fades, expires)) for _, fades, expires in times],
        },
    )


def _said(fades: datetime | None, expires: datetime | None) -> dict[str, Any]:
    said: dict[str, Any] = plain_json({"fades_at": fades, "expires_at_conf": expires})
    return said


async def judged(conn: Conn, tenant: str, after: UUID | None, limit: int) -> list[Rule]:
    """Live rules that somebody has applied, by id, held until the transaction ends."""
    found = await conn.execute(
        sql.SQL(
            "SELECT {} FROM memory.rules WHERE tenant_id = %(tenant)s AND status IN ('active', 'fading')"
            " AND maturity <> 'anti_pattern' AND applied_count > 0 AND (%(after)s::uuid IS NULL OR id > %(after)s)"
            " ORDER BY id LIMIT %(limit)s FOR UPDATE"
        ).format(columns_of(MemoryType.RULE)),
        {"tenant": tenant, "after": after, "limit": limit},
    )
    return [Rule.from_row(row) for row in await found.fetchall()]
