"""Relevance, the floor under it and the composite above it (S2, S6, S9, S10, C9, R7)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butler_memory.domain.kinds import Maturity, MemoryType
from butler_memory.domain.ranking import (
    NAMED_COVERS,
    Candidate,
    Scored,
    above_floor,
    by_composite,
    in_order,
    in_order_of_trust,
    recency,
    with_names,
)
from butler_memory.settings import FloorSettings, ScoreWeights

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FLOOR, WEIGHTS = FloorSettings(), ScoreWeights()


def candidate(number: int = 0, **given: Any) -> Candidate:
    row = {
        "importance": 5.0, "permanence": "standard", "scope": "global", "maturity": None, "tags": [],
        "subject": "user", "predicate": "note",
    }  # fmt: skip
    plain: dict[str, Any] = {
        "type": MemoryType.FACT, "id": UUID(int=number), "created_at": NOW, "fused": 0.5, "cosine": 0.5, "lexical": 1.0,
        "coverage": 0.5, "dense_rank": 1, "lexical_rank": 1, "effective_confidence": 1.0, "last_referenced_at": None,
    }  # fmt: skip
    fields = {name: given.pop(name) for name in list(given) if name in plain}
    return Candidate(**(plain | fields), row=row | given)


# --- order ---


def test_f8_what_was_only_inferred_never_stands_above_what_the_user_said_otherwise() -> None:
    paris = candidate(1, predicate="home", contested=True, source_kind="user_stated")
    london = candidate(2, predicate="home", contested=True, source_kind="agent_inferred")
    other = candidate(3, predicate="employer", contested=False, source_kind="agent_inferred")
    scored = [Scored(paris, 0.45, {}), Scored(london, 0.89, {}), Scored(other, 0.5, {})]
    assert [each.candidate for each in in_order(scored)] == [other, paris, london]
    assert [each.score for each in in_order(scored)] == [0.5, 0.45, pytest.approx(0.45)]
    fits_worse = [Scored(paris, 0.45, {}), Scored(london, 0.1, {})]
    assert in_order(fits_worse) == fits_worse
    alone = [Scored(london, 0.89, {})]
    assert in_order(alone) == alone


# --- recency ---


def test_s2_recency_halves_every_30_days_since_it_was_last_of_use() -> None:
    old = NOW - timedelta(days=300)
    assert recency(NOW - timedelta(days=30), old, NOW) == pytest.approx(0.5)
    assert recency(NOW, old, NOW) == 1.0


def test_s2_what_was_never_used_counts_from_its_making() -> None:
    assert recency(None, NOW, NOW) == 1.0
    assert recency(None, NOW - timedelta(days=60), NOW) == pytest.approx(0.25)


# --- composite ---


def test_s2_the_composite_is_the_contracts_formula() -> None:
    best = candidate(1, fused=0.9, importance=8.0, effective_confidence=0.5)
    worst = candidate(2, fused=0.1)
    scored = {item.candidate.id.int: item for item in by_composite([best, worst], WEIGHTS, NOW)}
    assert scored[1].score == pytest.approx(0.4 * 1.0 + 0.3 * 0.8 + 0.2 * 1.0 + 0.1 * 0.5)
    assert scored[2].score == pytest.approx(0.4 * 0.0 + 0.3 * 0.5 + 0.2 * 1.0 + 0.1 * 1.0)


def test_s9_relevance_is_scaled_inside_the_gate_and_stays_between_0_and_1_for_what_is_outside() -> None:
    gate = [candidate(1, fused=0.4), candidate(2, fused=0.6)]
    core = candidate(3, fused=0.1)
    scored = {s.candidate.id.int: s.signals["relevance"] for s in by_composite([*gate, core], WEIGHTS, NOW, scale=gate)}
    assert scored == {1: 0.0, 2: 1.0, 3: 0.0}


def test_a_single_candidate_is_fully_relevant() -> None:
    assert by_composite([candidate()], WEIGHTS, NOW)[0].signals["relevance"] == 1.0


@pytest.mark.parametrize(
    ("maturity", "weight"),
    [(Maturity.CANDIDATE, 0.8), (Maturity.ESTABLISHED, 1.0), (Maturity.PROVEN, 1.15), (Maturity.ANTI_PATTERN, 1.0)],
)
def test_r7_a_rules_standing_weighs(maturity: Maturity, weight: float) -> None:
    plain = by_composite([candidate()], WEIGHTS, NOW)[0].score
    rule = candidate(type=MemoryType.RULE, maturity=maturity.value)
    assert by_composite([rule], WEIGHTS, NOW)[0].score == pytest.approx(plain * weight)


@given(st.permutations(range(6)))
def test_s6_ties_go_to_the_newer_then_by_id_and_never_by_chance(order: list[int]) -> None:
    made = [candidate(n, created_at=NOW - timedelta(days=n // 2)) for n in range(6)]
    scored = by_composite(
        [made[n] for n in order], ScoreWeights(relevance=1, importance=0, recency=0, confidence=0), NOW
    )
    assert [item.candidate.id.int for item in in_order(scored)] == [0, 1, 2, 3, 4, 5]


def test_c2_rules_go_by_trust_and_keep_their_order_within_it() -> None:
    levels = ["candidate", "proven", "established", "anti_pattern", "proven"]
    made = [candidate(n, type=MemoryType.RULE, maturity=level) for n, level in enumerate(levels)]
    ordered = in_order_of_trust(by_composite(made, WEIGHTS, NOW))
    assert [item.candidate.maturity for item in ordered] == [
        Maturity.PROVEN, Maturity.PROVEN, Maturity.ANTI_PATTERN, Maturity.ESTABLISHED, Maturity.CANDIDATE,
    ]  # fmt: skip


# --- floor ---


def test_s10_silence_is_better_than_noise() -> None:
    noise = [candidate(n, cosine=0.2, coverage=0.1) for n in range(20)]
    assert above_floor(noise, FLOOR) == []
    assert above_floor([], FLOOR) == []


def test_s10_what_is_far_below_the_best_is_noise_too() -> None:
    best, near, far = candidate(1), candidate(2, cosine=0.4, coverage=0.4), candidate(3, cosine=0.3, coverage=0.25)
    assert above_floor([best, near, far], FLOOR) == [best, near]


def test_s10_one_signal_speaks_alone_where_the_other_is_missing() -> None:
    assert candidate(cosine=None, coverage=0.6).absolute == 0.6
    assert candidate(cosine=0.6, coverage=None).absolute == 0.6
    assert candidate(cosine=None, coverage=None).absolute == 0.0
    assert candidate(cosine=-0.5, coverage=0.6).absolute == 0.3


def test_s10_what_is_clearly_near_in_meaning_needs_no_shared_word() -> None:
    near, vague = candidate(1, cosine=0.36, coverage=0.0), candidate(2, cosine=0.34, coverage=0.0)
    assert above_floor([near, vague], FLOOR) == [near]


# --- names ---


def named(question: str, *candidates: Candidate) -> list[float]:
    return [each.named for each in with_names(list(candidates), question)]


def test_s10_a_question_that_names_a_memory_is_about_it() -> None:
    kubernetes = candidate(1, tags=["k8s", "kube"], predicate="cluster", coverage=0.05, cosine=0.3)
    found = with_names([kubernetes], "the frontend, the pipeline, the k8s pods and the rest: how do we report errors?")
    assert found[0].named == 1.0
    assert found[0].absolute == pytest.approx((0.3 + NAMED_COVERS) / 2)
    assert above_floor(found, FLOOR) == found


def test_s10_a_name_of_many_words_must_be_said_whole() -> None:
    made = candidate(tags=["point of view"])
    assert named("a point about tea", made) == [0.0]
    assert named("whose point of view is it?", made) == [1.0]


def test_s10_a_name_that_many_share_says_little_about_each() -> None:
    made = [candidate(n, tags=["work"]) for n in range(10)]
    assert named("what about work", *made) == [pytest.approx(0.1)] * 10


def test_s10_everyday_predicates_are_no_names() -> None:
    """'I would like to' does not ask for what somebody likes; a predicate of one's own is a name."""
    assert named("I would like to use a plan", candidate(predicate="likes"), candidate(predicate="plan")) == [0.0, 0.0]
    assert named("which build system?", candidate(predicate="build_system")) == [1.0]


def test_s10_whom_a_memory_is_about_is_a_name_but_the_user_is_not() -> None:
    assert named("a present for Maria", candidate(subject="Maria")) == [1.0]
    assert named("what does the user want", candidate(subject="the user")) == [0.0]


# --- core memory ---


@pytest.mark.parametrize(
    ("given", "core"),
    [
        ({"permanence": "permanent", "importance": 8.0}, True),
        ({"permanence": "permanent", "importance": 7.9}, False),
        ({"permanence": "stable", "importance": 10.0}, False),
        ({"type": MemoryType.RULE, "maturity": "proven"}, True),
        ({"type": MemoryType.RULE, "maturity": "proven", "scope": "health"}, False),
        ({"type": MemoryType.RULE, "maturity": "established"}, False),
        ({"type": MemoryType.EPISODE, "permanence": None, "importance": 10.0}, False),
    ],
)
def test_c9_core_memory_is_lasting_and_important_or_proven_for_all(given: dict[str, Any], core: bool) -> None:
    assert candidate(**given).is_core is core
