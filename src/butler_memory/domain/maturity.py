"""How rules earn and lose trust (R2 to R4)."""

from __future__ import annotations

from dataclasses import dataclass

from butler_memory.domain.kinds import ApplicationOutcome, Maturity
from butler_memory.settings import Promotion, RuleSettings

# One harmful mark weighs as much as four helpful ones: bad advice must lose quickly.
HARMFUL_WEIGHT = 4
# Keeps the score of an unmarked rule at 0 instead of 0/0.
SMOOTHING = 0.01

LADDER = (Maturity.CANDIDATE, Maturity.ESTABLISHED, Maturity.PROVEN)


@dataclass(frozen=True)
class Record:
    """What is known of a rule's use."""

    success: int
    harmful: int
    age_days: float

    @property
    def effectiveness(self) -> float:
        return effectiveness(self.success, self.harmful)


def effectiveness(success: int, harmful: int) -> float:
    return success / (success + HARMFUL_WEIGHT * harmful + SMOOTHING)


def earned_maturity(record: Record, settings: RuleSettings) -> Maturity:
    """The level that a rule's record supports, anti-patterns aside."""
    if _reaches(record, settings.promote_to_proven):
        return Maturity.PROVEN
    return Maturity.ESTABLISHED if _reaches(record, settings.promote_to_established) else Maturity.CANDIDATE


def _reaches(record: Record, step: Promotion) -> bool:
    return (
        record.success >= step.min_successes
        and record.effectiveness >= step.min_effectiveness
        and record.age_days >= step.min_age_days
    )


def must_invert(record: Record, settings: RuleSettings) -> bool:
    limit = settings.harmful_to_antipattern
    return record.harmful >= limit.min_harmful and record.effectiveness < limit.max_effectiveness


def after_mark(
    level: Maturity, outcome: ApplicationOutcome, record: Record, settings: RuleSettings, *, pinned: bool
) -> Maturity:
    """Helpful marks may only raise a rule, harmful ones only lower it; a warning stays one until a person undoes it."""
    if level is Maturity.ANTI_PATTERN:
        return level
    earned = earned_maturity(record, settings)
    if outcome is ApplicationOutcome.HARMFUL:
        if must_invert(record, settings):
            return Maturity.ANTI_PATTERN
        return earned if is_promotion(earned, level) else level
    return earned if is_promotion(level, earned) and not pinned else level


def after_time(level: Maturity, record: Record, settings: RuleSettings, *, pinned: bool) -> Maturity:
    """Age passes without a mark: it may raise a rule, and a limit that was changed may make it a warning (R3, R4).

    A level that a person set is not time's to move (R1).
    """
    if pinned or level is Maturity.ANTI_PATTERN:
        return level
    if must_invert(record, settings):
        return Maturity.ANTI_PATTERN
    earned = earned_maturity(record, settings)
    return earned if is_promotion(level, earned) else level


def is_promotion(before: Maturity, after: Maturity) -> bool:
    return LADDER.index(after) > LADDER.index(before)


def anti_pattern_text(rule: str, reasons: list[str], harmful: int) -> str:
    said = [reason.strip() for reason in reasons if reason.strip()]
    because = "; ".join(said) or f"reported harmful {harmful} times"
    return f"ANTI-PATTERN: Do NOT {rule.strip().rstrip('.')}. This caused problems because: {because}"
