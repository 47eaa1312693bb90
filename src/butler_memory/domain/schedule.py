"""When a job runs next, when it is late, and how long to wait after a failure (J1, E2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

from butler_memory.domain.kinds import JobName

# After a failure: one minute, then four times as long each time, never longer than an hour.
FIRST_RETRY_MINUTES = 1
RETRY_GROWTH = 4
LONGEST_RETRY = timedelta(hours=1)


@dataclass(frozen=True)
class Timetable:
    """When each job runs, by the clocks on the walls of `zone`."""

    crons: Mapping[JobName, str]
    zone: str

    def next_fire(self, job: JobName, now: datetime) -> datetime:
        return next(_fires(self.crons[job], self.zone, now, reverse=False))

    def last_fire(self, job: JobName, now: datetime) -> datetime:
        return next(_fires(self.crons[job], self.zone, now, reverse=True))

    def late_before(self, job: JobName, now: datetime) -> datetime:
        """The last time but one: who ran well before it has missed two, and not run for twice its period."""
        before = _fires(self.crons[job], self.zone, now, reverse=True)
        next(before)
        return next(before)

    def is_late(self, job: JobName, last_ok: datetime, now: datetime) -> bool:
        return last_ok < self.late_before(job, now)


def retry_after(attempts: int) -> timedelta:
    minutes: int = FIRST_RETRY_MINUTES * RETRY_GROWTH ** min(max(0, attempts - 1), 5)  # far over the longest already
    return min(LONGEST_RETRY, timedelta(minutes=minutes))


def _fires(cron: str, zone: str, now: datetime, *, reverse: bool) -> Iterator[datetime]:
    for fire in CronSim(cron, now.astimezone(ZoneInfo(zone)), reverse=reverse):
        # Where an hour comes twice, a time may be its first coming, seen from the second: not what was asked for.
        if fire < now if reverse else fire > now:
            yield fire.astimezone(UTC)
