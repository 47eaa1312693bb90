"""Writes what was planned, with its events and the episodes' state: all in one transaction, or nothing (K4, K5)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, assert_never
from uuid import NAMESPACE_URL, UUID, uuid5

from butler_memory.consolidation.batch import Batch
from butler_memory.consolidation.plan import (
    MARKED_ALREADY,
    Evidence,
    Planned,
    PlannedConfirmation,
    PlannedFact,
    PlannedLink,
    PlannedMark,
    PlannedRule,
)
from butler_memory.domain.clock import new_id
from butler_memory.domain.kinds import (
    ConsolidationStatus,
    EventType,
    MemoryType,
    Relation,
    Role,
    TriggerClass,
    WriteOutcome,
)
from butler_memory.domain.outcomes import Applied, Item, TooMuch, What, most_retired
from butler_memory.domain.records import Episode, Fact, Rule
from butler_memory.domain.sentence import line_of_fact
from butler_memory.errors import ButlerMemoryError, Conflict
from butler_memory.postgres import consolidation as table
from butler_memory.postgres import memories
from butler_memory.postgres.changes import Author, Change, Link, apply
from butler_memory.postgres.consolidation import Review
from butler_memory.postgres.database import Conn, Database
from butler_memory.security.principal import Principal
from butler_memory.writing import facts, rules
from butler_memory.writing.desk import Desk, Written
from butler_memory.writing.facts import Statement, strengthen
from butler_memory.writing.marks import mark_here
from butler_memory.writing.rules import Saying, confirm_rule

ACTOR = "job:consolidate"
_NOT_LIVE = "not_live"
_EVIDENCE_GONE = "evidence_gone"

Step = Callable[[Conn], Awaitable[Item]]


@dataclass(frozen=True)
class Prepared:
    """A plan whose texts have their vectors, so that the transaction waits for nothing."""

    batch: Batch
    steps: Sequence[tuple[Planned, Step]]
    now: datetime


def reader_of(batch: Batch) -> Principal:
    """Consolidation writes as the butler whose episodes it reads, and is maintenance: it makes no episodes (E5)."""
    token = uuid5(NAMESPACE_URL, f"butler-memory:consolidation:{batch.tenant}:{batch.butler}")
    return Principal(batch.tenant, batch.butler, Role.BUTLER, token, TriggerClass.MAINTENANCE)


def author_for(batch: Batch, evidence: Evidence | None, now: datetime) -> Author:
    """What is learned belongs to the session in which it was said."""
    session = evidence.sessions[-1] if evidence else uuid5(NAMESPACE_URL, "butler-memory:consolidation")
    return Author(batch.tenant, ACTOR, now, session)


async def prepare(desk: Desk, batch: Batch, planned: Sequence[Planned], now: datetime) -> Prepared:
    """The slow part, with no connection held: every text gets its vector."""
    made = await asyncio.gather(*(_prepared(desk, batch, each, now) for each in planned))
    tickets = [ready.ticket for ready in made if isinstance(ready, Statement | Saying)]
    await asyncio.gather(*(desk.vectors.wait(ticket) for ticket in tickets))
    steps = [(each, _step(desk, batch, each, ready, now)) for each, ready in zip(planned, made, strict=True)]
    return Prepared(batch, steps, now)


async def _prepared(desk: Desk, batch: Batch, planned: Planned, now: datetime) -> Statement | Saying | None:
    who, author = reader_of(batch), author_for(batch, planned.evidence, now)
    if isinstance(planned, PlannedFact):
        evidence = planned.evidence
        return await facts.prepared(
            desk, who, planned.request, author, evidence.ids, said_at=evidence.said_at, sessions=evidence.sessions
        )
    if isinstance(planned, PlannedRule) and not planned.refused:
        return await rules.prepared(desk, who, planned.request, planned.scope, author, planned.evidence.ids)
    return None


def _step(desk: Desk, batch: Batch, planned: Planned, ready: Statement | Saying | None, now: datetime) -> Step:
    author = author_for(batch, planned.evidence, now)

    async def step(conn: Conn) -> Item:
        match planned:
            case PlannedFact():
                assert isinstance(ready, Statement)
                return await _fact(conn, planned, ready)
            case PlannedRule():
                assert ready is None or isinstance(ready, Saying)
                return await _rule(conn, planned, ready)
            case PlannedConfirmation():
                return await _confirmation(conn, desk, author, planned)
            case PlannedLink():
                return await _link(conn, author, planned)
            case PlannedMark():
                return await _mark(conn, desk, author, planned)
        assert_never(planned)

    return step


async def write(conn: Conn, prepared: Prepared, *, share: float, capped: bool = True) -> Applied:
    """In the caller's transaction. Raises TooMuch where more would be retired than one reading may (K5)."""
    batch = prepared.batch
    there = await table.still_pending(conn, batch.tenant, [episode.id for episode in batch.episodes])
    alive = {episode.id for episode in there}
    items = []
    for planned, step in prepared.steps:
        # What rests on an episode that was forgotten meanwhile is not learned from the others by accident.
        item = await step(conn) if alive >= set(planned.evidence.ids) else _refused(planned, _EVIDENCE_GONE)
        items.append(replace(item, evidence=planned.evidence.ids))
    if capped and sum(item.retired for item in items) > most_retired(len(batch.facts), share):
        raise TooMuch
    await _ask_about_claims(conn, prepared, items)
    author = author_for(batch, None, prepared.now)
    await apply(conn, author, [consolidated(episode) for episode in there])
    read = tuple(episode.id for episode in there)
    left_out = tuple(episode.id for episode in batch.episodes if episode.id not in alive)
    return Applied(tuple(items), read, left_out)


class _Rehearsed(Exception):
    """Carries what would have been written out of its transaction."""

    def __init__(self, applied: Applied) -> None:
        self.applied = applied


async def rehearsed(database: Database, tenant: str, work: Callable[[Conn], Awaitable[Applied]]) -> Applied:
    """What `work` would write: its transaction is left in the end, and leaves nothing behind."""

    async def tried(conn: Conn) -> None:
        raise _Rehearsed(await work(conn))

    try:
        await database.run(tenant, tried)
    except _Rehearsed as done:
        return done.applied
    raise AssertionError("a rehearsal ends by leaving its transaction")


def consolidated(episode: Episode) -> Change:
    values = {
        "consolidation_status": ConsolidationStatus.CONSOLIDATED,
        "last_consolidation_error": None,
        "next_consolidation_retry_at": None,
    }
    return Change(MemoryType.EPISODE, episode.id, episode.version + 1, EventType.CONSOLIDATED, values)


async def _ask_about_claims(conn: Conn, prepared: Prepared, items: Sequence[Item]) -> None:
    for item in items:
        if item.what is What.CONTESTED and item.id and item.reason is None:
            review = Review(new_id(prepared.now), "contradiction", "fact", item.id, None, "open", None, prepared.now)
            await table.add_review(conn, prepared.batch.tenant, review)


def _line(planned: Planned) -> str:
    match planned:
        case PlannedFact(request):
            return line_of_fact(request.subject, request.predicate, request.content)
        case PlannedRule(request):
            return request.content
        case PlannedConfirmation(memory):
            return memory.line
        case PlannedLink(first, second, relation):
            return f"{first.line} ({relation.replace('_', ' ')}) {second.line}"
        case PlannedMark(rule, outcome):
            return f"{rule.line} ({outcome})"
    assert_never(planned)


def _kind(planned: Planned) -> str:
    match planned:
        case PlannedFact():
            return "fact"
        case PlannedRule():
            return "rule"
        case PlannedConfirmation():
            return "confirmation"
        case PlannedLink():
            return "link"
        case PlannedMark():
            return "outcome"
    assert_never(planned)


def _refused(planned: Planned, reason: str) -> Item:
    return Item(What.REFUSED, _kind(planned), _line(planned), reason=reason)


# What a write's outcome is in the words of a reading.
_WHAT = {
    WriteOutcome.CREATED: What.CREATED,
    WriteOutcome.SUPERSEDED: What.SUPERSEDED,
    WriteOutcome.CONFIRMED: What.CONFIRMED,
    WriteOutcome.DUPLICATE: What.KNOWN,
}


async def _fact(conn: Conn, planned: PlannedFact, statement: Statement) -> Item:
    old = planned.replaces
    try:
        async with conn.transaction():  # what is refused half-way leaves nothing of itself
            if old is None:
                written = await statement.run(conn, [str(planned.request.scope)])
            else:
                there = await memories.find(conn, old.tenant_id, MemoryType.FACT, old.id, lock=True)
                if not isinstance(there, Fact) or not there.is_live:
                    return _refused(planned, _NOT_LIVE)
                written = await statement.correct(conn, there)
    except ButlerMemoryError as error:
        return _refused(planned, _reason(error))
    return _fact_item(planned, written, await _content_of(conn, statement.who.tenant, written.superseded_id))


async def _content_of(conn: Conn, tenant: str, fact: UUID | None) -> str | None:
    found = await memories.find(conn, tenant, MemoryType.FACT, fact) if fact else None
    return found.content if found else None


def _fact_item(planned: PlannedFact, written: Written, replaced: str | None) -> Item:
    what = _WHAT[written.outcome]
    contests = any(link.relation is Relation.CONTRADICTS for link in written.links)
    if contests:
        what = What.CONTESTED
    elif what is What.CREATED and written.state == "superseded":
        what = What.LATE
    before = planned.replaces.content if planned.replaces else replaced
    return Item(what, "fact", _line(planned), written.id, before, retired=written.retired)


async def _rule(conn: Conn, planned: PlannedRule, saying: Saying | None) -> Item:
    if saying is None:
        return _refused(planned, planned.refused)
    try:
        written = await saying.run(conn)
    except Conflict as error:  # a known anti-pattern, or one that a person disabled
        return _refused(planned, error.reason)
    return Item(_WHAT[written.outcome], "rule", _line(planned), written.id)


async def _confirmation(conn: Conn, desk: Desk, author: Author, planned: PlannedConfirmation) -> Item:
    if planned.refused:
        return _refused(planned, planned.refused)
    memory = await memories.find(conn, author.tenant, planned.memory.type, planned.memory.id, lock=True)
    if not isinstance(memory, Fact | Rule) or not memory.is_live:
        return _refused(planned, _NOT_LIVE)
    events = [EventType.CREATED, EventType.CONFIRMED]
    heard = [
        await memories.said_in_session(conn, author.tenant, memory.type, [memory.id], session, events)
        for session in planned.evidence.sessions
    ]
    links = await _new_evidence(conn, author, memory, planned.evidence)
    last_said_at = await memories.last_said_at(conn, author.tenant, memory.type, memory.id) or memory.created_at
    if all(heard) or planned.evidence.said_at < last_said_at:  # said in those sessions already, or old news
        if links:
            await apply(conn, author, [_linked(memory, links)])
        return Item(What.KNOWN, "confirmation", memory.line, memory.id)
    if isinstance(memory, Fact):
        change = replace(strengthen(desk, memory, author.now, confirm=True, changes={}), links=links)
    else:
        change = confirm_rule(desk, memory, author.now, links)
    await apply(conn, author, [change])
    return Item(What.CONFIRMED, "confirmation", memory.line, memory.id)


async def _new_evidence(conn: Conn, author: Author, memory: Fact | Rule, evidence: Evidence) -> tuple[Link, ...]:
    linked = {link["id"] for link in await memories.links(conn, author.tenant, memory.type, memory.id)}
    return tuple(
        Link(Relation.DERIVED_FROM, MemoryType.EPISODE, episode) for episode in evidence.ids if episode not in linked
    )


def _linked(memory: Fact | Rule, links: tuple[Link, ...]) -> Change:
    return Change(memory.type, memory.id, memory.version + 1, EventType.LINKED, {}, links=links)


async def _link(conn: Conn, author: Author, planned: PlannedLink) -> Item:
    if planned.refused:
        return _refused(planned, planned.refused)
    first, second = [
        await memories.find(conn, author.tenant, each.type, each.id, lock=True)
        for each in (planned.first, planned.second)
    ]
    if not all(isinstance(each, Fact | Rule) and each.is_live for each in (first, second)):
        return _refused(planned, _NOT_LIVE)
    assert isinstance(first, Fact | Rule)
    assert isinstance(second, Fact | Rule)
    known = await memories.links(conn, author.tenant, first.type, first.id)
    if any((link["relation"], link["id"]) == (planned.relation, second.id) for link in known):
        return Item(What.KNOWN, "link", _line(planned), first.id)
    await apply(conn, author, [_linked(first, (Link(planned.relation, second.type, second.id),))])
    return Item(What.LINKED, "link", _line(planned), first.id)


async def _mark(conn: Conn, desk: Desk, author: Author, planned: PlannedMark) -> Item:
    if planned.refused:
        return _refused(planned, planned.refused)
    rule = await memories.find(conn, author.tenant, MemoryType.RULE, planned.rule.id, lock=True)
    if not isinstance(rule, Rule) or not rule.is_live:
        return _refused(planned, _NOT_LIVE)
    # By itself while it was read, or by what stands before this in the same proposal: a session has one word on a rule.
    if (planned.session, rule.id) in await table.marked(conn, author.tenant, [planned.session]):
        return _refused(planned, MARKED_ALREADY)
    await mark_here(conn, desk, replace(author, session=planned.session), rule, planned.outcome, planned.reason)
    return Item(What.MARKED, "outcome", _line(planned), rule.id)


def _reason(error: ButlerMemoryError) -> str:
    return error.reason or error.code


def shape_of(item: Item) -> dict[str, Any]:
    return {**vars(item), "evidence": list(item.evidence)}
