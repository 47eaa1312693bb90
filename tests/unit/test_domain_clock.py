"""Time and identity (L6)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given, settings
from hypothesis import strategies as st

from butler_memory.domain.clock import days_between, new_id, system_clock, utc_text

law = settings(deadline=None, derandomize=True, database=None)
moments = st.datetimes(
    datetime(1971, 1, 1),
    datetime(2999, 1, 1),
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


@law
@given(moments)
def test_l6_an_id_is_a_uuid_of_version_7_and_the_rfc_variant(now: datetime) -> None:
    made = new_id(now)
    assert made.version == 7
    assert made.variant == "specified in RFC 4122"


@law
@given(moments)
def test_l6_an_id_carries_its_millisecond(now: datetime) -> None:
    assert abs((new_id(now).int >> 80) - now.timestamp() * 1000) <= 1


@law
@given(moments, st.timedeltas(timedelta(milliseconds=2), timedelta(days=3650)))
def test_l6_a_later_id_sorts_after_an_earlier_one(now: datetime, span: timedelta) -> None:
    earlier, later = new_id(now), new_id(now + span)
    assert earlier < later
    assert str(earlier) < str(later)


def test_l6_ids_of_one_instant_differ() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert len({new_id(now) for _ in range(1000)}) == 1000


@law
@given(moments)
def test_l6_times_are_given_out_in_utc_with_z_and_mean_the_same_moment(moment: datetime) -> None:
    text = utc_text(moment)
    assert text.endswith("Z")
    assert "+" not in text
    assert datetime.fromisoformat(text) == moment


def test_l6_a_time_of_another_zone_is_written_in_utc() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert utc_text(datetime(2026, 3, 1, 9, 30, tzinfo=tokyo)) == "2026-03-01T00:30:00Z"


@law
@given(moments, moments)
def test_l6_an_age_is_never_negative(one: datetime, other: datetime) -> None:
    passed, back = days_between(one, other), days_between(other, one)
    assert min(passed, back) == 0.0
    assert max(passed, back) == abs((other - one) / timedelta(days=1))


def test_appendix_c_the_clock_offset_moves_the_clock() -> None:
    plain, moved = system_clock()(), system_clock(timedelta(days=210))()
    assert timedelta(days=210) <= moved - plain < timedelta(days=210, minutes=1)
    assert plain.tzinfo is UTC
