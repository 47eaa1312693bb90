"""A person's correction by id. New words make a new row that supersedes the old one; the rest changes in place."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from butler_memory.domain.clock import new_id
from butler_memory.domain.kinds import (
    EventType,
    MemoryType,
    Relation,
    RuleStatus,
    SourceKind,
    Validity,
    WriteOutcome,
)
from butler_memory.domain.predicates import Registry
from butler_memory.domain.records import AnyMemory, Fact, Rule
from butler_memory.domain.requests import EditMemory, session_uuid
from butler_memory.domain.sentence import line_of_fact, one_line
from butler_memory.domain.supersession import holder_of, is_claim, same_content, slot_of, with_decay_rate
from butler_memory.errors import Conflict, InvalidInput
from butler_memory.postgres import facts, predicates, rules
from butler_memory.postgres.access import Tenant
from butler_memory.postgres.changes import Change, Link, apply
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import Principal
from butler_memory.writing.desk import Desk, Written, author_of, changeable, unchanged, visible
from butler_memory.writing.facts import retire
from butler_memory.writing.rules import fresh_rule_values, known_rule, meaning_digest, retire_rule
from butler_memory.writing.vectors import Ticket

# What a successor does not take over from the row it corrects.
_NOT_INHERITED = frozenset({"tenant_id", "id", "version"})


async def edit(desk: Desk, who: Principal, request: EditMemory, now: datetime) -> Written:
    tenant = await desk.tenant(who.tenant)
    before = await desk.database.run(who.tenant, lambda conn: visible(conn, who, request.type, request.id))
    content = request.content if request.content is not None else before.content or ""
    line = (
        line_of_fact(before.subject or "", before.predicate or "", content)
        if isinstance(before, Fact)
        else one_line(content)
    )
    ticket = await desk.vectors.soon(who.tenant, line)

    async def work(conn: Conn) -> Written:
        await _queue_up(conn, tenant, before, content)
        memory = await changeable(conn, who, request.type, request.id)
        assert isinstance(memory, Fact | Rule)
        _require_editable(memory)
        attributes = _attributes(request, memory)
        if request.content is None or request.content == memory.content:  # a capital letter is a correction too
            return await _revise(conn, desk, tenant, who, request, now, memory, attributes)
        ticket.require()
        attributes |= _origin(who, request)
        if isinstance(memory, Fact):
            changes = await _corrected_fact(conn, desk, tenant, memory, content, attributes, now, ticket)
        else:
            changes = await _corrected_rule(conn, desk, tenant, memory, content, attributes, now, ticket)
        await apply(conn, author_of(who, request, now), changes)
        new = changes[-1]
        return Written(memory.type, new.id, WriteOutcome.SUPERSEDED, "active", memory.id, new.links)

    return await desk.write(who.tenant, ticket, work)


async def _queue_up(conn: Conn, tenant: Tenant, before: AnyMemory, content: str) -> None:
    """Takes the locks that storing takes before it takes the row, as storing does: no ring of waiters."""
    if isinstance(before, Fact):
        await predicates.lock_predicates(conn, before.tenant_id, change=False)
        await facts.lock_key(conn, before.tenant_id, before.subject_key, before.predicate_key)
    else:
        await rules.lock_meaning(conn, before.tenant_id, meaning_digest(content, tenant.digest_key))


def _require_editable(memory: Fact | Rule) -> None:
    if not memory.is_live and memory.condition != RuleStatus.DISABLED:
        raise Conflict(
            f"This {memory.type} is {memory.condition}; only a live one can be edited.",
            reason="not_live",
            recovery="Restore it first.",
        )


def _attributes(request: EditMemory, memory: Fact | Rule) -> dict[str, Any]:
    names = ("importance", "permanence", "tags", "valid_from", "valid_to")
    given = {name: getattr(request, name) for name in names if request.gave(name)}
    changed = {name: value for name, value in given.items() if value != getattr(memory, name)}
    if isinstance(memory, Fact):
        begins, ends = (changed.get(name, getattr(memory, name)) for name in ("valid_from", "valid_to"))
        if begins and ends and ends < begins:
            raise InvalidInput("valid_to must not be before valid_from.", field="valid_to", reason="bad_range")
    return with_decay_rate(changed)


def _origin(who: Principal, request: EditMemory) -> dict[str, Any]:
    """The corrected row was written by whoever corrects it, on their word alone (F7)."""
    session = request.request_context.session_id
    return {
        "source_kind": SourceKind.CORRECTED,
        "source_butler": who.butler,
        "source_episode_id": None,
        "source_session_id": session_uuid(session) if session else None,
        "request_id": request.request_context.request_id,
    }


async def _revise(
    conn: Conn,
    desk: Desk,
    tenant: Tenant,
    who: Principal,
    request: EditMemory,
    now: datetime,
    memory: Fact | Rule,
    values: dict[str, Any],
) -> Written:
    if not values:
        return unchanged(memory)
    if isinstance(memory, Fact) and "valid_from" in values:
        values["slot"] = await _free_slot(conn, tenant, memory, memory.content or "", values["valid_from"], now)
    rate = values.get("decay_rate", memory.decay_rate)
    values = values | desk.fading_of(memory, rate, memory.last_confirmed_at)
    indexed = desk.vectors.retagged(memory, values["tags"]) if "tags" in values else None
    change = Change(memory.type, memory.id, memory.version + 1, EventType.REVISED, values, indexed=indexed)
    await apply(conn, author_of(who, request, now), [change])
    return Written(memory.type, memory.id, WriteOutcome.CONFIRMED, memory.condition)


def _successor(memory: Fact | Rule) -> dict[str, Any]:
    return {name: value for name, value in vars(memory).items() if name not in _NOT_INHERITED}


async def _corrected_fact(
    conn: Conn,
    desk: Desk,
    tenant: Tenant,
    old: Fact,
    content: str,
    attributes: dict[str, Any],
    now: datetime,
    ticket: Ticket,
) -> list[Change]:
    values = _successor(old) | attributes
    values |= {
        "content": content,
        "slot": await _free_slot(conn, tenant, old, content, values["valid_from"], now),
        "confidence": 1.0,
        "validity": Validity.ACTIVE,
        "supersedes_id": old.id,
        "superseded_at": None,
        "created_at": now,
        "last_confirmed_at": now,
    }
    values |= desk.decay_columns(1.0, values["decay_rate"], now)
    on_key = await facts.live_on_key(conn, old.tenant_id, old.subject_key, old.predicate_key, [old.scope])
    claims = [fact for fact in on_key if is_claim(fact) and fact.id != old.id]  # the user's own word ends them (F5)
    return [
        *(retire(fact, now) for fact in (*claims, old)),
        _created(desk, MemoryType.FACT, old, values, now, ticket),
    ]


async def _free_slot(
    conn: Conn, tenant: Tenant, old: Fact, content: str, valid_from: datetime | None, now: datetime
) -> str:
    """The slot of the corrected fact; refused where another live fact holds it."""
    registry = Registry(await predicates.own_predicates(conn, old.tenant_id), tenant.many_valued)
    slot = slot_of(
        registry.find(old.predicate_key),
        content,
        valid_from=valid_from,
        now=now,
        secret=tenant.digest_key,
        many_valued=tenant.many_valued,
    )
    on_key = await facts.live_on_key(conn, old.tenant_id, old.subject_key, old.predicate_key, [old.scope])
    others = [fact for fact in on_key if fact.id != old.id]
    twin = holder_of(slot, others) or same_content(content, slot, valid_from, others)
    if twin:
        raise Conflict("Another live fact says this already.", reason="key_taken", live_id=str(twin.id),
                       recovery="Forget the wrong one instead.")  # fmt: skip
    return slot


async def _corrected_rule(
    conn: Conn,
    desk: Desk,
    tenant: Tenant,
    old: Rule,
    content: str,
    attributes: dict[str, Any],
    now: datetime,
    ticket: Ticket,
) -> list[Change]:
    """R9: a new candidate with counters at zero; the applications stay with the old row."""
    word_set = meaning_digest(content, tenant.digest_key)
    known = await known_rule(conn, old.tenant_id, word_set, old.scope) if word_set != old.meaning else None
    if known and known.id != old.id:
        raise Conflict("A live rule says this already.", reason="key_taken", live_id=str(known.id),
                       recovery="Forget the wrong one instead.")  # fmt: skip
    values = _successor(old) | fresh_rule_values(content, word_set, old.scope, now) | attributes
    values |= {"supersedes_id": old.id}
    values |= desk.decay_columns(values["confidence"], values["decay_rate"], now)
    return [retire_rule(old, now), _created(desk, MemoryType.RULE, old, values, now, ticket)]


def _created(
    desk: Desk, kind: MemoryType, old: Fact | Rule, values: dict[str, Any], now: datetime, ticket: Ticket
) -> Change:
    return Change(
        kind,
        new_id(now),
        1,
        EventType.CREATED,
        values,
        indexed=desk.vectors.indexed(ticket, values["tags"], values.get("predicate_key", "")),
        links=(Link(Relation.SUPERSEDES, kind, old.id),),
    )
