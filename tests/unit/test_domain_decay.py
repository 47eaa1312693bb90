"""Confidence that fades unless confirmed (F6, S2, J2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from butler_memory.domain.decay import DECAY_PER_DAY, crosses_at, effective_confidence
from butler_memory.domain.kinds import Permanence

law = settings(deadline=None, derandomize=True, database=None)
CONFIRMED = datetime(2026, 3, 1, 12, tzinfo=UTC)
confidences = st.floats(0.01, 1.0)
rates = st.sampled_from(sorted(DECAY_PER_DAY.values()))
fading_rates = st.sampled_from([rate for rate in DECAY_PER_DAY.values() if rate])
spans = st.timedeltas(timedelta(0), timedelta(days=3650))


def test_f6_permanence_sets_the_decay_rate_of_the_contract() -> None:
    assert {
        Permanence.PERMANENT: 0.0,
        Permanence.STABLE: 0.002,
        Permanence.STANDARD: 0.008,
        Permanence.VOLATILE: 0.03,
        Permanence.EPHEMERAL: 0.1,
    } == DECAY_PER_DAY


@pytest.mark.parametrize(
    ("permanence", "days", "left"),
    [("permanent", 3650, 1.0), ("stable", 100, 0.8187), ("standard", 30, 0.7866), ("volatile", 7, 0.8106),
     ("ephemeral", 1, 0.9048)],
)  # fmt: skip
def test_s2_effective_confidence_follows_the_formula(permanence: str, days: float, left: float) -> None:
    now = CONFIRMED + timedelta(days=days)
    assert effective_confidence(1.0, DECAY_PER_DAY[Permanence(permanence)], CONFIRMED, now) == pytest.approx(
        left, abs=5e-5
    )


@law
@given(confidences, rates, spans, spans)
def test_s2_decay_is_monotone_in_time_and_never_above_what_is_stored(
    confidence: float, rate: float, first: timedelta, second: timedelta
) -> None:
    sooner, later = sorted([CONFIRMED + first, CONFIRMED + second])
    before = effective_confidence(confidence, rate, CONFIRMED, sooner)
    after = effective_confidence(confidence, rate, CONFIRMED, later)
    assert 0 <= after <= before <= confidence


@law
@given(confidences, rates, spans)
def test_l6_a_clock_that_steps_back_gives_age_zero(confidence: float, rate: float, back: timedelta) -> None:
    assert effective_confidence(confidence, rate, CONFIRMED, CONFIRMED - back) == confidence


@law
@given(confidences, fading_rates, st.floats(0.01, 0.99))
def test_j2_the_crossing_time_agrees_with_the_formula(confidence: float, rate: float, threshold: float) -> None:
    crossing = crosses_at(confidence, rate, CONFIRMED, threshold)
    assert crossing is not None
    if confidence <= threshold:
        assert crossing == CONFIRMED
        return
    # A timestamp holds microseconds, so the level is met to within what decays in one.
    slack = threshold * rate / 86_400e6 + 1e-12
    assert effective_confidence(confidence, rate, CONFIRMED, crossing) == pytest.approx(threshold, abs=slack)
    tick = timedelta(seconds=1)
    assert effective_confidence(confidence, rate, CONFIRMED, crossing + tick) < threshold
    if crossing - tick > CONFIRMED:
        assert effective_confidence(confidence, rate, CONFIRMED, crossing - tick) > threshold


@law
@given(st.floats(0.5, 1.0), st.floats(0.01, 0.4))
def test_j2_what_is_permanent_never_crosses(confidence: float, threshold: float) -> None:
    assert crosses_at(confidence, DECAY_PER_DAY[Permanence.PERMANENT], CONFIRMED, threshold) is None


def test_j2_a_threshold_of_zero_is_never_reached() -> None:
    assert crosses_at(1.0, 0.1, CONFIRMED, 0.0) is None


def test_j2_a_crossing_beyond_a_thousand_years_is_none_and_no_overflow() -> None:
    assert crosses_at(1.0, 1e-9, CONFIRMED, 0.2) is None
