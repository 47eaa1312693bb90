"""Counts for `memory_stats`, in one round trip."""

from __future__ import annotations

from typing import Any

from butler_memory.postgres.database import Conn


async def counts(conn: Conn, tenant: str, scopes: list[str] | None) -> dict[str, Any]:
    found = await conn.execute(
        """
        WITH f AS (SELECT * FROM memory.facts WHERE tenant_id = %(tenant)s
                   AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s))),
             r AS (SELECT * FROM memory.rules WHERE tenant_id = %(tenant)s
                   AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s))),
             e AS (SELECT * FROM memory.episodes WHERE tenant_id = %(tenant)s
                   AND (%(scopes)s::text[] IS NULL OR butler = ANY(%(scopes)s)))
        SELECT
          (SELECT coalesce(jsonb_object_agg(k, n), '{}') FROM (SELECT validity k, count(*) n FROM f GROUP BY 1) x)
            AS facts_by_state,
          (SELECT coalesce(jsonb_object_agg(k, n), '{}') FROM (SELECT permanence k, count(*) n FROM f
            WHERE validity IN ('active', 'fading') GROUP BY 1) x) AS facts_by_permanence,
          (SELECT coalesce(jsonb_object_agg(k, n), '{}') FROM (SELECT status k, count(*) n FROM r GROUP BY 1) x)
            AS rules_by_state,
          (SELECT coalesce(jsonb_object_agg(k, n), '{}') FROM (SELECT maturity k, count(*) n FROM r
            WHERE status IN ('active', 'fading') GROUP BY 1) x) AS rules_by_maturity,
          (SELECT coalesce(jsonb_object_agg(k, n), '{}') FROM (SELECT state k, count(*) n FROM e GROUP BY 1) x)
            AS episodes_by_state,
          (SELECT coalesce(jsonb_object_agg(k, n), '{}') FROM (SELECT consolidation_status k, count(*) n FROM e
            GROUP BY 1) x) AS episodes_by_consolidation,
          (SELECT min(created_at) FROM e WHERE consolidation_status = 'pending') AS oldest_pending,
          (SELECT count(*) FROM f WHERE embedding IS NULL AND validity IN ('active', 'fading'))
            + (SELECT count(*) FROM r WHERE embedding IS NULL AND status IN ('active', 'fading'))
            + (SELECT count(*) FROM e WHERE embedding IS NULL AND state = 'active') AS without_vector
        """,
        {"tenant": tenant, "scopes": scopes},
    )
    row = await found.fetchone()
    assert row is not None
    return row
