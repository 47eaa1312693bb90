"""Which fading facts are too important to be lost (J3): asked about, served as unconfirmed, never ended by time."""

from __future__ import annotations

from butler_memory.domain.kinds import Sensitivity
from butler_memory.domain.predicates import BUILTIN
from butler_memory.domain.ranking import CORE_IMPORTANCE

_SENSITIVE = ", ".join(f"'{each.name}'" for each in BUILTIN if each.sensitivity is not Sensitivity.NORMAL)
_OWN = "SELECT p.name FROM memory.predicates p WHERE p.tenant_id = %(tenant)s"


def important(fact: str) -> str:
    """The condition, for the row that goes by this name. What a tenant says of a predicate goes before what we do."""
    return f"""({fact}.importance >= {CORE_IMPORTANCE} OR {fact}.permanence IN ('permanent', 'stable')
                OR {fact}.predicate_key IN ({_OWN} AND p.sensitivity <> 'normal')
                OR ({fact}.predicate_key IN ({_SENSITIVE}) AND {fact}.predicate_key NOT IN ({_OWN})))"""
