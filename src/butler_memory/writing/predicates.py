"""A person changes what a predicate means; live facts get their new keys and slots in the same transaction (F4)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime

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
from butler_memory.writing.facts import place_of_today


async def registry(desk: Desk, who: Principal) -> Registry:
    tenant = await desk.tenant(who.tenant)
    own = await desk.database.run(who.tenant, lambda conn: predicates.own_predicates(conn, who.tenant))
    return Registry(own, tenant.many_valued)


async def set_predicate(desk: Desk, who: Principal, entry: Predicate, request: Request, now: datetime) -> int:
    """Returns how many live facts got a new key or slot."""
    require_admin(who)
    tenant = await desk.tenant(who.tenant)
    entry = _normalised(entry)

    async def work(conn: Conn) -> int:
        await predicates.lock_predicates(conn, who.tenant, change=True)
        before = Registry(await predicates.own_predicates(conn, who.tenant), tenant.many_valued)
        _require_free(before, entry)
        await predicates.set_predicate(conn, who.tenant, entry, now)
        if not tenant.many_valued:
            return 0
        after = replace(before, own={**before.own, entry.name: entry})
        affected = await facts.live_of_predicates(conn, who.tenant, _keys_concerned(before, after, entry))
        changes = _moves(affected, after, entry, tenant)
        await apply(conn, author_of(who, request, now), changes)
        return len(changes)

    return await desk.database.run(who.tenant, work)


def _normalised(entry: Predicate) -> Predicate:
    name = key(entry.name)
    aliases = dict.fromkeys(map(key, entry.aliases))
    return replace(entry, name=name, aliases=tuple(alias for alias in aliases if alias != name))


def _require_free(known: Registry, entry: Predicate) -> None:
    taken = known.taken(entry)
    if taken:
        raise Conflict(
            "A name or alias given here belongs to another of your own predicates already.",
            reason="alias_taken",
            recovery="Leave it out, or take it away from the other predicate first.",
            taken=taken,
        )


def _keys_concerned(before: Registry, after: Registry, entry: Predicate) -> list[str]:
    """Where the facts of its words are, by what the words meant, and where they belong now."""
    had = before.own[entry.name].aliases if entry.name in before.own else ()
    words = (entry.name, *entry.aliases, *had)
    return sorted({registry.find(word).name for registry in (before, after) for word in words})


def _moves(affected: list[Fact], registry: Registry, entry: Predicate, tenant: Tenant) -> list[Change]:
    """Each fact goes where its own word leads today: by an alias that was added, or one that was taken away."""
    places: dict[tuple[str, str, str, str], list[Fact]] = defaultdict(list)
    changes = []
    for fact in affected:
        place = place_of_today(fact, registry, tenant)
        places[(fact.scope, fact.subject_key, place["predicate_key"], place["slot"])].append(fact)
        if any(getattr(fact, name) != value for name, value in place.items()):
            changes.append(Change(MemoryType.FACT, fact.id, fact.version + 1, EventType.RESLOTTED, place))
    crowded = [str(fact.id) for group in places.values() if len(group) > 1 for fact in group]
    if crowded:
        raise Conflict(
            f"'{entry.name}' holds several live values for one subject, so it cannot hold only one.",
            reason="several_values",
            recovery="Forget all but one of the listed facts for each subject, then set it again.",
            fact_ids=crowded,
        )
    # Who leaves goes first, so that nobody arrives in a place that is still held.
    return sorted(changes, key=lambda change: change.values["predicate_key"] == entry.name)
