"""A tenant's own predicates, over the built-in ones (F4)."""

from __future__ import annotations

from datetime import datetime

from psycopg.types.json import Jsonb

from butler_memory.domain.kinds import Cardinality, Permanence, Sensitivity
from butler_memory.domain.predicates import Predicate
from butler_memory.postgres.database import Conn


async def own_predicates(conn: Conn, tenant: str) -> dict[str, Predicate]:
    found = await conn.execute(
        "SELECT name, cardinality, temporal, permanence, sensitivity, aliases"
        " FROM memory.predicates WHERE tenant_id = %s ORDER BY name",
        [tenant],
    )
    return {
        row["name"]: Predicate(
            row["name"],
            Cardinality(row["cardinality"]),
            row["temporal"],
            Permanence(row["permanence"]),
            Sensitivity(row["sensitivity"]),
            tuple(row["aliases"]),
            builtin=False,
        )
        for row in await found.fetchall()
    }


async def set_predicate(conn: Conn, tenant: str, entry: Predicate, now: datetime) -> None:
    await conn.execute(
        """
        INSERT INTO memory.predicates
            (tenant_id, name, cardinality, temporal, permanence, sensitivity, aliases, changed_at)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
        ON CONFLICT (tenant_id, name) DO UPDATE SET cardinality = excluded.cardinality, temporal = excluded.temporal,
            permanence = excluded.permanence, sensitivity = excluded.sensitivity, aliases = excluded.aliases,
            changed_at = excluded.changed_at
        """,
        [tenant, entry.name, entry.cardinality, entry.temporal, entry.permanence, entry.sensitivity,
         Jsonb(list(entry.aliases)), now],
    )  # fmt: skip


async def lock_predicates(conn: Conn, tenant: str, *, change: bool) -> None:
    """Fact writers share this; a change of a predicate waits for them and holds them off."""
    function = "pg_advisory_xact_lock" if change else "pg_advisory_xact_lock_shared"
    await conn.execute(f"SELECT {function}(hashtextextended(%s, 2))", [tenant])
