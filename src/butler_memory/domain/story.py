"""What happened to a memory, in one line that a person understands.

A line shows only what its reader may see in the memory's row; where that is gone, it says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, assert_never
from uuid import UUID

from butler_memory.domain.clock import days_between
from butler_memory.domain.kinds import (
    ApplicationOutcome,
    ConsolidationStatus,
    EventType,
    MemoryType,
    TombstoneReason,
)
from butler_memory.domain.records import AnyMemory, Episode, FromRow, Rule
from butler_memory.domain.sentence import one_line

# A feed is skimmed; who wants all of it asks for the memory.
LONGEST_LINE = 200
GONE = "its text is gone"


@dataclass(frozen=True)
class Happened(FromRow):
    """One event. `body` is its text, where that was asked for and is still there."""

    id: int
    type: MemoryType
    memory_id: UUID
    version: int
    event_type: EventType
    occurred_at: datetime
    actor: str
    request_id: str | None
    payload: Mapping[str, Any]
    body: Mapping[str, Any] | None

    @property
    def values(self) -> Mapping[str, Any]:
        """The columns without free text that it set."""
        values: Mapping[str, Any] = self.payload.get("set", {})
        return values


def summary(event: Happened, memory: AnyMemory | None) -> str:
    """One line for the feed; `memory` is the row as it is now, if there is one."""
    deed = f"{event.type} {_deed(event, memory)}"
    if event.event_type is EventType.DELETED:
        return deed
    line = _line(event, memory)
    return f"{deed} ({GONE})" if line is None else f"{deed}: {short(line)}"


def short(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"


def _line(event: Happened, memory: AnyMemory | None) -> str | None:
    if memory is None or memory.content is None:
        return None
    if isinstance(memory, Rule) and memory.original_content and event.event_type is not EventType.INVERTED:
        return one_line(memory.original_content)  # before it became a warning it said the opposite
    return memory.line


def _deed(event: Happened, memory: AnyMemory | None) -> str:
    match event.event_type:
        case EventType.CREATED:
            return "stored"
        case EventType.SUPERSEDED:
            return "superseded"
        case EventType.CONFIRMED:
            return confirmation(event)
        case EventType.REVISED:
            return "changed"
        case EventType.LINKED:
            return "linked"
        case EventType.FADED:
            return f"faded{_unconfirmed(event, memory)}"
        case EventType.EXPIRED:
            return f"expired{_unconfirmed(event, memory)}"
        case EventType.RETRACTED:
            return "forgotten"
        case EventType.RESTORED:
            return "restored"
        case EventType.PROMOTED:
            return f"promoted to {level(event)}"
        case EventType.DEMOTED:
            return f"demoted to {level(event)}"
        case EventType.INVERTED:
            return "became a warning"
        case EventType.MARKED:
            return f"marked {outcome(event)}"
        case EventType.DISABLED:
            return "disabled"
        case EventType.ENABLED:
            return "enabled"
        case EventType.CONSOLIDATED:
            return "consolidated"
        case EventType.CONSOLIDATION_FAILED:
            return failure(event)
        case EventType.REQUEUED:
            return "queued for consolidation again"
        case EventType.DELETED:
            return f"deleted: {why_deleted(event)}"
        case EventType.ERASED:
            return "erased"
        case EventType.RESLOTTED:
            return "moved, as its predicate has another meaning now"
        case EventType.CONFIDENCE_ALERT:
            return "should be confirmed before it fades away"
    assert_never(event.event_type)


def _unconfirmed(event: Happened, memory: AnyMemory | None) -> str:
    """For how long; unknown where the row says that it was confirmed since."""
    if memory is None or isinstance(memory, Episode) or memory.last_confirmed_at > event.occurred_at:
        return ""
    return f", not confirmed for {days_unconfirmed(memory.last_confirmed_at, event.occurred_at)}"


def days_unconfirmed(since: datetime, until: datetime) -> str:
    days = int(days_between(since, until))
    return f"{days} day" if days == 1 else f"{days} days"


def confirmation(event: Happened) -> str:
    return "said again" if event.payload.get("said_again") else "confirmed"


def level(event: Happened) -> str:
    return str(event.values.get("maturity", "another level")).replace("_", "-")


def outcome(event: Happened) -> ApplicationOutcome:
    """Only a helpful mark confirms the rule, and only a harmful one takes away a level that a person set (R1, R5)."""
    if "last_confirmed_at" in event.values:
        return ApplicationOutcome.HELPFUL
    return ApplicationOutcome.HARMFUL if "pinned" in event.values else ApplicationOutcome.NEUTRAL


def failure(event: Happened) -> str:
    match event.values.get("consolidation_status"):
        case ConsolidationStatus.FAILED:
            return "could not be consolidated and is left to a person"
        case ConsolidationStatus.DEAD_LETTER:
            return "could not be consolidated; all attempts are used up"
        case _:
            return "could not be consolidated yet and will be tried again"


def why_deleted(event: Happened) -> str:
    match event.payload.get("reason"):
        case TombstoneReason.EXPIRED:
            return "its time was over"
        case TombstoneReason.FORGOTTEN:
            return "it was forgotten"
        case TombstoneReason.ERASED:
            return "it was erased"
        case _:
            return "nobody noted why"
