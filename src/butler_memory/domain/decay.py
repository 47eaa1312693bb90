"""Confidence that fades unless confirmed, in closed form (F6, S2, J2)."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

from butler_memory.domain.clock import days_between
from butler_memory.domain.kinds import Permanence

DECAY_PER_DAY: dict[Permanence, float] = {
    Permanence.PERMANENT: 0.0,
    Permanence.STABLE: 0.002,
    Permanence.STANDARD: 0.008,
    Permanence.VOLATILE: 0.03,
    Permanence.EPHEMERAL: 0.1,
}

# A crossing further away than this cannot be written as a timestamp, and nobody will see it.
FURTHEST_CROSSING_DAYS = 365_000.0


def effective_confidence(confidence: float, decay_rate: float, last_confirmed_at: datetime, now: datetime) -> float:
    return confidence * math.exp(-decay_rate * days_between(last_confirmed_at, now))


def crosses_at(confidence: float, decay_rate: float, last_confirmed_at: datetime, threshold: float) -> datetime | None:
    """The moment at which effective confidence falls to `threshold`; None if it never does."""
    if threshold <= 0:
        return None
    if confidence <= threshold:
        return last_confirmed_at
    if decay_rate <= 0:
        return None
    days = math.log(confidence / threshold) / decay_rate
    if days > FURTHEST_CROSSING_DAYS:
        return None
    return last_confirmed_at + timedelta(days=days)
