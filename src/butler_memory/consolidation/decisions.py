"""A person's word: on what waits for review, and on episodes that were given up (K5, E2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from butler_memory.consolidation.apply import Prepared, prepare, rehearsed, shape_of, write
from butler_memory.consolidation.batch import Batch, UnknownHandle, batch_of
from butler_memory.consolidation.plan import plan
from butler_memory.consolidation.run import NEEDS_REVIEW, ids_in
from butler_memory.domain.kinds import (
    ConsolidationStatus,
    EpisodeState,
    EventType,
    JobName,
    MemoryType,
    Relation,
    SourceKind,
    Validity,
)
from butler_memory.domain.lifecycle import check_consolidation_step, check_fact_step
from butler_memory.domain.outcomes import Applied
from butler_memory.domain.proposal import Proposal
from butler_memory.domain.records import Episode, Fact
from butler_memory.domain.supersession import is_claim
from butler_memory.errors import Conflict, NotFound
from butler_memory.postgres import consolidation as table
from butler_memory.postgres import facts, leases, memories
from butler_memory.postgres.changes import Author, Change, Link, apply
from butler_memory.postgres.consolidation import Review
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import Principal, require_admin
from butler_memory.writing.desk import Desk, session_of
from butler_memory.writing.facts import retire, strengthen

ACCEPTED, REJECTED, OPEN = "accepted", "rejected", "open"


@dataclass(frozen=True)
class Decided:
    """What a decision came to; `applied` where a whole proposal was accepted."""

    review: Review
    state: str
    applied: Applied | None = None


async def decide(desk: Desk, who: Principal, review_id: UUID, *, accept: bool, now: datetime) -> Decided:
    require_admin(who)
    review = await desk.database.run(who.tenant, lambda conn: _open_review(conn, who.tenant, review_id))
    if review.kind == "proposal" and accept:
        return await _apply_proposal(desk, who, review, now)

    async def work(conn: Conn) -> Decided:
        again = await _open_review(conn, who.tenant, review_id)
        if again.kind == "contradiction":
            await _settle(conn, desk, who, again, accept=accept, now=now)
        await _close(conn, who, again, ACCEPTED if accept else REJECTED, now)
        return Decided(again, ACCEPTED if accept else REJECTED)

    return await desk.database.run(who.tenant, work)


async def _open_review(conn: Conn, tenant: str, review_id: UUID) -> Review:
    found = await table.find_review(conn, tenant, review_id)
    if found is None:
        raise NotFound("There is no review with this id.", field="id", recovery="'review list' shows what is open.")
    if found.state != OPEN:
        raise Conflict(f"This review was {found.state} before.", reason="closed", recovery="Nothing is left to do.")
    return found


async def _close(conn: Conn, who: Principal, review: Review, state: str, now: datetime) -> None:
    await table.close_review(conn, who.tenant, review.id, state, who.actor, now)


def _author(who: Principal, now: datetime) -> Author:
    return Author(who.tenant, who.actor, now, session_of(who, None, now))


async def _settle(conn: Conn, desk: Desk, who: Principal, review: Review, *, accept: bool, now: datetime) -> None:
    """The claim takes the place of what it contests, or goes; where it has gone already, nothing is left to reject."""
    assert review.entity_id is not None
    claim = await memories.find(conn, who.tenant, MemoryType.FACT, review.entity_id, lock=True)
    is_live = isinstance(claim, Fact) and claim.is_live
    if accept and not is_live:
        raise Conflict("The claim is not live any more.", reason="not_live", recovery="Reject the review.")
    if not is_live:
        return
    assert isinstance(claim, Fact)
    changes = await _in_its_place(conn, desk, claim, now) if accept else [_retracted(claim)]
    await apply(conn, _author(who, now), changes)


def _retracted(claim: Fact) -> Change:
    check_fact_step(claim.validity, Validity.RETRACTED)
    retracted = {"validity": Validity.RETRACTED}
    return Change(MemoryType.FACT, claim.id, claim.version + 1, EventType.RETRACTED, retracted)


async def _in_its_place(conn: Conn, desk: Desk, claim: Fact, now: datetime) -> list[Change]:
    """What a person accepts is as good as their word: of a single value, whatever holds the place by now gives way,
    and what else was only claimed of it."""
    linked = await memories.links(conn, claim.tenant_id, MemoryType.FACT, claim.id)
    against = {link["id"] for link in linked if link["relation"] == Relation.CONTRADICTS}
    await facts.lock_key(conn, claim.tenant_id, claim.subject_key, claim.predicate_key)
    on_key = await facts.live_on_key(conn, claim.tenant_id, claim.subject_key, claim.predicate_key, [claim.scope])
    slot = "" if is_claim(claim) else claim.slot
    others = [fact for fact in on_key if fact.id != claim.id]
    retired = [fact for fact in others if fact.id in against or fact.slot == slot]
    settled = [fact for fact in others if is_claim(claim) and is_claim(fact)]
    values: dict[str, Any] = {"slot": slot, "source_kind": SourceKind.CORRECTED}
    if retired:
        values["supersedes_id"] = retired[0].id
    links = tuple(Link(Relation.SUPERSEDES, MemoryType.FACT, fact.id) for fact in retired)
    confirmed = replace(strengthen(desk, claim, now, confirm=True, changes=values), links=links)
    return [*(retire(fact, now) for fact in (*retired, *settled)), confirmed]


async def _apply_proposal(desk: Desk, who: Principal, review: Review, now: datetime) -> Decided:
    """As it was proposed, without the cap: a person has looked at it."""
    prepared = await _as_proposed(desk, who, review, now)

    async def work(conn: Conn) -> Decided:
        again = await _open_review(conn, who.tenant, review.id)
        applied = await _write_all(conn, who, review, prepared, now)
        await _close(conn, who, again, ACCEPTED, now)
        return Decided(again, ACCEPTED, applied)

    return await desk.database.run(who.tenant, work)


async def _rehearse_proposal(desk: Desk, who: Principal, review: Review, now: datetime) -> Applied:
    prepared = await _as_proposed(desk, who, review, now)
    return await rehearsed(
        desk.database, who.tenant, lambda conn: _write_all(conn, who, review, prepared, now)
    )  # fmt: skip


async def _as_proposed(desk: Desk, who: Principal, review: Review, now: datetime) -> Prepared:
    kept = review.proposal or {}
    batch = await desk.database.run(who.tenant, lambda conn: _batch_again(conn, who.tenant, kept))
    try:
        planned = plan(batch, Proposal.model_validate(kept["proposed"]))
    except UnknownHandle:
        raise Conflict(
            "What it is about has changed since: a fact or an episode that it names is gone.",
            reason="stale",
            recovery="Reject it and requeue its episodes: they are read anew.",
        ) from None
    return await prepare(desk, batch, planned, now)


async def _write_all(conn: Conn, who: Principal, review: Review, prepared: Prepared, now: datetime) -> Applied:
    episodes = await _waiting_for_review(conn, who.tenant, ids_in(review.proposal or {}))
    await apply(conn, _author(who, now), [requeued(episode) for episode in episodes])
    return await write(conn, prepared, share=1.0, capped=False)


async def _batch_again(conn: Conn, tenant: str, kept: Any) -> Batch:
    return await batch_of(conn, tenant, kept["butler"], await _waiting_for_review(conn, tenant, ids_in(kept)))


async def _waiting_for_review(conn: Conn, tenant: str, ids: Sequence[UUID]) -> list[Episode]:
    found = [await memories.find(conn, tenant, MemoryType.EPISODE, each, lock=True) for each in ids]
    return [
        episode
        for episode in found
        if isinstance(episode, Episode)
        and episode.state is EpisodeState.ACTIVE
        and episode.last_consolidation_error == NEEDS_REVIEW
    ]


def requeued(episode: Episode) -> Change:
    """As if nobody had tried to read it."""
    check_consolidation_step(episode.consolidation_status, ConsolidationStatus.PENDING)
    values = {
        "consolidation_status": ConsolidationStatus.PENDING,
        "consolidation_attempts": 0,
        "last_consolidation_error": None,
        "next_consolidation_retry_at": None,
    }
    return Change(MemoryType.EPISODE, episode.id, episode.version + 1, EventType.REQUEUED, values)


async def requeue(desk: Desk, who: Principal, ids: Sequence[UUID] | None, now: datetime) -> list[UUID]:
    """Episodes that failed or were given up are read again; of None, all of the tenant. Forgotten ones stay so."""
    require_admin(who)

    async def work(conn: Conn) -> list[UUID]:
        episodes = await table.given_up(conn, who.tenant, ids)
        if ids is not None and len(episodes) < len(set(ids)):
            raise NotFound(
                "One of these is no episode that failed or was given up.",
                field="id",
                recovery="'list episodes' and 'get episode ID' show how each stands; a forgotten one is restored.",
            )
        for butler in sorted({episode.butler for episode in episodes}):
            await leases.wish(conn, who.tenant, butler, JobName.CONSOLIDATE, now, now)
        await apply(conn, _author(who, now), [requeued(episode) for episode in episodes])
        return [episode.id for episode in episodes]

    return await desk.database.run(who.tenant, work)


async def show(desk: Desk, who: Principal, review_id: UUID, now: datetime) -> dict[str, Any]:
    """One that is open, with all that accepting it would do."""
    require_admin(who)
    review = await desk.database.run(who.tenant, lambda conn: _open_review(conn, who.tenant, review_id))
    shape = await desk.database.run(who.tenant, lambda conn: _shape(conn, who.tenant, review))
    if review.kind != "proposal":
        return shape
    applied = await _rehearse_proposal(desk, who, review, now)
    return shape | {"items": [shape_of(item) for item in applied.items]}


async def review_shapes(conn: Conn, tenant: str, limit: int) -> list[dict[str, Any]]:
    """What is open, with what a person must know to decide."""
    return [await _shape(conn, tenant, review) for review in await table.open_reviews(conn, tenant, limit)]


async def _shape(conn: Conn, tenant: str, review: Review) -> dict[str, Any]:
    shape: dict[str, Any] = {"id": review.id, "kind": review.kind, "created_at": review.created_at}
    if review.kind == "proposal":
        return shape | {"proposal": review.proposal}
    assert review.entity_id is not None
    claim = await memories.find(conn, tenant, MemoryType.FACT, review.entity_id)
    linked = await memories.links(conn, tenant, MemoryType.FACT, review.entity_id)
    ids = [link["id"] for link in linked if (link["relation"], link["way"]) == (Relation.CONTRADICTS, "out")]
    stated = [await memories.find(conn, tenant, MemoryType.FACT, each) for each in ids]
    return shape | {"claim": _told(claim), "against": [_told(fact) for fact in stated]}


def _told(fact: Any) -> dict[str, Any] | None:
    return {"type": "fact", "id": fact.id, "line": fact.line} if isinstance(fact, Fact) else None
