"""What a newly stated fact does to those already known on its key (F3, F5, F9, F11)."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from butler_memory.domain.clock import utc_text
from butler_memory.domain.decay import DECAY_PER_DAY
from butler_memory.domain.kinds import USER_KINDS, Cardinality, Permanence, SourceKind
from butler_memory.domain.predicates import Predicate
from butler_memory.domain.records import Fact
from butler_memory.domain.requests import StoreFact
from butler_memory.domain.text import digest, meaning_of, same_form
from butler_memory.errors import InvalidInput

# How much a source is worth: a confirmation raises confidence only when this improves (F9).
SOURCE_RANK = {
    SourceKind.AGENT_INFERRED: 0,
    SourceKind.IMPORTED: 1,
    SourceKind.USER_STATED: 2,
    SourceKind.CORRECTED: 3,
}
# In characters. Two long texts may share all their words and still say different things; only a copy is the same.
LONGEST_IN_OTHER_WORDS = 2_000
INHERITED = ("permanence", "importance", "tags")


@dataclass(frozen=True)
class Create:
    """Nothing is known on this key and slot, or the predicate holds many values."""


@dataclass(frozen=True)
class Keep:
    """Said before and nothing new about it: the row stays as it is."""

    existing: Fact


@dataclass(frozen=True)
class Strengthen:
    """The same content again: a confirmation, a revision of attributes, or both."""

    existing: Fact
    confirms: bool
    changes: dict[str, Any]


@dataclass(frozen=True)
class Replace:
    """Other content on a single-valued key: the old one is retired by the new one."""

    existing: Fact
    inherited: dict[str, Any]


@dataclass(frozen=True)
class Contest:
    """What was only inferred says otherwise than what the user stated: both stand, until a person decides (F5)."""

    stated: Fact


@dataclass(frozen=True)
class ArriveLate:
    """Older evidence: kept, already superseded by what is newer."""

    newer: Fact


Decision = Create | Keep | Strengthen | Replace | Contest | ArriveLate

# The slot of a claim that contests a single value begins so: it stands beside that, and not in its place.
CLAIM = "claim:"


def slot_of(
    predicate: Predicate,
    content: str,
    *,
    valid_from: datetime | None,
    now: datetime,
    secret: bytes,
    many_valued: bool,
) -> str:
    """'' where a key holds one value; else a keyed digest that tells the values apart (F3)."""
    if not many_valued or predicate.cardinality is Cardinality.ONE:
        return ""
    if predicate.temporal:
        # Undated observations of one day are one observation; dated ones are told apart to the instant.
        moment = utc_text(valid_from) if valid_from else now.astimezone(UTC).date().isoformat()
        return digest(secret, moment, same_form(content))
    return digest(secret, same_form(content))


def scope_of(request: StoreFact, slot: str, live: Sequence[Fact], scopes: Sequence[str]) -> str | None:
    """The nearest scope where this statement meets a live fact: one that says it, or one that it would replace (F5)."""
    for scope in scopes:
        there = [fact for fact in live if fact.scope == scope]
        if holder_of(slot, there) or same_content(request.content, slot, request.valid_from, there):
            return scope
    return None


def decide(
    request: StoreFact, slot: str, on_key: Sequence[Fact], *, said_this_session: Container[UUID], now: datetime
) -> Decision:
    """`on_key`: the live facts with the same scope, subject and predicate; `said...`: those heard in this session."""
    same = same_content(request.content, slot, request.valid_from, on_key)
    if same is not None:
        return _again(request, same, same.id in said_this_session)
    holder = holder_of(slot, on_key)
    if holder is None:
        return Create()
    if _is_older(request, holder, now):
        return ArriveLate(holder)
    return Replace(holder, _inherited(request, holder))


def decide_reading(
    decision: Decision, request: StoreFact, said_at: datetime, last_said_at: datetime | None
) -> Decision:
    """The same for a statement that consolidation read: said at `said_at`, and what is known `last_said_at`.

    It may be old news, which neither retires nor confirms; what was only inferred retires nothing that the user stated;
    and what a reader thinks a fact is worth changes nothing about one that is known.
    """
    match decision:
        case Strengthen(existing, confirms, changes):
            kept = {name: value for name, value in changes.items() if name in ("source_kind", "confidence")}
            confirms = confirms and said_at >= (last_said_at or existing.created_at)
            return Strengthen(existing, confirms, kept) if confirms or kept else Keep(existing)
        case Replace(existing, inherited):
            if said_at < (last_said_at or existing.created_at):
                return ArriveLate(existing)
            worth = {name: getattr(existing, name) for name in ("importance", "tags")}
            return contested_or(Replace(existing, inherited | worth), request)
        case _:
            return decision


def would_hide(request: StoreFact, slot: str, own: Sequence[Fact], everywhere: Sequence[Fact]) -> bool:
    """In a scope of its own a single value hides the global one (F12). What was only inferred may not do that to what
    the user stated, unless that is hidden there already."""
    hidden = holder_of("", everywhere)
    is_stated = hidden is not None and hidden.source_kind in USER_KINDS
    return slot == "" and request.source_kind not in USER_KINDS and is_stated and holder_of("", own) is None


def contested_or(decision: Replace, request: StoreFact) -> Decision:
    stated = decision.existing.source_kind in USER_KINDS
    return Contest(decision.existing) if stated and request.source_kind not in USER_KINDS else decision


def claim_slot(secret: bytes, content: str) -> str:
    return CLAIM + digest(secret, same_form(content))


def is_claim(fact: Fact) -> bool:
    return fact.slot.startswith(CLAIM)


def claims_settled(request: StoreFact, on_key: Sequence[Fact], *, replaced: bool) -> list[Fact]:
    """The user's own word on a key ends what was only claimed there; so does what takes the place of what is contested,
    or the claim would stand beside that as if nobody had ever said otherwise."""
    settled = replaced or request.source_kind in USER_KINDS
    return [fact for fact in on_key if settled and is_claim(fact)]


def holder_of(slot: str, on_key: Sequence[Fact]) -> Fact | None:
    return next((fact for fact in on_key if fact.slot == slot), None)


def same_content(content: str, slot: str, valid_from: datetime | None, on_key: Sequence[Fact]) -> Fact | None:
    """The fact that says this already; of a many-valued key, in other words too (F11)."""
    form = same_form(content)
    exact = next((f for f in on_key if f.slot == slot and same_form(f.content or "") == form), None)
    if exact is not None or slot == "" or valid_from is not None:
        return exact
    return _in_other_words(content, [f for f in on_key if not f.valid_from])


def said_before(request: StoreFact, superseded: Sequence[Fact]) -> Fact | None:
    """Old news that is known as such: of the same content and, where it is dated, of the same time."""
    form, held = same_form(request.content), (request.valid_from, request.valid_to)
    return next(
        (f for f in superseded if same_form(f.content or "") == form and (f.valid_from, f.valid_to) == held), None
    )


def _in_other_words(content: str, undated: Sequence[Fact]) -> Fact | None:
    comparable = [fact for fact in undated if len(fact.content or "") <= LONGEST_IN_OTHER_WORDS]
    if not comparable or len(content) > LONGEST_IN_OTHER_WORDS:
        return None
    is_same = meaning_of(content)
    return next((fact for fact in comparable if is_same(fact.content or "")), None)


def _is_older(request: StoreFact, holder: Fact, now: datetime) -> bool:
    """By its dates: it began before what is known did, or was over before that is (F2)."""
    if request.valid_from and holder.valid_from and request.valid_from < holder.valid_from:
        return True
    ended = request.valid_to
    return ended is not None and ended < now and (holder.valid_to is None or ended < holder.valid_to)


def _again(request: StoreFact, existing: Fact, said_this_session: bool) -> Keep | Strengthen:
    improves = SOURCE_RANK[request.source_kind] > SOURCE_RANK[existing.source_kind]
    # The user's first saying of what was only inferred counts in the same session too; an import never confirms (F9).
    confirms = request.source_kind in USER_KINDS and (improves or not said_this_session)
    changes = _revised(request, existing)
    if improves:
        changes["source_kind"] = request.source_kind
        changes["confidence"] = max(existing.confidence, request.confidence)
    if not confirms and not changes:
        return Keep(existing)
    return Strengthen(existing, confirms, changes)


def _revised(request: StoreFact, existing: Fact) -> dict[str, Any]:
    """Attributes that the caller gave explicitly and that differ."""
    named = ("permanence", "importance", "tags", "valid_from", "valid_to")
    changes = {n: getattr(request, n) for n in named if request.gave(n) and getattr(request, n) != getattr(existing, n)}
    begins, ends = changes.get("valid_from", existing.valid_from), changes.get("valid_to", existing.valid_to)
    if begins and ends and ends < begins:
        raise InvalidInput(
            "'valid_to' must not be before the valid_from of the fact as it is known.",
            field="valid_to",
            reason="bad_range",
        )
    return with_decay_rate(changes)


def _inherited(request: StoreFact, old: Fact) -> dict[str, Any]:
    """A corrected allergy stays permanent: what the caller did not say is taken over."""
    return with_decay_rate({n: getattr(old, n) for n in INHERITED if not request.gave(n)})


def with_decay_rate(changes: dict[str, Any]) -> dict[str, Any]:
    if "permanence" in changes:
        changes["decay_rate"] = DECAY_PER_DAY[Permanence(changes["permanence"])]
    return changes
