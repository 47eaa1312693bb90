"""When a job runs next, when it is late, and how long to wait after a failure (J1, E2)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

# After a failure: one minute, then four times as long each time, never longer than an hour.
FIRST_RETRY_MINUTES = 1
RETRY_GROWTH = 4
LONGEST_RETRY_MINUTES = 60


def next_fire(cron: str, zone: str, now: datetime) -> datetime:
    """The first time after `now` that the expression names, by the clocks on the walls of `zone`."""
    return next(_fires(cron, zone, now, reverse=False))


def is_late(cron: str, zone: str, last_ok: datetime, now: datetime) -> bool:
    """Has it missed two of its times, which is to say, not run well for twice its period?"""
    before = _fires(cron, zone, now, reverse=True)
    next(before)
    return last_ok < next(before)


def retry_after(attempts: int) -> timedelta:
    minutes: int = FIRST_RETRY_MINUTES * RETRY_GROWTH ** min(max(0, attempts - 1), 5)  # far over the longest already
    return timedelta(minutes=min(LONGEST_RETRY_MINUTES, minutes))


def _fires(cron: str, zone: str, now: datetime, *, reverse: bool) -> Iterator[datetime]:
    for fire in CronSim(cron, now.astimezone(ZoneInfo(zone)), reverse=reverse):
        yield fire.astimezone(UTC)
