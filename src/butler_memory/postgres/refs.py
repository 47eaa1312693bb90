"""Reference counters, apart from the wide rows they belong to (S7)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from butler_memory.domain.kinds import MemoryType
from butler_memory.postgres.database import Conn


async def bump(conn: Conn, tenant: str, counts: Sequence[tuple[tuple[MemoryType, UUID], int]], now: datetime) -> None:
    await conn.execute(
        """
        INSERT INTO memory.refs (tenant_id, type, id, reference_count, last_referenced_at)
        SELECT %(tenant)s, t.type, t.id, t.n, %(now)s
        FROM unnest(%(types)s::text[], %(ids)s::uuid[], %(counts)s::bigint[]) AS t(type, id, n)
        ON CONFLICT (tenant_id, type, id) DO UPDATE
        SET reference_count = refs.reference_count + excluded.reference_count,
            last_referenced_at = greatest(refs.last_referenced_at, excluded.last_referenced_at)
        """,
        {
            "tenant": tenant,
            "now": now,
            "types": [kind for (kind, _), _ in counts],
            "ids": [memory_id for (_, memory_id), _ in counts],
            "counts": [count for _, count in counts],
        },
    )
