"""What `memory_stats` says of one tenant, in one round trip; and how its jobs do."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from butler_memory.domain.kinds import JobName
from butler_memory.postgres.database import Conn
from butler_memory.postgres.important import important
from butler_memory.postgres.leases import Shard, shards

_LIVE = "IN ('active', 'fading')"
_WARNING = "maturity = 'anti_pattern'"
_PENDING = "consolidation_status = 'pending'"


def _effective(rate: str) -> str:
    return (
        f"confidence * exp(-({rate}) * greatest(0, extract(epoch FROM %(now)s - last_confirmed_at) / 86400.0))"
    )  # fmt: skip


def _by(column: str, of: str, where: str = "true") -> str:
    return (
        f"(SELECT coalesce(jsonb_object_agg(k, n), '{{}}') FROM"
        f" (SELECT {column} AS k, count(*) AS n FROM {of} WHERE {where} GROUP BY 1) x)"
    )


# The dashboard's bands: green, yellow, red; and what is not served any more (S5).
_BAND = """CASE WHEN effective < %(threshold)s THEN 'faded' WHEN effective < 0.5 THEN 'low'
           WHEN effective <= 0.8 THEN 'medium' ELSE 'high' END"""
_FACT_TIER = "CASE WHEN permanence IN ('permanent', 'stable') THEN 'long' ELSE 'mid' END"
_RULE_TIER = "CASE WHEN maturity = 'candidate' THEN 'mid' ELSE 'long' END"

_COUNTS = f"""
WITH f AS MATERIALIZED (
    SELECT f.*, {_effective("decay_rate")} AS effective, {important("f")} AS important FROM memory.facts f
    WHERE tenant_id = %(tenant)s AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s))),
r AS MATERIALIZED (
    SELECT r.*, {_effective(f"CASE WHEN {_WARNING} THEN 0 ELSE decay_rate END")} AS effective FROM memory.rules r
    WHERE tenant_id = %(tenant)s AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s))),
e AS MATERIALIZED (
    SELECT * FROM memory.episodes
    WHERE tenant_id = %(tenant)s AND (%(scopes)s::text[] IS NULL OR butler = ANY(%(scopes)s)))
SELECT
  {_by("validity", "f")} AS facts_by_state,
  {_by("permanence", "f", f"validity {_LIVE}")} AS facts_by_permanence,
  {_by(_FACT_TIER, "f", f"validity {_LIVE}")} AS facts_by_tier,
  {_by(_BAND, "f", f"validity {_LIVE}")} AS facts_by_confidence,
  {_by("status", "r")} AS rules_by_state,
  {_by("maturity", "r", f"status {_LIVE}")} AS rules_by_maturity,
  {_by(_RULE_TIER, "r", f"status {_LIVE}")} AS rules_by_tier,
  {_by(_BAND, "r", f"status {_LIVE}")} AS rules_by_confidence,
  {_by("state", "e")} AS episodes_by_state,
  {_by("consolidation_status", "e")} AS episodes_by_consolidation,
  (SELECT min(created_at) FROM e WHERE {_PENDING}) AS oldest_pending,
  {_by("butler", "e", _PENDING)} AS pending_by_butler,
  (SELECT count(*) FROM e WHERE {_PENDING} AND expires_at <= %(now)s) AS overdue,
  (SELECT count(*) FROM f WHERE validity {_LIVE} AND important AND effective < %(threshold)s) AS unconfirmed,
  (SELECT jsonb_build_object('applied_rules', count(*) FILTER (WHERE applied_count > 0),
                             'applications', coalesce(sum(applied_count), 0),
                             'helpful', coalesce(sum(success_count), 0), 'harmful', coalesce(sum(harmful_count), 0),
                             'average', avg(effectiveness_score) FILTER (WHERE applied_count > 0),
                             'helping', count(*) FILTER (WHERE applied_count > 0 AND effectiveness_score >= 0.6),
                             'warnings', count(*) FILTER (WHERE {_WARNING}))
     FROM r WHERE status {_LIVE}) AS effectiveness,
  (SELECT count(*) FROM f WHERE embedding IS NULL AND validity {_LIVE})
    + (SELECT count(*) FROM r WHERE embedding IS NULL AND status {_LIVE})
    + (SELECT count(*) FROM e WHERE embedding IS NULL AND state = 'active') AS without_vector
"""


async def counts(conn: Conn, tenant: str, scopes: list[str] | None, now: datetime, threshold: float) -> dict[str, Any]:
    found = await conn.execute(_COUNTS, {"tenant": tenant, "scopes": scopes, "now": now, "threshold": threshold})
    row = await found.fetchone()
    assert row is not None
    return row


async def jobs(conn: Conn, tenant: str) -> tuple[list[Shard], dict[JobName, dict[str, Any]]]:
    """The shards of a tenant's jobs, and the last run of each job."""
    found = await conn.execute(
        """
        SELECT j.job, r.butler, r.started_at, r.finished_at, r.outcome, r.reason, r.counts
        FROM unnest(%(jobs)s::text[]) AS j(job) CROSS JOIN LATERAL (
            SELECT * FROM memory.job_runs r WHERE r.tenant_id = %(tenant)s AND r.job = j.job
            ORDER BY r.finished_at DESC, r.id DESC LIMIT 1) r
        """,
        {"tenant": tenant, "jobs": [str(job) for job in JobName]},
    )
    last = {JobName(row.pop("job")): row for row in await found.fetchall()}
    return await shards(conn, tenant), last


async def without_vector(conn: Conn, tenant: str) -> int:
    """Memories in use that search cannot find by meaning."""
    found = await conn.execute(
        f"""
        SELECT (SELECT count(*) FROM memory.facts
                WHERE tenant_id = %(tenant)s AND embedding IS NULL AND validity {_LIVE})
             + (SELECT count(*) FROM memory.rules
                WHERE tenant_id = %(tenant)s AND embedding IS NULL AND status {_LIVE})
             + (SELECT count(*) FROM memory.episodes
                WHERE tenant_id = %(tenant)s AND embedding IS NULL AND state = 'active') AS n
        """,
        {"tenant": tenant},
    )
    row = await found.fetchone()
    return int(row["n"]) if row else 0


async def kept_past_their_time(conn: Conn, tenant: str, now: datetime) -> int:
    """Episodes that would be gone, had consolidation been able to read them (E3)."""
    found = await conn.execute(
        f"SELECT count(*) AS n FROM memory.episodes WHERE tenant_id = %s AND {_PENDING} AND expires_at <= %s",
        [tenant, now],
    )
    row = await found.fetchone()
    return int(row["n"]) if row else 0
