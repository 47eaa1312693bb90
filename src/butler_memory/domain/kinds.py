"""The closed sets of words that rows, events and tools may use. The database checks the same sets."""

from __future__ import annotations

from enum import StrEnum


class MemoryType(StrEnum):
    EPISODE = "episode"
    FACT = "fact"
    RULE = "rule"


class Permanence(StrEnum):
    PERMANENT = "permanent"
    STABLE = "stable"
    STANDARD = "standard"
    VOLATILE = "volatile"
    EPHEMERAL = "ephemeral"


class Validity(StrEnum):
    """The life of a fact."""

    ACTIVE = "active"
    FADING = "fading"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    RETRACTED = "retracted"


class RuleStatus(StrEnum):
    """The life of a rule: a fact's, and `disabled` by a person."""

    ACTIVE = "active"
    FADING = "fading"
    SUPERSEDED = "superseded"
    EXPIRED = "expired"
    RETRACTED = "retracted"
    DISABLED = "disabled"


class Tier(StrEnum):
    """A view over the types (J4): what happened; what is believed for now; what lasts."""

    EDEN = "eden"
    MID = "mid"
    LONG = "long"


class EpisodeState(StrEnum):
    ACTIVE = "active"
    RETRACTED = "retracted"


class ConsolidationStatus(StrEnum):
    PENDING = "pending"
    CONSOLIDATED = "consolidated"
    FAILED = "failed"
    DEAD_LETTER = "dead_letter"


class Maturity(StrEnum):
    CANDIDATE = "candidate"
    ESTABLISHED = "established"
    PROVEN = "proven"
    ANTI_PATTERN = "anti_pattern"


class SourceKind(StrEnum):
    USER_STATED = "user_stated"
    AGENT_INFERRED = "agent_inferred"
    IMPORTED = "imported"
    CORRECTED = "corrected"


# The user's own word.
USER_KINDS = frozenset({SourceKind.USER_STATED, SourceKind.CORRECTED})


class ContentStatus(StrEnum):
    PLAIN = "plain"
    REDACTED = "redacted"
    ENCRYPTED = "encrypted"
    ERASED = "erased"


class Relation(StrEnum):
    DERIVED_FROM = "derived_from"
    SUPPORTS = "supports"
    CONTRADICTS = "contradicts"
    SUPERSEDES = "supersedes"
    RELATED_TO = "related_to"


class ApplicationOutcome(StrEnum):
    HELPFUL = "helpful"
    HARMFUL = "harmful"
    NEUTRAL = "neutral"


class Standing(StrEnum):
    """What a person may decide about a rule."""

    PROMOTE = "promote"
    DEMOTE = "demote"
    DISABLE = "disable"
    ENABLE = "enable"
    UNDO = "undo"


class EventType(StrEnum):
    """Everything that can happen to a memory (L2)."""

    CREATED = "created"
    SUPERSEDED = "superseded"
    CONFIRMED = "confirmed"
    REVISED = "revised"
    LINKED = "linked"
    FADED = "faded"
    EXPIRED = "expired"
    RETRACTED = "retracted"
    RESTORED = "restored"
    PROMOTED = "promoted"
    DEMOTED = "demoted"
    INVERTED = "inverted"
    MARKED = "marked"
    DISABLED = "disabled"
    ENABLED = "enabled"
    CONSOLIDATED = "consolidated"
    CONSOLIDATION_FAILED = "consolidation_failed"
    REQUEUED = "requeued"
    DELETED = "deleted"
    ERASED = "erased"
    RESLOTTED = "reslotted"
    CONFIDENCE_ALERT = "confidence_alert"


class TombstoneReason(StrEnum):
    """Why an episode's row is gone while links to it still resolve (E4)."""

    EXPIRED = "expired"
    FORGOTTEN = "forgotten"
    ERASED = "erased"


class JobName(StrEnum):
    """The engine's own jobs: they always exist, settings say only when they run (J1)."""

    CONSOLIDATE = "consolidate"
    DECAY_SWEEP = "decay_sweep"
    EPISODE_CLEANUP = "episode_cleanup"
    REEMBED = "reembed"

    @property
    def of_tenants(self) -> bool:
        """Each tenant has one shard of it; one of consolidation is a butler's, and comes with its first episode."""
        return self is not JobName.CONSOLIDATE


class RunOutcome(StrEnum):
    """How a run of a job ended. A lost one was cut off: its process died, or stood still past its lease."""

    OK = "ok"
    FAILED = "failed"
    LOST = "lost"
    STOPPED = "stopped"


class Role(StrEnum):
    BUTLER = "butler"
    READER = "reader"
    ADMIN = "admin"


class TriggerClass(StrEnum):
    """What started the session. Maintenance never becomes an episode (E5)."""

    SESSION = "session"
    MAINTENANCE = "maintenance"


class WriteOutcome(StrEnum):
    CREATED = "created"
    CONFIRMED = "confirmed"
    SUPERSEDED = "superseded"
    DUPLICATE = "duplicate"


class Cardinality(StrEnum):
    ONE = "one"
    MANY = "many"


class Sensitivity(StrEnum):
    NORMAL = "normal"
    SENSITIVE = "sensitive"
    HIGH = "high"


class SearchMode(StrEnum):
    HYBRID = "hybrid"
    SEMANTIC = "semantic"
    KEYWORD = "keyword"


class ContextStatus(StrEnum):
    """How a context came out. Empty and failed are told apart: a failure is `degraded` (C6)."""

    OK = "ok"
    EMPTY = "empty"
    DEGRADED = "degraded"
    BUDGET_TOO_SMALL = "budget_too_small"


LIVE_VALIDITY = frozenset({Validity.ACTIVE, Validity.FADING})
LIVE_STATUS = frozenset({RuleStatus.ACTIVE, RuleStatus.FADING})
