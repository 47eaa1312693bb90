"""A person changes what a predicate means; live facts get their new slots in the same transaction (F4)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime
from typing import Any

from butler_memory.domain.kinds import EventType, MemoryType
from butler_memory.domain.predicates import Predicate, Registry
from butler_memory.domain.records import Fact
from butler_memory.domain.requests import Request
from butler_memory.domain.text import key
from butler_memory.errors import Conflict
from butler_memory.postgres import facts, predicates
from butler_memory.postgres.access import Tenant
from butler_memory.postgres.changes import Change, apply
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import Principal, require_admin
from butler_memory.writing.desk import Desk, author_of
from butler_memory.writing.facts import current_slot


async def registry(desk: Desk, who: Principal) -> Registry:
    tenant = await desk.tenant(who.tenant)
    own = await desk.database.run(who.tenant, lambda conn: predicates.own_predicates(conn, who.tenant))
    return Registry(own, tenant.many_valued)


async def set_predicate(desk: Desk, who: Principal, entry: Predicate, request: Request, now: datetime) -> int:
    """Returns how many live facts got a new slot."""
    require_admin(who)
    tenant = await desk.tenant(who.tenant)
    entry = replace(entry, name=key(entry.name), aliases=tuple(map(key, entry.aliases)))

    async def work(conn: Conn) -> int:
        await predicates.lock_predicates(conn, who.tenant, change=True)
        await predicates.set_predicate(conn, who.tenant, entry, now)
        if not tenant.many_valued:
            return 0
        affected = await facts.live_of_predicates(conn, who.tenant, [entry.name, *entry.aliases])
        changes = _moves(affected, entry, tenant)
        await apply(conn, author_of(who, request, now), changes)
        return len(changes)

    return await desk.database.run(who.tenant, work)


def _moves(affected: list[Fact], entry: Predicate, tenant: Tenant) -> list[Change]:
    places: dict[tuple[str, str, str], list[Fact]] = defaultdict(list)
    changes = []
    for fact in affected:
        slot = current_slot(fact, entry, tenant)
        places[(fact.scope, fact.subject_key, slot)].append(fact)
        moved: dict[str, Any] = {"slot": slot, "predicate_key": entry.name}
        if any(getattr(fact, name) != value for name, value in moved.items()):
            changes.append(Change(MemoryType.FACT, fact.id, fact.version + 1, EventType.RESLOTTED, moved))
    crowded = [str(fact.id) for group in places.values() if len(group) > 1 for fact in group]
    if crowded:
        raise Conflict(
            f"'{entry.name}' holds several live values for one subject, so it cannot hold only one.",
            reason="several_values",
            recovery="Forget all but one of the listed facts for each subject, then set it again.",
            fact_ids=crowded,
        )
    return changes
