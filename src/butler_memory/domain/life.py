"""A memory's whole life as a person would tell it, from its events (L4).

Content is shown here: who asks may see the memory. Where a text is gone, what remains is told without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID

from butler_memory.domain.kinds import EventType, MemoryType, Relation, SourceKind
from butler_memory.domain.sentence import line_of_fact, one_line
from butler_memory.domain.story import (
    GONE,
    Happened,
    confirmation,
    days_unconfirmed,
    failure,
    level,
    outcome,
    why_deleted,
)

State = Mapping[str, Any]

# What a change of it means to a person; what follows from it (slots, rates, dates of fading) is not told.
_TOLD_COLUMNS = ("content", "importance", "permanence", "confidence", "tags", "valid_from", "valid_to", "source_kind")
_SOURCES = {
    SourceKind.USER_STATED: "as the user said it",
    SourceKind.AGENT_INFERRED: "as an agent understood it",
    SourceKind.IMPORTED: "by an import",
    SourceKind.CORRECTED: "as a correction",
}
_WAYS = {
    ("out", Relation.DERIVED_FROM): "derived from",
    ("out", Relation.SUPPORTS): "supports",
    ("out", Relation.CONTRADICTS): "contradicts",
    ("out", Relation.SUPERSEDES): "in place of",
    ("out", Relation.RELATED_TO): "close to",
    ("in", Relation.DERIVED_FROM): "source of",
    ("in", Relation.SUPPORTS): "supported by",
    ("in", Relation.CONTRADICTS): "contradicted by",
    ("in", Relation.SUPERSEDES): "superseded by",
    ("in", Relation.RELATED_TO): "close to",
}


@dataclass(frozen=True)
class Kin:
    """A memory at the other end of a link. `line` is what it says; None where it is gone or not for this reader."""

    way: str
    relation: Relation
    type: MemoryType
    id: UUID
    created_at: datetime
    line: str | None

    @property
    def told(self) -> str:
        named = f"{_WAYS[self.way, self.relation]} {self.type} {self.id}"
        return f"{named} ({self.line})" if self.line else named


@dataclass(frozen=True)
class Chapter:
    """One event, told. `began`: the links that came with it."""

    event: Happened
    told: str
    began: tuple[Kin, ...]


def life(events: Sequence[Happened], kin: Sequence[Kin]) -> list[Chapter]:
    chapters: list[Chapter] = []
    before: State = {}
    for event in events:
        after = {**before, **event.values, **(event.body or {}).get("set", {})}
        began = _began(event, kin)
        told = _tell(event, before, after, began)
        chapters.append(Chapter(event, f"{told} ({GONE})" if _lost_its_text(event) else told, began))
        before = after
    return chapters


def _began(event: Happened, kin: Sequence[Kin]) -> tuple[Kin, ...]:
    """The links that it made, and the successors that retired the memory at this moment."""
    made = {(link["relation"], link["id"]) for link in event.payload.get("links", ())}
    retired = event.event_type is EventType.SUPERSEDED
    return tuple(
        each
        for each in kin
        if (each.way == "out" and (each.relation, str(each.id)) in made)
        or (retired and _is_successor(each) and each.created_at == event.occurred_at)
    )


def _is_successor(kin: Kin) -> bool:
    return (kin.way, kin.relation) == ("in", Relation.SUPERSEDES)


def _lost_its_text(event: Happened) -> bool:
    return event.body is None and (event.event_type is EventType.CREATED or "body" in event.payload)


def _tell(event: Happened, before: State, after: State, began: Sequence[Kin]) -> str:
    by = f"by {event.actor.replace(':', ' ')}"
    match event.event_type:
        case EventType.CREATED:
            return _stored(event, after, began)
        case EventType.SUPERSEDED:
            return next((each.told for each in began if _is_successor(each)), "superseded")
        case EventType.CONFIRMED:
            return _with(
                f"{confirmation(event)} {by}{_session(event)}", _back_to_life(before), *_changes(before, after)
            )
        case EventType.REVISED:
            return _with(f"changed {by}", *_changes(before, after))
        case EventType.LINKED:
            return _with("linked", *(each.told for each in began))
        case EventType.FADED:
            return f"faded{_unconfirmed(event, before)}"
        case EventType.EXPIRED:
            return f"expired{_unconfirmed(event, before)}"
        case EventType.RETRACTED:
            return f"forgotten {by}"
        case EventType.RESTORED:
            return _with(f"restored {by}", *(each.told for each in began))
        case EventType.PROMOTED:
            return f"promoted to {level(event)}{_because(event, before, 'success_count', 'helpful')}"
        case EventType.DEMOTED:
            return f"demoted to {level(event)}{_because(event, before, 'harmful_count', 'harmful')}"
        case EventType.INVERTED:
            return _with(f"became a warning{_because(event, before, 'harmful_count', 'harmful')}", _line(event, after))
        case EventType.MARKED:
            return _with(f"marked {outcome(event)} {by}", (event.body or {}).get("reason"))
        case EventType.DISABLED:
            return f"disabled {by}"
        case EventType.ENABLED:
            return f"enabled {by}"
        case EventType.CONSOLIDATED:
            return "consolidated"
        case EventType.CONSOLIDATION_FAILED:
            return _with(failure(event), after.get("last_consolidation_error"))
        case EventType.REQUEUED:
            return f"queued for consolidation again {by}"
        case EventType.DELETED:
            return f"deleted: {why_deleted(event)}"
        case EventType.ERASED:
            return f"erased {by}"
        case EventType.RESLOTTED:
            return "moved, as its predicate has another meaning now"
        case EventType.CONFIDENCE_ALERT:
            return "asked to be confirmed, as it fades away"
    assert_never(event.event_type)


def _stored(event: Happened, after: State, began: Sequence[Kin]) -> str:
    source = _SOURCES.get(after.get("source_kind", ""), "")
    butler = after.get("butler") or after.get("source_butler")
    who = f"butler {butler}" if butler and event.actor == f"butler:{butler}" else event.actor.replace(":", " ")
    stored = f"stored by {who}{_session(event)} {source}".rstrip()
    late = "when something newer was known already" if after.get("validity") == "superseded" else None
    return _with(stored, late, _line(event, after), *(each.told for each in began))


def _session(event: Happened) -> str:
    """Only one that the caller named: where there was none, the token and the day stood in for it."""
    named = event.payload.get("lineage", {}).get("session_id")
    named = named or event.values.get("session_id") or event.values.get("source_session_id")
    return f" in session {named}" if named else ""


def _line(event: Happened, state: State) -> str | None:
    content = state.get("content")
    if content is None:
        return None
    if event.type is MemoryType.FACT:
        return line_of_fact(state.get("subject") or "", state.get("predicate") or "", content)
    return one_line(content)


def _back_to_life(before: State) -> str | None:
    return "no longer fading" if "fading" in (before.get("validity"), before.get("status")) else None


def _changes(before: State, after: State) -> list[str]:
    return [
        f"{name.replace('_', ' ')} from {_said(before[name])} to {_said(after[name])}"
        for name in _TOLD_COLUMNS
        if name in before and before[name] != after[name]
    ]


def _said(value: Any) -> str:
    match value:
        case None | []:
            return "none"
        case list():
            return ", ".join(map(str, value))
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _unconfirmed(event: Happened, before: State) -> str:
    since = before.get("last_confirmed_at")
    if since is None:
        return ""
    return f" after {days_unconfirmed(datetime.fromisoformat(since), event.occurred_at)} without confirmation"


def _because(event: Happened, before: State, counter: str, kind: str) -> str:
    """By a person's word, which pins the level, or by the marks it got."""
    if event.values.get("pinned"):
        return f" by {event.actor.replace(':', ' ')}, and held there"
    marks = before.get(counter, 0)
    return f" after {marks} {kind} mark{'' if marks == 1 else 's'}" if marks else ""


def _with(deed: str, *more: str | None) -> str:
    said = [one_line(str(each)) for each in more if each]
    return f"{deed}: {'; '.join(said)}" if said else deed
