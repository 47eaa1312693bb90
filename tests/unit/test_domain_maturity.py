"""How rules earn and lose trust (R2 to R4)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from butler_memory.domain.kinds import ApplicationOutcome, Maturity
from butler_memory.domain.maturity import (
    Record,
    after_mark,
    after_time,
    anti_pattern_text,
    earned_maturity,
    effectiveness,
    must_invert,
)
from butler_memory.settings import RuleSettings

law = settings(deadline=None, derandomize=True, database=None)
RULES = RuleSettings()
counts = st.integers(0, 10_000)


def test_r2_ten_helpful_and_two_harmful_is_56_percent_and_not_established() -> None:
    assert effectiveness(10, 2) == pytest.approx(0.56, abs=0.005)
    assert earned_maturity(Record(10, 2, 400), RULES) is Maturity.CANDIDATE


def test_r2_an_unmarked_rule_has_no_effectiveness() -> None:
    assert effectiveness(0, 0) == 0.0


@law
@given(counts, counts)
def test_r2_effectiveness_is_a_share_that_a_mark_moves_its_own_way(success: int, harmful: int) -> None:
    score = effectiveness(success, harmful)
    assert 0.0 <= score < 1.0
    assert effectiveness(success + 1, harmful) > score
    assert effectiveness(success, harmful + 1) <= score


@law
@given(st.integers(1, 1000), st.integers(0, 1000))
def test_r2_one_harmful_mark_weighs_as_much_as_four_helpful_ones(success: int, harmful: int) -> None:
    assert effectiveness(success, harmful) == pytest.approx(success / (success + 4 * harmful + 0.01))


@pytest.mark.parametrize(
    ("success", "harmful", "age_days", "level"),
    [
        (0, 0, 400, "candidate"),
        (4, 0, 400, "candidate"),
        (5, 0, 0, "established"),
        (6, 1, 0, "candidate"),  # 6 / 10.01 is just under 0.6
        (7, 1, 0, "established"),
        (15, 0, 29.99, "established"),
        (15, 0, 30, "proven"),
        (14, 0, 400, "established"),
        (16, 1, 400, "established"),  # 16 / 20.01 is just under 0.8
        (17, 1, 400, "proven"),
    ],
)
def test_r3_levels_are_reached_at_the_thresholds_and_not_before(
    success: int, harmful: int, age_days: float, level: str
) -> None:
    assert earned_maturity(Record(success, harmful, age_days), RULES) is Maturity(level)


_ORDER = [Maturity.CANDIDATE, Maturity.ESTABLISHED, Maturity.PROVEN]


@law
@given(st.integers(0, 60), st.integers(0, 10), st.floats(0, 400))
def test_r3_a_harmful_mark_never_promotes_and_a_helpful_one_or_age_never_demotes(
    success: int, harmful: int, age: float
) -> None:
    def rank(record: Record) -> int:
        return _ORDER.index(earned_maturity(record, RULES))

    now = rank(Record(success, harmful, age))
    assert rank(Record(success, harmful + 1, age)) <= now
    assert rank(Record(success + 1, harmful, age)) >= now
    assert rank(Record(success, harmful, age + 30)) >= now


def test_r3_a_harmful_mark_demotes_at_once() -> None:
    assert earned_maturity(Record(15, 0, 60), RULES) is Maturity.PROVEN
    assert earned_maturity(Record(15, 1, 60), RULES) is Maturity.ESTABLISHED
    assert earned_maturity(Record(15, 3, 60), RULES) is Maturity.CANDIDATE


@pytest.mark.parametrize(
    ("success", "harmful", "inverts"),
    [(0, 2, False), (0, 3, True), (5, 3, True), (6, 3, False), (100, 3, False), (0, 50, True)],
)
def test_r4_a_rule_inverts_at_three_harmful_marks_under_30_percent(success: int, harmful: int, inverts: bool) -> None:
    assert must_invert(Record(success, harmful, 1), RULES) is inverts


def test_r3_r4_the_settings_move_every_threshold() -> None:
    eager = RuleSettings.model_validate(
        {
            "promote_to_established": {"min_successes": 1, "min_effectiveness": 0.1},
            "promote_to_proven": {"min_successes": 2, "min_effectiveness": 0.1, "min_age_days": 0},
            "harmful_to_antipattern": {"min_harmful": 1, "max_effectiveness": 0.9},
        }
    )
    assert earned_maturity(Record(1, 0, 0), eager) is Maturity.ESTABLISHED
    assert earned_maturity(Record(2, 0, 0), eager) is Maturity.PROVEN
    assert must_invert(Record(2, 1, 0), eager)


def test_r4_the_warning_has_the_words_of_the_contract() -> None:
    assert anti_pattern_text("send emails at night", ["woke the user", "was ignored"], 3) == (
        "ANTI-PATTERN: Do NOT send emails at night. This caused problems because: woke the user; was ignored"
    )


@pytest.mark.parametrize("reasons", [[], [""], ["  "]])
def test_r4_without_reasons_the_warning_counts_the_reports(reasons: list[str]) -> None:
    assert anti_pattern_text("send emails at night", reasons, 4).endswith("because: reported harmful 4 times")


def test_r4_a_rule_that_ends_in_a_full_stop_gets_only_one() -> None:
    assert "at night. This" in anti_pattern_text("send emails at night. ", [], 3)


H, X = ApplicationOutcome.HELPFUL, ApplicationOutcome.HARMFUL
LEVELS = (Maturity.CANDIDATE, Maturity.ESTABLISHED, Maturity.PROVEN)
records = st.builds(Record, st.integers(0, 60), st.integers(0, 20), st.floats(0, 400))


@law
@given(st.sampled_from(LEVELS), records, st.booleans())
def test_r3_a_helpful_mark_never_lowers_and_a_harmful_one_never_raises(
    level: Maturity, record: Record, pinned: bool
) -> None:
    after = after_mark(level, H, record, RULES, pinned=pinned)
    assert LEVELS.index(after) >= LEVELS.index(level)
    down = after_mark(level, X, record, RULES, pinned=pinned)
    assert down is Maturity.ANTI_PATTERN or LEVELS.index(down) <= LEVELS.index(level)


@law
@given(st.sampled_from([H, X]), records, st.booleans())
def test_r4_a_warning_stays_a_warning(outcome: ApplicationOutcome, record: Record, pinned: bool) -> None:
    assert after_mark(Maturity.ANTI_PATTERN, outcome, record, RULES, pinned=pinned) is Maturity.ANTI_PATTERN


@law
@given(records)
def test_r1_a_pinned_level_is_not_raised_by_marks(record: Record) -> None:
    assert after_mark(Maturity.CANDIDATE, H, record, RULES, pinned=True) is Maturity.CANDIDATE


@law
@given(st.sampled_from(LEVELS), records)
def test_r1_time_leaves_a_pinned_level_alone_whatever_the_record(level: Maturity, record: Record) -> None:
    """A harmful mark takes the pin away; without one since, only limits that were changed could lower it."""
    assert after_time(level, record, RULES, pinned=True) is level


@law
@given(records, st.booleans())
def test_r4_time_leaves_a_warning_one(record: Record, pinned: bool) -> None:
    assert after_time(Maturity.ANTI_PATTERN, record, RULES, pinned=pinned) is Maturity.ANTI_PATTERN
