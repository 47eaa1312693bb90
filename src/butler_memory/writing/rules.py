"""Storing a rule: a candidate, unless it is known already or known to be harmful (R1, R4, R8)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from butler_memory.domain.clock import new_id
from butler_memory.domain.decay import DECAY_PER_DAY
from butler_memory.domain.kinds import (
    ContentStatus,
    EventType,
    Maturity,
    MemoryType,
    Relation,
    RuleStatus,
    WriteOutcome,
)
from butler_memory.domain.records import Rule
from butler_memory.domain.requests import StoreRule, session_uuid
from butler_memory.domain.sentence import one_line
from butler_memory.domain.text import digest, meaning, same_form
from butler_memory.errors import Conflict
from butler_memory.postgres import keys, memories, rules
from butler_memory.postgres.changes import Author, Change, Link, apply
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import GLOBAL, Principal, writable_scope
from butler_memory.writing.desk import CLOSE, Desk, Written, author_of, repeat_key, repeated
from butler_memory.writing.facts import SAID, SAID_AGAIN
from butler_memory.writing.vectors import Ticket


async def store_rule(
    desk: Desk, who: Principal, request: StoreRule, now: datetime, evidence: Sequence[UUID] = ()
) -> Written:
    scope = writable_scope(who, request.scope or GLOBAL)
    saying = await prepared(desk, who, request, scope, author_of(who, request, now), tuple(evidence))
    return await desk.write(who.tenant, saying.ticket, saying.run)


async def prepared(
    desk: Desk, who: Principal, request: StoreRule, scope: str, author: Author, evidence: tuple[UUID, ...] = ()
) -> Saying:
    """With its vector on the way; what follows needs a transaction."""
    secret = (await desk.tenant(who.tenant)).digest_key
    ticket = await desk.vectors.soon(who.tenant, one_line(request.content))
    derived = tuple(Link(Relation.DERIVED_FROM, MemoryType.EPISODE, episode) for episode in evidence)
    return Saying(desk, who, request, scope, secret, ticket, author, derived)


@dataclass(frozen=True)
class Saying:
    """One rule on its way into the memory."""

    desk: Desk
    who: Principal
    request: StoreRule
    scope: str
    secret: bytes
    ticket: Ticket
    author: Author
    derived: tuple[Link, ...]

    async def run(self, conn: Conn) -> Written:
        """In the caller's transaction."""
        tenant = self.who.tenant
        again = self._idempotency_key()
        earlier = await repeated(conn, self.who, again)
        if earlier:
            return earlier
        word_set = meaning_digest(self.request.content, self.secret)
        await rules.lock_meaning(conn, tenant, word_set)
        known = await known_rule(conn, tenant, word_set, self.scope)
        written = await (self._heard_again(conn, known) if known else self._create(conn, word_set))
        if again:
            await keys.claim(conn, tenant, again, MemoryType.RULE, written.id, self.author.now)
        return written

    async def _heard_again(self, conn: Conn, known: Rule) -> Written:
        said = await memories.said_in_session(
            conn, self.who.tenant, MemoryType.RULE, [known.id], self.author.session, SAID
        )
        linked = await memories.links(conn, self.who.tenant, MemoryType.RULE, known.id) if self.derived else []
        shown = {link["id"] for link in linked}
        links = tuple(link for link in self.derived if link.target_id not in shown)
        if said:  # nothing about it is new but, at most, where it was heard (F9)
            if links:
                change = Change(MemoryType.RULE, known.id, known.version + 1, EventType.LINKED, {}, links=links)
                await apply(conn, self.author, [change])
            return Written(MemoryType.RULE, known.id, WriteOutcome.DUPLICATE, known.condition, links=links)
        again = replace(confirm_rule(self.desk, known, self.author.now, links), noted=SAID_AGAIN)
        await apply(conn, self.author, [again])
        return Written(MemoryType.RULE, known.id, WriteOutcome.CONFIRMED, RuleStatus.ACTIVE, links=links)

    async def _create(self, conn: Conn, word_set: str) -> Written:
        self.ticket.require()
        links = self.derived + await _related(conn, self.desk, self.who.tenant, self.scope, self.ticket)
        change = _new_rule(self.desk, self.who, self.request, self.scope, word_set, self.author.now, links, self.ticket)
        await apply(conn, self.author, [change])
        return Written(MemoryType.RULE, change.id, WriteOutcome.CREATED, RuleStatus.ACTIVE, links=links)

    def _idempotency_key(self) -> str | None:
        given = self.request.idempotency_key
        return repeat_key(self.secret, self.who, MemoryType.RULE, given) if given else None


def meaning_digest(content: str, secret: bytes) -> str:
    # A text without words (emoji, punctuation) is only the same as itself.
    return digest(secret, "rule", *(meaning(content) or (same_form(content),)))


async def known_rule(conn: Conn, tenant: str, word_set: str, scope: str) -> Rule | None:
    """The live rule that says the same here or globally. What proved harmful or was disabled is not learned again."""
    same = await rules.same_meaning(conn, tenant, word_set, [scope, GLOBAL])
    warning = next((rule for rule in same if rule.maturity is Maturity.ANTI_PATTERN), None)
    if warning:
        raise Conflict(
            "This is a known anti-pattern: the same rule caused problems before.",
            reason="known_anti_pattern",
            recovery="Do not store it. Read the warning with memory_get; a person can undo it.",
            anti_pattern_id=str(warning.id),
        )
    disabled = next((rule for rule in same if rule.status is RuleStatus.DISABLED), None)
    if disabled:
        raise disabled_rule(disabled)
    return same[0] if same else None


def disabled_rule(rule: Rule) -> Conflict:
    return Conflict(
        "A person disabled this rule.",
        reason="disabled_rule",
        recovery="Leave it at that: only a person can enable it again or edit it.",
        disabled_id=str(rule.id),
    )


def retire_rule(old: Rule, now: datetime) -> Change:
    values = {"status": RuleStatus.SUPERSEDED, "superseded_at": now}
    return Change(MemoryType.RULE, old.id, old.version + 1, EventType.SUPERSEDED, values)


def confirm_rule(desk: Desk, rule: Rule, now: datetime, links: tuple[Link, ...] = ()) -> Change:
    confirmed = max(now, rule.last_confirmed_at)
    values = {"last_confirmed_at": confirmed, "status": RuleStatus.ACTIVE}
    values |= desk.fading_of(rule, rule.decay_rate, confirmed)
    return Change(MemoryType.RULE, rule.id, rule.version + 1, EventType.CONFIRMED, values, links=links)


async def _related(conn: Conn, desk: Desk, tenant: str, scope: str, ticket: Ticket) -> tuple[Link, ...]:
    if ticket.vector is None:
        return ()
    close = await rules.close_rules(conn, tenant, scope, ticket.vector, ticket.version, CLOSE)
    return tuple(Link(Relation.RELATED_TO, MemoryType.RULE, other) for other in close)


def _new_rule(
    desk: Desk,
    who: Principal,
    request: StoreRule,
    scope: str,
    word_set: str,
    now: datetime,
    links: tuple[Link, ...],
    ticket: Ticket,
) -> Change:
    rate = DECAY_PER_DAY[request.permanence]
    session = request.request_context.session_id
    episodes = [link.target_id for link in links if link.relation is Relation.DERIVED_FROM]
    values = fresh_rule_values(request.content, word_set, scope, now) | {
        "importance": request.importance,
        "confidence": request.confidence,
        "permanence": request.permanence,
        "decay_rate": rate,
        "source_kind": request.source_kind,
        "source_butler": who.butler,
        "source_episode_id": episodes[0] if episodes else None,
        "source_session_id": session_uuid(session) if session else None,
        "request_id": request.request_context.request_id,
        "supersedes_id": None,
        "tags": request.tags,
        "metadata": request.metadata,
    }
    values |= desk.decay_columns(request.confidence, rate, now)
    return Change(
        MemoryType.RULE,
        new_id(now),
        1,
        EventType.CREATED,
        values,
        indexed=desk.vectors.indexed(ticket, request.tags),
        links=links,
    )


def fresh_rule_values(content: str, word_set: str, scope: str, now: datetime) -> dict[str, Any]:
    """What every new rule row starts with: a candidate that nobody has applied."""
    return {
        "content": content,
        "content_status": ContentStatus.PLAIN,
        "original_content": None,
        "meaning": word_set,
        "status": RuleStatus.ACTIVE,
        "maturity": Maturity.CANDIDATE,
        "pinned": False,
        "effectiveness_score": 0.0,
        "applied_count": 0,
        "success_count": 0,
        "harmful_count": 0,
        "scope": scope,
        "superseded_at": None,
        "created_at": now,
        "last_confirmed_at": now,
        "last_applied_at": None,
        "last_evaluated_at": None,
    }
