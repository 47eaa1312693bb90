"""When jobs run next, and when they are late, whatever the zone does with its clocks (J1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butler_memory.domain.kinds import JobName
from butler_memory.domain.schedule import Timetable, retry_after

SWEEP = JobName.DECAY_SWEEP
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu")
CRONS = ("30 2 * * *", "30 1 * * *", "0 */6 * * *", "*/15 * * * *", "15 1 * * 0", "0 3 1 * *", "45 1,2 * * *")
# Around the nights in which clocks go forward or back somewhere.
NIGHTS = [datetime(2026, *day, tzinfo=UTC) for day in ((3, 8), (3, 29), (4, 4), (10, 3), (10, 25), (11, 1))]
MOMENTS = st.builds(
    lambda night, seconds: night + timedelta(seconds=seconds), st.sampled_from(NIGHTS), st.floats(0, 86_400)
)


def daily(cron: str, zone: str = "UTC") -> Timetable:
    return Timetable({SWEEP: cron}, zone)


@given(st.sampled_from(CRONS), st.sampled_from(ZONES), MOMENTS)
def test_j1_the_next_time_is_ahead_and_the_last_one_behind(cron: str, zone: str, now: datetime) -> None:
    table = daily(cron, zone)
    ahead, behind = table.next_fire(SWEEP, now), table.last_fire(SWEEP, now)
    assert behind < now < ahead
    assert not table.is_late(SWEEP, now, now)


def test_j1_a_time_that_comes_twice_in_autumn_is_one_time() -> None:
    """At 02:30 in Berlin; the second 02:30 of that night is no time, and in between the next one is not past."""
    table = daily("30 2 * * *", "Europe/Berlin")
    first = datetime(2026, 10, 25, 0, 30, tzinfo=UTC)
    assert table.next_fire(SWEEP, first - timedelta(seconds=1)) == first
    for minutes in (0, 15, 45, 59, 60, 61):
        assert table.next_fire(SWEEP, first + timedelta(minutes=minutes)) == datetime(2026, 10, 26, 1, 30, tzinfo=UTC)


def test_j1_a_time_that_is_left_out_in_spring_is_made_up_at_once() -> None:
    table = daily("30 2 * * *", "Europe/Berlin")
    assert table.next_fire(SWEEP, datetime(2026, 3, 29, 0, 59, tzinfo=UTC)) == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)


def test_j1_times_are_those_of_the_clocks_on_the_wall() -> None:
    noon = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    assert daily("0 3 * * *").next_fire(SWEEP, noon) == datetime(2026, 3, 2, 3, 0, tzinfo=UTC)
    assert daily("0 3 * * *", "Asia/Kathmandu").next_fire(SWEEP, noon) == datetime(2026, 3, 1, 21, 15, tzinfo=UTC)


@pytest.mark.parametrize(("cron", "minutes"), [("0 3 * * *", 24 * 60), ("0 3 * * 1", 7 * 24 * 60), ("* * * * *", 1)])
def test_j1_late_is_who_has_not_run_for_twice_the_period(cron: str, minutes: int) -> None:
    table, period = daily(cron), timedelta(minutes=minutes)
    ran = datetime(2026, 3, 2, 3, 0, 5, tzinfo=UTC)  # a Monday, some seconds after its time
    assert not table.is_late(SWEEP, ran, ran + 2 * period - timedelta(seconds=6))
    assert table.is_late(SWEEP, ran, ran + 2 * period)


def test_j1_after_failures_it_waits_longer_and_longer_up_to_an_hour() -> None:
    assert [retry_after(n) / timedelta(minutes=1) for n in range(7)] == [1, 1, 4, 16, 60, 60, 60]
