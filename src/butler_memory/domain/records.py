"""The memories as values. `extra` columns of a row (vectors, search text) never appear here."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self, get_type_hints
from uuid import UUID

from butler_memory.domain.kinds import (
    LIVE_STATUS,
    LIVE_VALIDITY,
    ConsolidationStatus,
    ContentStatus,
    EpisodeState,
    Maturity,
    MemoryType,
    Permanence,
    RuleStatus,
    SourceKind,
    Validity,
)
from butler_memory.domain.sentence import line_of_fact, one_line


class FromRow:
    """Builds a frozen record from a row, giving closed sets their enum types."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(**{name: convert(row[name]) for name, convert in _converters(cls).items()})


@dataclass(frozen=True)
class Episode(FromRow):
    tenant_id: str
    id: UUID
    version: int
    state: EpisodeState
    butler: str
    session_id: UUID | None
    content: str | None
    content_status: ContentStatus
    importance: float
    consolidation_status: ConsolidationStatus
    consolidation_attempts: int
    last_consolidation_error: str | None
    next_consolidation_retry_at: datetime | None
    occurred_at: datetime
    created_at: datetime
    expires_at: datetime
    request_id: str | None
    source_kind: SourceKind
    tags: list[str]
    metadata: dict[str, Any]

    type = MemoryType.EPISODE

    @property
    def line(self) -> str:
        return one_line(self.content or "")

    @property
    def embedded(self) -> str:
        """What its vector is made of: it never changes in the life of a row, so that a vector is never out of date."""
        return self.line

    @property
    def condition(self) -> str:
        return self.state.value

    @property
    def scope(self) -> str:
        return self.butler


@dataclass(frozen=True)
class Fact(FromRow):
    tenant_id: str
    id: UUID
    version: int
    subject: str | None
    predicate: str | None
    subject_key: str
    predicate_key: str
    slot: str
    content: str | None
    content_status: ContentStatus
    importance: float
    confidence: float
    decay_rate: float
    permanence: Permanence
    validity: Validity
    scope: str
    source_kind: SourceKind
    source_butler: str
    source_episode_id: UUID | None
    source_session_id: UUID | None
    request_id: str | None
    supersedes_id: UUID | None
    superseded_at: datetime | None
    valid_from: datetime | None
    valid_to: datetime | None
    fades_at: datetime | None
    expires_at_conf: datetime | None
    created_at: datetime
    last_confirmed_at: datetime
    tags: list[str]
    metadata: dict[str, Any]

    type = MemoryType.FACT

    @property
    def condition(self) -> str:
        return self.validity.value

    @property
    def is_live(self) -> bool:
        return self.validity in LIVE_VALIDITY

    @property
    def line(self) -> str:
        return line_of_fact(self.subject or "", self.predicate or "", self.content or "")

    @property
    def embedded(self) -> str:
        return self.line


@dataclass(frozen=True)
class Rule(FromRow):
    tenant_id: str
    id: UUID
    version: int
    content: str | None
    content_status: ContentStatus
    original_content: str | None
    meaning: str
    importance: float
    confidence: float
    decay_rate: float
    permanence: Permanence
    status: RuleStatus
    maturity: Maturity
    pinned: bool
    effectiveness_score: float
    applied_count: int
    success_count: int
    harmful_count: int
    scope: str
    source_kind: SourceKind
    source_butler: str
    source_episode_id: UUID | None
    source_session_id: UUID | None
    request_id: str | None
    supersedes_id: UUID | None
    superseded_at: datetime | None
    fades_at: datetime | None
    expires_at_conf: datetime | None
    created_at: datetime
    last_confirmed_at: datetime
    last_applied_at: datetime | None
    last_evaluated_at: datetime | None
    tags: list[str]
    metadata: dict[str, Any]

    type = MemoryType.RULE

    @property
    def line(self) -> str:
        return one_line(self.content or "")

    @property
    def embedded(self) -> str:
        return one_line(self.original_content or self.content or "")  # a warning is found where the rule was (R4)

    @property
    def condition(self) -> str:
        return self.status.value

    @property
    def is_live(self) -> bool:
        return self.status in LIVE_STATUS


AnyMemory = Episode | Fact | Rule

# Free text: it lives in event bodies, apart from the event, so that it can expire or be erased (L3).
FREE_TEXT = frozenset(
    {"content", "subject", "predicate", "subject_key", "predicate_key", "original_content", "tags",
     "metadata", "last_consolidation_error"}
)  # fmt: skip


_CONVERTERS: dict[type, dict[str, Any]] = {}


def _converters(cls: type) -> dict[str, Any]:
    """Column -> function, worked out once per record type."""
    if cls not in _CONVERTERS:
        hints = get_type_hints(cls)
        fields = dataclasses.fields(cls)
        _CONVERTERS[cls] = {f.name: _converter(hints[f.name]) for f in fields}
    return _CONVERTERS[cls]


def _converter(hint: Any) -> Any:
    is_enum = isinstance(hint, type) and hasattr(hint, "__members__")
    return hint if is_enum else lambda value: value
