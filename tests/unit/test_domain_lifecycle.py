"""Which state may follow which (F2, R1, E2, E7)."""

from __future__ import annotations

from itertools import product

import pytest

from butler_memory.domain.kinds import (
    LIVE_STATUS,
    LIVE_VALIDITY,
    ConsolidationStatus,
    EpisodeState,
    RuleStatus,
    Validity,
)
from butler_memory.domain.lifecycle import (
    CONSOLIDATION_STEPS,
    EPISODE_STEPS,
    FACT_STEPS,
    RESTORABLE,
    RULE_STEPS,
    check_consolidation_step,
    check_episode_step,
    check_fact_step,
    check_rule_step,
    state_from_text,
)
from butler_memory.errors import Integrity

# The table of SPEC F2, row by row; "(new) -> superseded" is a first state and no step.
F2_TABLE = """
active -> fading
fading -> active
active, fading -> superseded
active, fading -> expired
active, fading, superseded, expired -> retracted
retracted, expired, superseded -> active
"""


def steps(table: str) -> set[tuple[str, str]]:
    rows = [line.split(" -> ") for line in table.strip().splitlines()]
    return {(before, after) for befores, after in rows for before in befores.split(", ")}


def test_f2_the_steps_of_a_fact_are_the_table_of_the_contract() -> None:
    assert {(a.value, b.value) for a, b in FACT_STEPS} == steps(F2_TABLE)


def test_r1_a_rule_has_the_steps_of_a_fact_and_those_of_disabled() -> None:
    of_disabled = steps("active, fading -> disabled\ndisabled -> active\ndisabled -> retracted\ndisabled -> superseded")
    assert {(a.value, b.value) for a, b in RULE_STEPS} == steps(F2_TABLE) | of_disabled


def test_e2_an_episode_leaves_pending_three_ways_and_comes_back_two() -> None:
    assert {(a.value, b.value) for a, b in CONSOLIDATION_STEPS} == steps(
        "pending -> consolidated\npending -> failed\npending -> dead_letter\nfailed, dead_letter -> pending"
    )


def test_e7_an_episode_is_forgotten_and_restored() -> None:
    assert {(a.value, b.value) for a, b in EPISODE_STEPS} == steps("active -> retracted\nretracted -> active")


@pytest.mark.parametrize(("before", "after"), list(product(Validity, Validity)))
def test_f2_any_other_step_of_a_fact_is_an_integrity_error(before: Validity, after: Validity) -> None:
    if (before, after) in FACT_STEPS:
        check_fact_step(before, after)
        return
    with pytest.raises(Integrity) as refused:
        check_fact_step(before, after)
    assert refused.value.as_dict()["error"] == "integrity"
    assert refused.value.reason == "illegal_transition"


@pytest.mark.parametrize(("before", "after"), list(product(RuleStatus, RuleStatus)))
def test_r1_any_other_step_of_a_rule_is_an_integrity_error(before: RuleStatus, after: RuleStatus) -> None:
    if (before, after) in RULE_STEPS:
        check_rule_step(before, after)
        return
    with pytest.raises(Integrity):
        check_rule_step(before, after)


@pytest.mark.parametrize(("before", "after"), list(product(EpisodeState, EpisodeState)))
def test_e7_any_other_step_of_an_episode_is_an_integrity_error(before: EpisodeState, after: EpisodeState) -> None:
    if before is not after:
        check_episode_step(before, after)
        return
    with pytest.raises(Integrity):
        check_episode_step(before, after)


@pytest.mark.parametrize(("before", "after"), list(product(ConsolidationStatus, ConsolidationStatus)))
def test_e2_any_other_consolidation_step_is_an_integrity_error(
    before: ConsolidationStatus, after: ConsolidationStatus
) -> None:
    if (before, after) in CONSOLIDATION_STEPS:
        check_consolidation_step(before, after)
        return
    with pytest.raises(Integrity):
        check_consolidation_step(before, after)


def test_f2_live_is_active_or_fading() -> None:
    assert {s.value for s in LIVE_VALIDITY} == {s.value for s in LIVE_STATUS} == {"active", "fading"}


def test_f2_what_can_be_restored_is_what_may_become_active_again() -> None:
    assert {a.value for a, b in FACT_STEPS if b is Validity.ACTIVE} - {"fading"} == RESTORABLE


def test_f2_legacy_forgotten_means_retracted_and_other_words_stay() -> None:
    assert state_from_text("forgotten") == "retracted"
    assert [state_from_text(state.value) for state in Validity] == [state.value for state in Validity]
