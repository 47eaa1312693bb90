"""Confirm, forget, restore. A repeat is a success that changes nothing (E7, F2, F9)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_never

from butler_memory.domain import lifecycle
from butler_memory.domain.kinds import (
    ConsolidationStatus,
    EpisodeState,
    EventType,
    MemoryType,
    Relation,
    RuleStatus,
    Validity,
    WriteOutcome,
)
from butler_memory.domain.predicates import Registry
from butler_memory.domain.records import AnyMemory, Episode, Fact, Rule
from butler_memory.domain.requests import ConfirmMemory, OneMemory, RestoreMemory
from butler_memory.errors import Conflict
from butler_memory.postgres import facts, memories, predicates, rules
from butler_memory.postgres.access import Tenant
from butler_memory.postgres.changes import Change, Link, apply
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import Principal
from butler_memory.writing.desk import Desk, Written, author_of, changeable, unchanged
from butler_memory.writing.facts import place_of_today, retire, strengthen
from butler_memory.writing.rules import confirm_rule, disabled_rule, known_rule, retire_rule

FORGOTTEN = "forgotten"


async def confirm(desk: Desk, who: Principal, request: ConfirmMemory, now: datetime) -> Written:
    author = author_of(who, request, now)

    async def work(conn: Conn) -> Written:
        memory = await changeable(conn, who, request.type, request.id)
        assert not isinstance(memory, Episode)  # the request refuses episodes
        _require_enabled(memory)
        if not memory.is_live:
            raise Conflict(
                f"This {memory.type} is {memory.condition}; only a live one can be confirmed.",
                reason="not_live",
                recovery="Call memory_restore with the same type and id if it is true after all.",
            )
        confirmed = await memories.said_in_session(
            conn, who.tenant, memory.type, [memory.id], author.session, [EventType.CONFIRMED]
        )
        if confirmed and memory.condition == "active":
            return unchanged(memory)
        await apply(conn, author, [_confirmation(desk, memory, now)])
        return Written(memory.type, memory.id, WriteOutcome.CONFIRMED, Validity.ACTIVE)

    return await desk.database.run(who.tenant, work)


def _require_enabled(memory: AnyMemory) -> None:
    """What a person switched off is not switched on by an agent."""
    if isinstance(memory, Rule) and memory.status is RuleStatus.DISABLED:
        raise disabled_rule(memory)


def _confirmation(desk: Desk, memory: Fact | Rule, now: datetime) -> Change:
    if isinstance(memory, Fact):
        return strengthen(desk, memory, now, confirm=True, changes={})
    return confirm_rule(desk, memory, now)


async def forget(desk: Desk, who: Principal, request: OneMemory, now: datetime) -> Written:
    author = author_of(who, request, now)

    async def work(conn: Conn) -> Written:
        memory = await changeable(conn, who, request.type, request.id)
        if memory.condition == "retracted":
            return unchanged(memory)
        change = Change(memory.type, memory.id, memory.version + 1, EventType.RETRACTED, _retracted(memory, now))
        await apply(conn, author, [change])
        return Written(memory.type, memory.id, WriteOutcome.CONFIRMED, "retracted")

    return await desk.database.run(who.tenant, work)


def _retracted(memory: AnyMemory, now: datetime) -> dict[str, Any]:
    match memory:
        case Fact():
            lifecycle.check_fact_step(memory.validity, Validity.RETRACTED)
            return {"validity": Validity.RETRACTED}
        case Rule():
            lifecycle.check_rule_step(memory.status, RuleStatus.RETRACTED)
            return {"status": RuleStatus.RETRACTED}
        case Episode():
            lifecycle.check_episode_step(memory.state, EpisodeState.RETRACTED)
            values: dict[str, Any] = {"state": EpisodeState.RETRACTED}
            if memory.consolidation_status is ConsolidationStatus.PENDING:
                values |= {
                    "consolidation_status": ConsolidationStatus.FAILED,
                    "last_consolidation_error": FORGOTTEN,
                    "next_consolidation_retry_at": None,
                    "expires_at": lifecycle.kept_for_a_person(memory.expires_at, now),
                }
            return values
    assert_never(memory)


async def restore(desk: Desk, who: Principal, request: RestoreMemory, now: datetime) -> Written:
    author = author_of(who, request, now)
    tenant = await desk.tenant(who.tenant)

    async def work(conn: Conn) -> Written:
        memory = await changeable(conn, who, request.type, request.id)
        _require_enabled(memory)
        if memory.condition not in lifecycle.RESTORABLE:
            return unchanged(memory)
        match memory:
            case Fact():
                changes = await _restored_fact(conn, desk, tenant, memory, request.replace, now)
            case Rule():
                changes = await _restored_rule(conn, desk, memory, request.replace, now)
            case Episode():
                changes = [_restored_episode(memory)]
            case _:
                assert_never(memory)
        await apply(conn, author, changes)
        links = changes[-1].links
        superseded = links[0].target_id if links else None
        return Written(memory.type, memory.id, WriteOutcome.CONFIRMED, "active", superseded, links)

    return await desk.database.run(who.tenant, work)


async def _restored_fact(
    conn: Conn, desk: Desk, tenant: Tenant, fact: Fact, replace: bool, now: datetime
) -> list[Change]:
    lifecycle.check_fact_step(fact.validity, Validity.ACTIVE)
    place = await _place_of_today(conn, tenant, fact)
    await facts.lock_key(conn, fact.tenant_id, fact.subject_key, place["predicate_key"])
    on_key = await facts.live_on_key(conn, fact.tenant_id, fact.subject_key, place["predicate_key"], [fact.scope])
    holder = next((other for other in on_key if other.slot == place["slot"]), None)
    if holder and not replace:
        raise Conflict(
            "Another live fact holds this subject and predicate.",
            reason="key_taken",
            recovery="Call memory_restore with replace=true to supersede it, or leave it as it is.",
            live_id=str(holder.id),
        )
    values = {**place, "validity": Validity.ACTIVE, "superseded_at": None, "last_confirmed_at": now}
    values |= desk.decay_columns(fact.confidence, fact.decay_rate, now)
    links = (Link(Relation.SUPERSEDES, MemoryType.FACT, holder.id),) if holder else ()
    back = Change(MemoryType.FACT, fact.id, fact.version + 1, EventType.RESTORED, values, links=links)
    return [retire(holder, now), back] if holder else [back]


async def _place_of_today(conn: Conn, tenant: Tenant, fact: Fact) -> dict[str, str]:
    """Its predicate may have changed while it was away; only live facts moved with it (F4)."""
    await predicates.lock_predicates(conn, fact.tenant_id, change=False)
    registry = Registry(await predicates.own_predicates(conn, fact.tenant_id), tenant.many_valued)
    return place_of_today(fact, registry, tenant)


async def _restored_rule(conn: Conn, desk: Desk, rule: Rule, replace: bool, now: datetime) -> list[Change]:
    lifecycle.check_rule_step(rule.status, RuleStatus.ACTIVE)
    await rules.lock_meaning(conn, rule.tenant_id, rule.meaning)
    known = await known_rule(conn, rule.tenant_id, rule.meaning, rule.scope)
    if known and not (replace and known.scope == rule.scope):
        raise _said_already(known, rule)
    values = {"status": RuleStatus.ACTIVE, "superseded_at": None, "last_confirmed_at": now}
    values |= desk.fading_of(rule, rule.decay_rate, now)
    links = (Link(Relation.SUPERSEDES, MemoryType.RULE, known.id),) if known else ()
    back = Change(MemoryType.RULE, rule.id, rule.version + 1, EventType.RESTORED, values, links=links)
    return [retire_rule(known, now), back] if known else [back]


def _said_already(known: Rule, rule: Rule) -> Conflict:
    if known.scope == rule.scope:
        recovery = "Call memory_restore with replace=true to supersede it, or use it as it is."
    else:  # for the sake of one scope no rule is taken from all the others
        recovery = "Use that rule: it is global, so it holds here too."
    return Conflict("A live rule says the same already.", reason="key_taken", recovery=recovery, live_id=str(known.id))


def _restored_episode(episode: Episode) -> Change:
    lifecycle.check_episode_step(episode.state, EpisodeState.ACTIVE)
    values: dict[str, Any] = {"state": EpisodeState.ACTIVE}
    if episode.last_consolidation_error == FORGOTTEN:
        lifecycle.check_consolidation_step(episode.consolidation_status, ConsolidationStatus.PENDING)
        values |= {"consolidation_status": ConsolidationStatus.PENDING, "last_consolidation_error": None}
    return Change(MemoryType.EPISODE, episode.id, episode.version + 1, EventType.RESTORED, values)
