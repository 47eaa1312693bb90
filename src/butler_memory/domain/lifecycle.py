"""Which state may follow which (F2, R1, E2). Any other step is an integrity error."""

from __future__ import annotations

from datetime import datetime, timedelta

from butler_memory.domain.kinds import ConsolidationStatus, EpisodeState, RuleStatus, Validity
from butler_memory.errors import Integrity

FACT_STEPS: frozenset[tuple[Validity, Validity]] = frozenset(
    {
        (Validity.ACTIVE, Validity.FADING),
        (Validity.FADING, Validity.ACTIVE),
        (Validity.ACTIVE, Validity.SUPERSEDED),
        (Validity.FADING, Validity.SUPERSEDED),
        (Validity.ACTIVE, Validity.EXPIRED),
        (Validity.FADING, Validity.EXPIRED),
        (Validity.ACTIVE, Validity.RETRACTED),
        (Validity.FADING, Validity.RETRACTED),
        (Validity.SUPERSEDED, Validity.RETRACTED),
        (Validity.EXPIRED, Validity.RETRACTED),
        (Validity.RETRACTED, Validity.ACTIVE),
        (Validity.EXPIRED, Validity.ACTIVE),
        (Validity.SUPERSEDED, Validity.ACTIVE),
    }
)

RULE_STEPS: frozenset[tuple[RuleStatus, RuleStatus]] = frozenset(
    {(RuleStatus(a.value), RuleStatus(b.value)) for a, b in FACT_STEPS}
    | {
        (RuleStatus.ACTIVE, RuleStatus.DISABLED),
        (RuleStatus.FADING, RuleStatus.DISABLED),
        (RuleStatus.DISABLED, RuleStatus.ACTIVE),
        (RuleStatus.DISABLED, RuleStatus.RETRACTED),
        (RuleStatus.DISABLED, RuleStatus.SUPERSEDED),
    }
)

EPISODE_STEPS: frozenset[tuple[EpisodeState, EpisodeState]] = frozenset(
    {(EpisodeState.ACTIVE, EpisodeState.RETRACTED), (EpisodeState.RETRACTED, EpisodeState.ACTIVE)}
)

_PENDING = ConsolidationStatus.PENDING
CONSOLIDATION_STEPS: frozenset[tuple[ConsolidationStatus, ConsolidationStatus]] = frozenset(
    {
        (_PENDING, ConsolidationStatus.CONSOLIDATED),
        (_PENDING, ConsolidationStatus.FAILED),
        (_PENDING, ConsolidationStatus.DEAD_LETTER),
        # A person requeues, or restores what was forgotten.
        (ConsolidationStatus.FAILED, _PENDING),
        (ConsolidationStatus.DEAD_LETTER, _PENDING),
    }
)

# Inputs of older clients that mean a state of ours (F2).
LEGACY_STATES = {"forgotten": "retracted"}

RESTORABLE = frozenset({"retracted", "expired", "superseded"})


# What was not consolidated is kept this long for a person to look at, and to requeue (E2).
KEPT_FOR_A_PERSON = timedelta(days=90)


def kept_for_a_person(expires_at: datetime, now: datetime) -> datetime:
    return max(expires_at, now + KEPT_FOR_A_PERSON)


def state_from_text(text: str) -> str:
    return LEGACY_STATES.get(text, text)


def check_fact_step(before: Validity, after: Validity) -> None:
    _check("fact", before, after, (before, after) in FACT_STEPS)


def check_rule_step(before: RuleStatus, after: RuleStatus) -> None:
    _check("rule", before, after, (before, after) in RULE_STEPS)


def check_episode_step(before: EpisodeState, after: EpisodeState) -> None:
    _check("episode", before, after, (before, after) in EPISODE_STEPS)


def check_consolidation_step(before: ConsolidationStatus, after: ConsolidationStatus) -> None:
    _check("episode", before, after, (before, after) in CONSOLIDATION_STEPS)


def _check(what: str, before: str, after: str, allowed: bool) -> None:
    if not allowed:
        raise Integrity(f"A {what} cannot go from {before} to {after}.", reason="illegal_transition")
