"""Storing a fact: a new one, a confirmation, a successor, or older evidence (F3, F5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID

from butler_memory.domain.clock import new_id
from butler_memory.domain.decay import DECAY_PER_DAY
from butler_memory.domain.kinds import (
    ContentStatus,
    EventType,
    MemoryType,
    Relation,
    Validity,
    WriteOutcome,
)
from butler_memory.domain.predicates import Predicate, Registry
from butler_memory.domain.records import Fact
from butler_memory.domain.requests import StoreFact, session_uuid
from butler_memory.domain.sentence import line_of_fact
from butler_memory.domain.supersession import (
    INHERITED,
    ArriveLate,
    Contest,
    Create,
    Decision,
    Keep,
    Replace,
    Strengthen,
    claim_slot,
    claims_settled,
    decide,
    decide_reading,
    holder_of,
    said_before,
    same_content,
    scope_of,
    slot_of,
    with_decay_rate,
    would_hide,
)
from butler_memory.domain.text import key, same_form, subject_key
from butler_memory.errors import Conflict
from butler_memory.postgres import facts, keys, memories
from butler_memory.postgres import predicates as predicate_table
from butler_memory.postgres.access import Tenant
from butler_memory.postgres.changes import Author, Change, Link, apply
from butler_memory.postgres.consolidation import was_rejected
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import GLOBAL, Principal, require_writer, writable_scope
from butler_memory.writing.desk import CLOSE, Desk, Written, author_of, repeat_key, repeated
from butler_memory.writing.vectors import Ticket

# Events that mean: this was said in that session.
SAID = (EventType.CREATED, EventType.CONFIRMED)
# Tells a confirmation by the same words from one by memory_confirm.
SAID_AGAIN = {"said_again": True}


async def store_fact(
    desk: Desk, who: Principal, request: StoreFact, now: datetime, evidence: Sequence[UUID] = ()
) -> Written:
    require_writer(who)
    scopes = [writable_scope(who, request.scope)] if request.scope else list(who.own_scopes)
    statement = await prepared(desk, who, request, author_of(who, request, now), tuple(evidence))
    written = await desk.write(who.tenant, statement.ticket, lambda conn: statement.run(conn, scopes))
    statement.catch_up(written)
    return written


async def prepared(
    desk: Desk, who: Principal, request: StoreFact, author: Author, evidence: tuple[UUID, ...] = (), **more: Any
) -> Statement:
    """With its vector on the way; what follows needs a transaction."""
    tenant = await desk.tenant(who.tenant)
    line = line_of_fact(request.subject, request.predicate, request.content)
    ticket = await desk.vectors.soon(who.tenant, line)
    return Statement(desk, who, request, author.now, evidence, tenant, ticket, author, **more)


@dataclass(frozen=True)
class _Place:
    """Where in the memory a statement belongs."""

    scope: str
    subject_key: str
    predicate: Predicate
    predicate_key: str
    slot: str


@dataclass(frozen=True)
class Statement:
    """One statement on its way into the memory.

    `said_at` and `sessions`: when and where it was said, where consolidation read it in episodes (F5, F9).
    `corrects`: a claim that it takes the place of, besides what it replaces or contests itself.
    """

    desk: Desk
    who: Principal
    request: StoreFact
    now: datetime
    evidence: tuple[UUID, ...]
    tenant: Tenant
    ticket: Ticket
    author: Author
    said_at: datetime | None = None
    sessions: tuple[UUID, ...] = ()
    corrects: Fact | None = None

    def catch_up(self, written: Written) -> None:
        """What was written without its vector gets it as soon as that is there (S12)."""
        if written.outcome in (WriteOutcome.CREATED, WriteOutcome.SUPERSEDED):
            self.desk.vectors.catch_up(self.who.tenant, MemoryType.FACT, written.id, self.ticket)

    async def run(self, conn: Conn, scopes: list[str]) -> Written:
        """Read what is known on the key, decide, write it all (in the caller's transaction)."""
        again = self._idempotency_key()
        earlier = await repeated(conn, self.who, again)
        if earlier:
            return earlier
        place, on_key = await self._locate(conn, scopes)
        ids = [fact.id for fact in on_key]
        said = await self._said_there(conn, ids)
        decision = decide(self.request, place.slot, on_key, said_this_session=said, now=self.now)
        if self.said_at:
            decision = decide_reading(decision, self.request, self.said_at, await self._known_since(conn, decision))
        written = await self._carry_out(conn, decision, place, on_key)
        written = await self._settling(conn, on_key, written)
        if again:
            await keys.claim(conn, self.who.tenant, again, MemoryType.FACT, written.id, self.now)
        return written

    async def _said_there(self, conn: Conn, ids: Sequence[UUID]) -> frozenset[UUID]:
        """Which of these were said in each of the sessions that this was said in (F9)."""
        tenant, sessions = self.who.tenant, self.sessions or (self.author.session,)
        heard = [
            await memories.said_in_session(conn, tenant, MemoryType.FACT, ids, session, SAID) for session in sessions
        ]
        return frozenset.intersection(*heard)

    async def _known_since(self, conn: Conn, decision: Decision) -> datetime | None:
        """When what would be replaced or confirmed was last said."""
        if not isinstance(decision, Replace | Strengthen):
            return None
        return await memories.last_said_at(conn, self.who.tenant, MemoryType.FACT, decision.existing.id)

    async def _locate(self, conn: Conn, scopes: list[str]) -> tuple[_Place, list[Fact]]:
        """Scope omitted: the first live match in own project, own butler, global; none: global (F5).

        A match is more than a fact on the same key: of many values, each has its own scope.
        """
        tenant = self.who.tenant
        await predicate_table.lock_predicates(conn, tenant, change=False)
        registry = Registry(await predicate_table.own_predicates(conn, tenant), self.tenant.many_valued)
        predicate = registry.find(self.request.predicate)
        # With one value per key, aliases would let a father supersede a mother: the words stay apart.
        predicate_key = predicate.name if self.tenant.many_valued else key(self.request.predicate)
        subject = subject_key(self.request.subject)
        await facts.lock_key(conn, tenant, subject, predicate_key)
        live = await facts.live_on_key(conn, tenant, subject, predicate_key, scopes)
        slot = slot_of(
            predicate,
            self.request.content,
            valid_from=self.request.valid_from,
            now=self.now,
            secret=self.tenant.digest_key,
            many_valued=self.tenant.many_valued,
        )
        scope = scope_of(self.request, slot, live, scopes) or (scopes[0] if self.request.scope else GLOBAL)
        place, on_key = _Place(scope, subject, predicate, predicate_key, slot), [f for f in live if f.scope == scope]
        if self.said_at and scope != GLOBAL:
            everywhere = await facts.live_on_key(conn, tenant, subject, predicate_key, [GLOBAL])
            if would_hide(self.request, slot, on_key, everywhere):
                return replace(place, scope=GLOBAL), everywhere  # where it contests that, and a person decides
        return place, on_key

    async def _carry_out(self, conn: Conn, decision: Decision, place: _Place, on_key: Sequence[Fact]) -> Written:
        match decision:
            case Keep(existing):
                return await self._keep(conn, existing)
            case Strengthen():
                return await self._strengthen(conn, decision)
            case Replace(existing, inherited):
                return await self._replace(conn, place, existing, inherited)
            case Contest(stated):
                return await self._contest(conn, place, stated, on_key)
            case ArriveLate(newer):
                return await self._arrive_late(conn, place, newer)
            case Create():
                return await self._create(conn, place, on_key)
        assert_never(decision)

    async def _keep(self, conn: Conn, existing: Fact) -> Written:
        """Nothing about it is new but, at most, where it was heard (F7)."""
        links = await self._new_evidence(conn, existing)
        if links:
            await apply(conn, self.author, [_linked(existing, links)])
        return Written(MemoryType.FACT, existing.id, WriteOutcome.DUPLICATE, existing.condition, links=links)

    async def _strengthen(self, conn: Conn, decision: Strengthen) -> Written:
        change = strengthen(self.desk, decision.existing, self.now, confirm=decision.confirms, changes=decision.changes)
        links = self._evidence_links()
        await apply(conn, self.author, [replace(change, links=links, noted=SAID_AGAIN)])
        outcome = WriteOutcome.CONFIRMED if decision.confirms else WriteOutcome.DUPLICATE
        state = change.values.get("validity", decision.existing.validity)
        return Written(MemoryType.FACT, decision.existing.id, outcome, str(state), links=links)

    async def _create(self, conn: Conn, place: _Place, on_key: Sequence[Fact]) -> Written:
        links = self._evidence_links()
        if on_key:  # other values of a many-valued key: this could be one of them in other words
            self.ticket.require()
            links += await self._related(conn, place)
        return await self._insert(conn, place, {}, links, WriteOutcome.CREATED)

    async def _replace(self, conn: Conn, place: _Place, old: Fact, inherited: dict[str, Any]) -> Written:
        self.ticket.require()
        retired = retire(old, self.now)
        links = (Link(Relation.SUPERSEDES, MemoryType.FACT, old.id), *self._evidence_links())
        await apply(conn, self.author, [retired])
        overrides = {**inherited, "supersedes_id": old.id}
        return await self._insert(conn, place, overrides, links, WriteOutcome.SUPERSEDED, superseded=old.id)

    async def correct(self, conn: Conn, old: Fact) -> Written:
        """In place of a fact that is named, whatever key and slot it has: values of a many-valued key too."""
        if same_form(self.request.content) == same_form(old.content or ""):
            return await self.run(conn, [old.scope])  # corrects nothing: it is said again
        place, on_key = await self._locate(conn, [old.scope])
        others = [fact for fact in on_key if fact.id != old.id]
        twin = same_content(self.request.content, place.slot, self.request.valid_from, others)
        holder = None if twin else holder_of(place.slot, others)
        if holder:  # the named one is a claim that stands beside it
            written = await self._correct_claim(conn, old, holder, place, others)
        else:
            written = await self._correct_value(conn, old, twin, place, others)
        return await self._settling(conn, others, written)

    async def _settling(self, conn: Conn, on_key: Sequence[Fact], written: Written) -> Written:
        """Also where it is old news about what is known, it may be newer than a claim, or older."""
        for claim in claims_settled(self.request, on_key, replaced=written.superseded_id is not None):
            claimed_at = (
                await memories.last_said_at(conn, self.who.tenant, MemoryType.FACT, claim.id) or claim.created_at
            )
            if self.said_at is None or claimed_at <= self.said_at:
                await apply(conn, self.author, [retire(claim, self.now)])
                written = replace(written, settled=(*written.settled, claim.id))
        return written

    async def _correct_value(
        self, conn: Conn, old: Fact, twin: Fact | None, place: _Place, others: Sequence[Fact]
    ) -> Written:
        decision = await self._replacing(conn, old)
        if twin is None or not isinstance(decision, Replace):
            return await self._carry_out(conn, decision, place, others)
        links = (Link(Relation.SUPERSEDES, MemoryType.FACT, old.id), *await self._new_evidence(conn, twin))
        await apply(conn, self.author, [retire(old, self.now), _linked(twin, links)])
        return Written(MemoryType.FACT, twin.id, WriteOutcome.SUPERSEDED, twin.condition, old.id, links)

    async def _correct_claim(
        self, conn: Conn, claim: Fact, holder: Fact, place: _Place, others: Sequence[Fact]
    ) -> Written:
        """What takes its place takes the holder's too, or contests that in its turn."""
        decision = await self._replacing(conn, holder)
        if isinstance(decision, ArriveLate):
            return await self._carry_out(conn, decision, place, others)
        await apply(conn, self.author, [retire(claim, self.now)])
        written = await replace(self, corrects=claim)._carry_out(conn, decision, place, others)
        return replace(written, settled=(claim.id,))

    async def _replacing(self, conn: Conn, old: Fact) -> Decision:
        inherited = with_decay_rate({n: getattr(old, n) for n in INHERITED if not self.request.gave(n)})
        decision = Replace(old, inherited)
        if not self.said_at:
            return decision
        return decide_reading(decision, self.request, self.said_at, await self._known_since(conn, decision))

    async def _contest(self, conn: Conn, place: _Place, stated: Fact, on_key: Sequence[Fact]) -> Written:
        """Beside it, with the contradiction said: readers see both as contested (L1)."""
        slot = place.slot or claim_slot(self.tenant.digest_key, self.request.content)
        known = holder_of(slot, on_key)
        if known:
            return await self._keep(conn, known)
        if await was_rejected(conn, self.who.tenant, place.subject_key, place.predicate_key, place.scope, slot):
            raise Conflict("A person has rejected this claim.", reason="rejected_before", recovery="Leave it at that.")
        links = (Link(Relation.CONTRADICTS, MemoryType.FACT, stated.id), *self._evidence_links())
        return await self._insert(conn, replace(place, slot=slot), {}, links, WriteOutcome.CREATED)

    async def _arrive_late(self, conn: Conn, place: _Place, newer: Fact) -> Written:
        before = await facts.superseded_in_slot(
            conn, self.who.tenant, place.subject_key, place.predicate_key, place.scope, place.slot
        )
        known = said_before(self.request, before)
        if known:
            return await self._keep(conn, known)
        overrides = {"validity": Validity.SUPERSEDED, "superseded_at": self.now}
        written = await self._insert(conn, place, overrides, self._evidence_links(), WriteOutcome.CREATED)
        link = Link(Relation.SUPERSEDES, MemoryType.FACT, written.id)
        await apply(conn, self.author, [_linked(newer, (link,))])
        return written

    async def _insert(
        self,
        conn: Conn,
        place: _Place,
        overrides: dict[str, Any],
        links: tuple[Link, ...],
        outcome: WriteOutcome,
        superseded: UUID | None = None,
    ) -> Written:
        fact_id = new_id(self.now)
        values = {**self._values(place), **overrides}
        values |= self.desk.decay_columns(values["confidence"], values["decay_rate"], values["last_confirmed_at"])
        change = Change(
            MemoryType.FACT,
            fact_id,
            1,
            EventType.CREATED,
            values,
            indexed=self.desk.vectors.indexed(self.ticket, values["tags"], place.predicate_key),
            links=links,
        )
        await apply(conn, self.author, [change])
        return Written(MemoryType.FACT, fact_id, outcome, str(values["validity"]), superseded, links)

    def _values(self, place: _Place) -> dict[str, Any]:
        request = self.request
        permanence = request.permanence if request.gave("permanence") else place.predicate.permanence
        temporal = place.predicate.temporal and self.tenant.many_valued
        session = request.request_context.session_id
        return {
            "subject": request.subject,
            "predicate": request.predicate,
            "subject_key": place.subject_key,
            "predicate_key": place.predicate_key,
            "slot": place.slot,
            "content": request.content,
            "content_status": ContentStatus.PLAIN,
            "importance": request.importance,
            "confidence": request.confidence,
            "decay_rate": DECAY_PER_DAY[permanence],
            "permanence": permanence,
            "validity": Validity.ACTIVE,
            "scope": place.scope,
            "source_kind": request.source_kind,
            "source_butler": self.who.butler,
            "source_episode_id": self.evidence[0] if self.evidence else None,
            "source_session_id": session_uuid(session) if session else None,
            "request_id": request.request_context.request_id,
            "supersedes_id": None,
            "superseded_at": None,
            "valid_from": request.valid_from or (self.now if temporal and not request.valid_to else None),
            "valid_to": request.valid_to,
            "created_at": self.now,
            "last_confirmed_at": self.now,
            "tags": request.tags,
            "metadata": request.metadata,
        }

    async def _related(self, conn: Conn, place: _Place) -> tuple[Link, ...]:
        vector = self.ticket.vector
        if vector is None:
            return ()
        where = {"subject_key": place.subject_key, "predicate_key": place.predicate_key, "scope": place.scope}
        close = await facts.close_values(conn, self.who.tenant, where, vector, self.ticket.version, CLOSE)
        return tuple(Link(Relation.RELATED_TO, MemoryType.FACT, other) for other in close)

    async def _new_evidence(self, conn: Conn, fact: Fact) -> tuple[Link, ...]:
        if not self.evidence:
            return ()
        linked = await memories.links(conn, self.who.tenant, MemoryType.FACT, fact.id)
        known = {link["id"] for link in linked if (link["way"], link["relation"]) == ("out", Relation.DERIVED_FROM)}
        return tuple(link for link in self._evidence_links() if link.target_id not in known)

    def _evidence_links(self) -> tuple[Link, ...]:
        shown = tuple(Link(Relation.DERIVED_FROM, MemoryType.EPISODE, episode) for episode in self.evidence)
        return (*shown, Link(Relation.SUPERSEDES, MemoryType.FACT, self.corrects.id)) if self.corrects else shown

    def _idempotency_key(self) -> str | None:
        given = self.request.idempotency_key
        return repeat_key(self.tenant.digest_key, self.who, MemoryType.FACT, given) if given else None


def place_of_today(fact: Fact, registry: Registry, tenant: Tenant) -> dict[str, str]:
    """Where a stored fact belongs by what its predicate, as it was written, means today (F4)."""
    predicate = registry.find(fact.predicate or fact.predicate_key)
    # An observation without a date of its own got the clock's: its slot is the day's.
    dated = fact.valid_from != fact.created_at
    slot = slot_of(
        predicate,
        fact.content or "",
        valid_from=fact.valid_from if dated else None,
        now=fact.created_at,
        secret=tenant.digest_key,
        many_valued=tenant.many_valued,
    )
    return {"predicate_key": predicate.name if tenant.many_valued else fact.predicate_key, "slot": slot}


def _linked(fact: Fact, links: tuple[Link, ...]) -> Change:
    return Change(MemoryType.FACT, fact.id, fact.version + 1, EventType.LINKED, {}, links=links)


def retire(old: Fact, now: datetime) -> Change:
    values = {"validity": Validity.SUPERSEDED, "superseded_at": now}
    return Change(MemoryType.FACT, old.id, old.version + 1, EventType.SUPERSEDED, values)


def strengthen(desk: Desk, fact: Fact, now: datetime, *, confirm: bool, changes: dict[str, Any]) -> Change:
    """A confirmation, a revision of attributes, or both, with its new fading times."""
    values = dict(changes)
    if confirm:
        values["last_confirmed_at"] = max(now, fact.last_confirmed_at)
        values["validity"] = Validity.ACTIVE
    values |= desk.decay_columns(
        values.get("confidence", fact.confidence),
        values.get("decay_rate", fact.decay_rate),
        values.get("last_confirmed_at", fact.last_confirmed_at),
    )
    event = EventType.CONFIRMED if confirm else EventType.REVISED
    indexed = desk.vectors.retagged(fact, values["tags"]) if "tags" in values else None
    return Change(MemoryType.FACT, fact.id, fact.version + 1, event, values, indexed=indexed)
