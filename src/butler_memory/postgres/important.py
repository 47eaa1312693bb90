"""Which fading facts are too important to be lost (J3): asked about, served as unconfirmed, never ended by time."""

from __future__ import annotations

from datetime import datetime

from butler_memory.domain.kinds import MemoryType, Permanence, Sensitivity
from butler_memory.domain.predicates import BUILTIN
from butler_memory.domain.ranking import CORE_IMPORTANCE
from butler_memory.domain.records import Fact
from butler_memory.postgres.changes import columns_of
from butler_memory.postgres.database import Conn

_CAREFUL = ", ".join(
    f"'{each.name}'"
    for each in BUILTIN
    if each.sensitivity is not Sensitivity.NORMAL or each.permanence is Permanence.PERMANENT
)
_OWN = "SELECT p.name FROM memory.predicates p WHERE p.tenant_id = %(tenant)s"


def important(fact: str) -> str:
    """The condition, for the row that goes by this name: by what it is worth, or by what its predicate is about.

    What a tenant says of a predicate goes before what we do.
    """
    return f"""({fact}.importance >= {CORE_IMPORTANCE} OR {fact}.permanence = 'permanent'
                OR {fact}.predicate_key IN ({_OWN} AND (p.sensitivity <> 'normal' OR p.permanence = 'permanent'))
                OR ({fact}.predicate_key IN ({_CAREFUL}) AND {fact}.predicate_key NOT IN ({_OWN})))"""


async def unconfirmed(
    conn: Conn, tenant: str, scopes: list[str] | None, now: datetime, threshold: float, limit: int
) -> list[Fact]:
    """What somebody should be asked about, whatever its label says; the longest unconfirmed first."""
    found = await conn.execute(
        f"""
        SELECT {columns_of(MemoryType.FACT).as_string(None)} FROM memory.facts f
        WHERE tenant_id = %(tenant)s AND validity IN ('active', 'fading')
          AND (%(scopes)s::text[] IS NULL OR scope = ANY(%(scopes)s)) AND {important("f")}
          AND confidence * exp(-decay_rate * greatest(0, extract(epoch FROM %(now)s - last_confirmed_at) / 86400.0))
              < %(threshold)s
        ORDER BY last_confirmed_at, id LIMIT %(limit)s
        """,
        {"tenant": tenant, "scopes": scopes, "now": now, "threshold": threshold, "limit": limit},
    )
    return [Fact.from_row(row) for row in await found.fetchall()]
