"""Deleting episodes whose time is over, and records that nobody needs any more; a bounded batch at a time (E3, E4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from butler_memory.domain.kinds import EventType, TombstoneReason
from butler_memory.domain.records import FromRow
from butler_memory.postgres.changes import Author
from butler_memory.postgres.database import Conn


@dataclass(frozen=True)
class Doomed(FromRow):
    """What is left to know of an episode before it goes."""

    id: UUID
    version: int
    butler: str
    session_id: UUID | None
    occurred_at: datetime
    created_at: datetime
    reason: TombstoneReason
    content: str | None


_COLUMNS = """e.id, e.version, e.butler, e.session_id, e.occurred_at, e.created_at, e.content,
              CASE e.state WHEN 'retracted' THEN 'forgotten' ELSE 'expired' END AS reason"""

# When it came, or a person brought it back to be read.
_WAITING_SINCE = """(SELECT max(v.occurred_at) FROM memory.memory_events v
                     WHERE v.tenant_id = e.tenant_id AND v.entity_type = 'episode' AND v.entity_id = e.id
                       AND v.event_type IN ('created', 'restored', 'requeued'))"""


async def over(conn: Conn, tenant: str, now: datetime, limit: int) -> list[Doomed]:
    """Whose time is over. One that still waits goes only if consolidation could have read it: it has run well since.

    What an import brought stays until it has been read, however often that failed, or until it is forgotten (E8).
    Nothing goes while it is being read.
    """
    found = await conn.execute(
        f"""
        SELECT {_COLUMNS} FROM memory.episodes e
        LEFT JOIN memory.shards s ON (s.tenant_id, s.butler, s.kind) = (e.tenant_id, e.butler, 'consolidate')
        WHERE e.tenant_id = %(tenant)s AND e.expires_at <= %(now)s
          AND coalesce(s.lease_until < clock_timestamp(), true)
          AND (e.consolidation_status = 'consolidated' OR e.state = 'retracted' OR (
               e.source_kind <> 'imported'
               AND (e.consolidation_status <> 'pending' OR s.last_ok_at >= {_WAITING_SINCE})))
        ORDER BY e.expires_at, e.id LIMIT %(limit)s FOR UPDATE OF e
        """,
        {"tenant": tenant, "now": now, "limit": limit},
    )
    return [Doomed.from_row(row) for row in await found.fetchall()]


async def too_many(conn: Conn, tenant: str, capacity: int, limit: int) -> list[Doomed]:
    """The oldest of those that have been read, as many as there are over the capacity."""
    found = await conn.execute(
        f"""
        SELECT {_COLUMNS} FROM memory.episodes e
        LEFT JOIN memory.shards s ON (s.tenant_id, s.butler, s.kind) = (e.tenant_id, e.butler, 'consolidate')
        WHERE e.tenant_id = %(tenant)s AND e.consolidation_status = 'consolidated'
          AND coalesce(s.lease_until < clock_timestamp(), true)
        ORDER BY e.created_at, e.id
        LIMIT least(%(limit)s, greatest(0, (SELECT count(*) FROM memory.episodes c
                                            WHERE c.tenant_id = %(tenant)s) - %(capacity)s))
        FOR UPDATE OF e
        """,
        {"tenant": tenant, "capacity": capacity, "limit": limit},
    )
    return [Doomed.from_row(row) for row in await found.fetchall()]


async def excess(conn: Conn, tenant: str, capacity: int) -> int:
    """How many are there over the capacity."""
    found = await conn.execute("SELECT count(*) AS n FROM memory.episodes WHERE tenant_id = %s", [tenant])
    row = await found.fetchone()
    assert row is not None
    return max(0, int(row["n"]) - capacity)


async def bury(conn: Conn, author: Author, doomed: Sequence[Doomed], digests: Sequence[str]) -> None:
    """A tombstone without content, the last event, and everything that was said is gone with the row (E4, L3)."""
    await conn.execute(
        """
        WITH gone AS MATERIALIZED (
            SELECT * FROM unnest(%(ids)s::uuid[], %(versions)s::int[], %(reasons)s::text[], %(digests)s::text[])
                          AS g(id, version, reason, digest)
        ),
        buried AS (
            INSERT INTO memory.episode_tombstones (tenant_id, id, butler, session_id, occurred_at, created_at,
                                                   deleted_at, reason, digest)
            SELECT e.tenant_id, e.id, e.butler, e.session_id, e.occurred_at, e.created_at, %(now)s, g.reason, g.digest
            FROM memory.episodes e JOIN gone g USING (id) WHERE e.tenant_id = %(tenant)s
        ),
        bodies AS (
            DELETE FROM memory.memory_event_bodies b USING memory.memory_events v, gone
            WHERE v.tenant_id = %(tenant)s AND v.entity_type = 'episode' AND v.entity_id = gone.id
              AND b.tenant_id = %(tenant)s AND b.event_id = v.id
        ),
        references_ AS (
            DELETE FROM memory.refs r USING gone
            WHERE r.tenant_id = %(tenant)s AND r.type = 'episode' AND r.id = gone.id
        ),
        vectors AS (
            DELETE FROM memory.new_vectors n USING gone
            WHERE n.tenant_id = %(tenant)s AND n.type = 'episode' AND n.id = gone.id
        ),
        deleted AS (
            DELETE FROM memory.episodes e USING gone WHERE e.tenant_id = %(tenant)s AND e.id = gone.id RETURNING e.id
        )
        INSERT INTO memory.memory_events (tenant_id, event_type, entity_type, entity_id, entity_version, occurred_at,
                                          actor, payload)
        SELECT %(tenant)s, %(event)s, 'episode', gone.id, gone.version + 1, %(now)s, %(actor)s,
               jsonb_build_object('set', '{}'::jsonb, 'reason', gone.reason)
        FROM gone JOIN deleted USING (id) ORDER BY gone.id
        """,
        {
            "tenant": author.tenant,
            "now": author.now,
            "actor": author.actor,
            "event": EventType.DELETED,
            "ids": [each.id for each in doomed],
            "versions": [each.version for each in doomed],
            "reasons": [str(each.reason) for each in doomed],
            "digests": list(digests),
        },
    )


# What else ends with time, and by which column.
RECORDS = {
    "idempotency_keys": "created_at",
    "served_contexts": "served_at",
    "job_runs": "finished_at",
    "reviews": "closed_at",  # which an open one does not have
    "consolidation_runs": "finished_at",
}
# A proposal whose episodes have all gone can be accepted by nobody; what they said goes with them (E4, L3).
_GONE = {
    "reviews": "state = 'open' AND proposal ? 'episodes' AND NOT EXISTS (SELECT 1 FROM memory.episodes e"
    " WHERE e.tenant_id = %(tenant)s AND reviews.proposal -> 'episodes' ? e.id::text)"
}
_STILL_NEEDED = {
    "consolidation_runs": "id IN (SELECT run_id FROM memory.reviews r"
    " WHERE r.tenant_id = %(tenant)s AND r.state = 'open' AND r.run_id IS NOT NULL)"
}


async def forget_records(conn: Conn, tenant: str, table: str, before: datetime, limit: int) -> int:
    key = "key" if table == "idempotency_keys" else "id"
    done = await conn.execute(
        f"""
        DELETE FROM memory.{table} WHERE tenant_id = %(tenant)s AND {key} IN (
            SELECT {key} FROM memory.{table} WHERE tenant_id = %(tenant)s
              AND ({RECORDS[table]} < %(before)s AND NOT {_STILL_NEEDED.get(table, "false")}
                   OR {_GONE.get(table, "false")})
            ORDER BY {RECORDS[table]} LIMIT %(limit)s)
        """,
        {"tenant": tenant, "before": before, "limit": limit},
    )
    return done.rowcount
