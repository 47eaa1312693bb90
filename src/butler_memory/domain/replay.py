"""The fold of events, and its comparison with what the tables hold (L3). Pure: rows come in, differences come out.

What the trail cannot tell any more (a text that was erased, what stood before a gap) is not compared: it is UNKNOWN.
A difference names columns, versions and ids, never a content (G7).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from butler_memory.domain.clock import utc_text
from butler_memory.domain.kinds import EventType, MemoryType
from butler_memory.domain.records import FREE_TEXT, Episode, Fact, Rule

DECLARED: dict[MemoryType, tuple[str, ...]] = {
    kind: tuple(column.name for column in dataclasses.fields(record))
    for kind, record in ((MemoryType.EPISODE, Episode), (MemoryType.FACT, Fact), (MemoryType.RULE, Rule))
}
# What a tombstone keeps of its episode, beside the moment, the reason and a digest that no event knows.
KEPT_BY_TOMBSTONE = ("butler", "session_id", "occurred_at", "created_at")
COUNTERS = ("applied_count", "success_count", "harmful_count")
UNKNOWN = object()
_NEVER_TOLD = object()

LinkKey = tuple[str, str, str]  # relation, type and id of the other end


class Fault(StrEnum):
    """What can be wrong between a memory and its trail."""

    MISSING_ROW = "missing_row"
    ROW_WITHOUT_EVENTS = "row_without_events"
    ROW_REMAINS = "row_remains"  # of what the trail says was deleted
    COLUMN = "column"
    VERSION_GAP = "version_gap"
    EVENT_ORDER = "event_order"
    MALFORMED_EVENT = "malformed_event"
    MISSING_BODY = "missing_body"
    BODY_REMAINS = "body_remains"  # the text of what the trail says was deleted
    MISSING_LINK = "missing_link"
    EXTRA_LINK = "extra_link"
    LINK_TIME = "link_time"
    MISSING_TOMBSTONE = "missing_tombstone"
    EXTRA_TOMBSTONE = "extra_tombstone"
    TOMBSTONE = "tombstone"
    COUNTER = "counter"


@dataclass(frozen=True)
class Difference:
    type: MemoryType
    id: UUID
    fault: Fault
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TrailEvent:
    """An event as the fold reads it, with its text if that is still there."""

    id: int
    memory_id: UUID
    version: int
    event: EventType
    occurred_at: datetime
    payload: Mapping[str, Any]
    body: Mapping[str, Any] | None


class Told:
    """One memory as its events tell it so far; they come in the order of their versions."""

    def __init__(self, kind: MemoryType, memory_id: UUID) -> None:
        self.type = kind
        self.id = memory_id
        self.version = 0
        self.columns: dict[str, Any] = {}
        self.links: dict[LinkKey, str] = {}
        self.events = 0
        self.deleted_at = ""
        self.reason: str | None = None
        self.faults: list[tuple[Fault, str]] = []
        self._last_id = 0
        self._without_body: list[int] = []
        self._with_body = 0

    def add(self, event: TrailEvent) -> None:
        self._check_place(event)
        if event.event is EventType.ERASED:
            # It explains what is missing before it; what it leaves in the row, it says itself.
            self._without_body.clear()
            self._forget_text()
            self.columns["content"] = None
        self._take(event)
        for link in event.payload.get("links", ()):
            self.links.setdefault((link["relation"], link["type"], link["id"]), utc_text(event.occurred_at))
        if event.event is EventType.DELETED:
            self.deleted_at, self.reason = utc_text(event.occurred_at), event.payload.get("reason")
        self.version, self._last_id = event.version, event.id
        self.events += 1

    @property
    def is_deleted(self) -> bool:
        return bool(self.deleted_at)

    def trail_faults(self) -> list[Difference]:
        """What is wrong with the events themselves, whatever the tables hold."""
        faults = list(self.faults)
        if not self.is_deleted:
            faults += [(Fault.MISSING_BODY, f"version {version}") for version in self._without_body]
        elif self._with_body:
            faults.append((Fault.BODY_REMAINS, f"{self._with_body} of {self.events} events"))
        return [Difference(self.type, self.id, fault, detail) for fault, detail in faults]

    def _check_place(self, event: TrailEvent) -> None:
        expected = self.version + 1
        if event.version != expected:
            self.faults.append((Fault.VERSION_GAP, f"version {expected}"))
            self.columns = dict.fromkeys(DECLARED[self.type], UNKNOWN)
        out_of_place = (event.event is EventType.CREATED) != (event.version == 1)
        if out_of_place or event.id <= self._last_id or self.is_deleted:
            self.faults.append((Fault.EVENT_ORDER, f"version {event.version}"))

    def _take(self, event: TrailEvent) -> None:
        plain, body = event.payload.get("set", {}), event.body
        if body is not None:
            self._with_body += 1
        elif event.event is EventType.CREATED or event.payload.get("body"):
            self._without_body.append(event.version)
            self._forget_text()
        text = body.get("set", {}) if body else {}
        if not plain.keys().isdisjoint(FREE_TEXT) or not text.keys() <= FREE_TEXT:
            self.faults.append((Fault.MALFORMED_EVENT, f"version {event.version}: text and values are mixed"))
        self.columns.update(plain)
        self.columns.update(text)

    def _forget_text(self) -> None:
        self.columns.update(dict.fromkeys(FREE_TEXT.intersection(DECLARED[self.type]), UNKNOWN))


@dataclass(frozen=True)
class Stored:
    """What the tables hold of one memory."""

    row: Mapping[str, Any] | None = None
    tombstone: Mapping[str, Any] | None = None
    links: Mapping[LinkKey, datetime] = field(default_factory=dict)
    applications: Mapping[str, int] | None = None


def compare(kind: MemoryType, memory_id: UUID, told: Told | None, stored: Stored) -> list[Difference]:
    """Everything in which a memory differs from its trail; mostly nothing."""
    found = _of_existence(told, stored)
    if told is not None and stored.row is not None and not told.is_deleted:
        found += _of_columns(kind, told, stored.row)
    found += _of_links(told.links if told else {}, stored.links)
    if kind is MemoryType.RULE:
        found += _of_counters(told, stored)
    named = [Difference(kind, memory_id, fault, detail) for fault, detail in found]
    return told.trail_faults() + named if told else named


def _of_existence(told: Told | None, stored: Stored) -> list[tuple[Fault, str]]:
    if told is None:
        return [(Fault.ROW_WITHOUT_EVENTS, "")] if stored.row is not None else _no_tombstone(stored)
    if not told.is_deleted:
        missing = [(Fault.MISSING_ROW, "")] if stored.row is None else []
        return missing + _no_tombstone(stored)
    remains = [(Fault.ROW_REMAINS, "")] if stored.row is not None else []
    return remains + (_of_tombstone(told, stored.tombstone) if told.type is MemoryType.EPISODE else [])


def _no_tombstone(stored: Stored) -> list[tuple[Fault, str]]:
    return [(Fault.EXTRA_TOMBSTONE, "")] if stored.tombstone is not None else []


def _of_tombstone(told: Told, tombstone: Mapping[str, Any] | None) -> list[tuple[Fault, str]]:
    """A deleted episode leaves a tombstone that says what its trail says (E4)."""
    if tombstone is None:
        return [(Fault.MISSING_TOMBSTONE, told.reason or "")]
    expected = {name: told.columns.get(name) for name in KEPT_BY_TOMBSTONE}
    expected |= {"deleted_at": told.deleted_at, "reason": told.reason}
    return [(Fault.TOMBSTONE, name) for name, value in expected.items() if _differs(value, tombstone[name])]


def _of_columns(kind: MemoryType, told: Told, row: Mapping[str, Any]) -> list[tuple[Fault, str]]:
    own = {"tenant_id": row["tenant_id"], "id": str(told.id), "version": told.version}
    unknown = [(Fault.MALFORMED_EVENT, "a column that does not exist")] if _strange(kind, told) else []
    expected = told.columns | own
    return unknown + [
        (Fault.COLUMN, name) for name in DECLARED[kind] if _differs(expected.get(name, _NEVER_TOLD), row[name])
    ]


def _strange(kind: MemoryType, told: Told) -> bool:
    return not told.columns.keys() <= set(DECLARED[kind])


def _of_links(told: Mapping[LinkKey, str], stored: Mapping[LinkKey, datetime]) -> list[tuple[Fault, str]]:
    missing = [(Fault.MISSING_LINK, " ".join(link)) for link in told.keys() - stored.keys()]
    extra = [(Fault.EXTRA_LINK, " ".join(link)) for link in stored.keys() - told.keys()]
    both = told.keys() & stored.keys()
    moved = [(Fault.LINK_TIME, " ".join(link)) for link in both if _differs(told[link], stored[link])]
    return sorted(missing + extra + moved)


def _of_counters(told: Told | None, stored: Stored) -> list[tuple[Fault, str]]:
    """The counters that the trail tells equal the marks; the row's are compared with the trail (R5)."""
    counted = stored.applications or dict.fromkeys(COUNTERS, 0)
    said = told.columns if told else stored.row or {}
    return [(Fault.COUNTER, name) for name in COUNTERS if _differs(said.get(name, 0), counted[name])]


def _differs(told: Any, stored: Any) -> bool:
    """Events hold times and ids as text. What is a number there must not be a truth value here (1 is not true)."""
    if told is UNKNOWN:
        return False
    if isinstance(stored, datetime):
        return bool(told != utc_text(stored))
    if isinstance(stored, UUID):
        return bool(told != str(stored))
    return bool(told != stored) or isinstance(told, bool) != isinstance(stored, bool)
