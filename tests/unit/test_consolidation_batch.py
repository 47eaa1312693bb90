"""How many episodes are read at once (K1, K3)."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from butler_memory.consolidation.batch import MOST_CHARS, readable
from butler_memory.errors import Unavailable
from butler_memory.workers.workers import LONGEST_TOLD_SECONDS, _told_to_wait

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def waiting(*attempts: int, length: int = 10) -> list[Any]:
    return [
        SimpleNamespace(consolidation_attempts=each, content="x" * length, next_consolidation_retry_at=None)
        for each in attempts
    ]


@pytest.mark.parametrize(
    ("attempts", "read"),
    [
        ([0] * 9, 8),
        ([1] * 8, 4),
        ([2] * 8, 2),
        ([3] * 8, 1),
        ([1, 1, 0, 0, 0, 0], 4),
        ([0, 0, 0, 0, 0, 1, 1], 5),
        ([0, 0, 4, 0], 2),
        ([4, 0, 0], 1),
    ],
)
def test_k3_half_as_many_after_each_failure_and_the_last_attempt_alone(attempts: list[int], read: int) -> None:
    assert len(readable(waiting(*attempts), 8, NOW)) == read


def test_k2_at_most_what_fits_and_at_least_one() -> None:
    assert len(readable(waiting(0, 0, 0, length=MOST_CHARS // 2), 8, NOW)) == 2
    assert len(readable(waiting(0, 0, length=2 * MOST_CHARS), 8, NOW)) == 1


@pytest.mark.parametrize(
    ("told", "waits"), [(600.0, 600), (1e300, LONGEST_TOLD_SECONDS), (float("inf"), LONGEST_TOLD_SECONDS)]
)
def test_e2_a_backend_may_say_when_to_come_back_within_reason(told: float, waits: float) -> None:
    again = _told_to_wait(Unavailable("x", retry_after=told), NOW)
    assert again is not None
    assert (again - NOW).total_seconds() == waits


@pytest.mark.parametrize("told", [None, 0, -5.0, float("nan")])
def test_e2_and_where_it_says_nothing_the_usual_wait_holds(told: float | None) -> None:
    assert _told_to_wait(Unavailable("x", retry_after=told), NOW) is None
