"""How rules earn and lose trust (R2 to R4)."""

from __future__ import annotations

from dataclasses import dataclass

from butler_memory.domain.kinds import Maturity
from butler_memory.settings import RuleSettings

# One harmful mark weighs as much as four helpful ones: bad advice must lose quickly.
HARMFUL_WEIGHT = 4
# Keeps the score of an unmarked rule at 0 instead of 0/0.
SMOOTHING = 0.01


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
    proven, established = settings.promote_to_proven, settings.promote_to_established
    score = record.effectiveness
    if (
        record.success >= proven.min_successes
        and score >= proven.min_effectiveness
        and record.age_days >= proven.min_age_days
    ):
        return Maturity.PROVEN
    if record.success >= established.min_successes and score >= established.min_effectiveness:
        return Maturity.ESTABLISHED
    return Maturity.CANDIDATE


def must_invert(record: Record, settings: RuleSettings) -> bool:
    limit = settings.harmful_to_antipattern
    return record.harmful >= limit.min_harmful and record.effectiveness < limit.max_effectiveness


def anti_pattern_text(rule: str, reasons: list[str], harmful: int) -> str:
    said = [reason.strip() for reason in reasons if reason.strip()]
    because = "; ".join(said) or f"reported harmful {harmful} times"
    return f"ANTI-PATTERN: Do NOT {rule.strip().rstrip('.')}. This caused problems because: {because}"
