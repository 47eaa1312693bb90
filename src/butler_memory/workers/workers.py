"""Every process that runs the engine runs its jobs; leases make that safe (J1).

Each job has loops of its own, so that a long one never keeps another waiting. A run holds its shard's lease and renews
it; when the lease is lost the run is ended, and what it might still write is refused by the fence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from butler_memory.domain.clock import Clock
from butler_memory.domain.kinds import JobName, RunOutcome
from butler_memory.domain.schedule import Timetable
from butler_memory.errors import ButlerMemoryError, Unavailable
from butler_memory.postgres import leases
from butler_memory.postgres.database import Database
from butler_memory.postgres.leases import Lease, LeaseLost, Run, Shard
from butler_memory.upkeep.job import Done, Job

# A dead process's shards are taken over after this; renewed three times within it.
LEASE_SECONDS = 60.0
# How soon a job that has become due is noticed.
POLL_SECONDS = 5.0
# The watchman looks this often for jobs that do not run.
WATCH_SECONDS = 600.0
# A run that is told to stop gets this long to give its shard back.
STOP_SECONDS = 5.0
# A backend may ask for less than this; a header can say anything.
LONGEST_TOLD_SECONDS = 86_400.0

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ran:
    """One run of one shard, or that it could not be had: another process is at it."""

    lease: Lease | None
    tenant: str
    butler: str
    run: Run | None


class Workers:
    def __init__(
        self,
        database: Database,
        jobs: Sequence[Job],
        timetable: Timetable,
        clock: Clock,
        *,
        lease_seconds: float = LEASE_SECONDS,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._database = database
        self._jobs = {job.name: job for job in jobs}
        self._timetable = timetable
        self._clock = clock
        self._lease_seconds = lease_seconds
        self._poll_seconds = poll_seconds

    async def run_forever(self) -> None:
        """Until cancelled; then each run gives its shard back, for another process to go on."""
        async with asyncio.TaskGroup() as group:
            for job in self._jobs.values():
                for _ in range(job.at_once):
                    group.create_task(self._loop(job))
            group.create_task(self._watch())

    async def run_due(self) -> list[Run]:
        """All that is due now, once: what a host's tick calls."""
        ran: list[Run] = []
        for job in self._jobs.values():
            await self._prepare(job)
            while run := await self._next_due(job):
                ran.append(run)
        return ran

    async def run_now(self, name: JobName, tenant: str | None = None, butler: str | None = None) -> list[Ran]:
        """One job whatever its time, of one tenant (or one butler of it) or of all; shard by shard."""
        job = self._jobs.get(name)
        if job is None:
            raise Unavailable("The memory is switched off (enabled = false).", reason="disabled")
        await self._prepare(job)
        shards = await self._database.run_as_worker(lambda conn: leases.shards(conn, tenant, name))
        wanted = [shard for shard in shards if butler is None or shard.butler == butler]
        return [await self._run_named(job, shard) for shard in wanted]

    async def late(self) -> list[Shard]:
        """Shards of these jobs that have not run well for twice their period (J1)."""
        now = self._clock()
        bounds = {name: self._timetable.late_before(name, now) for name in self._jobs}
        return await self._database.run_as_worker(lambda conn: leases.late(conn, bounds))

    async def _loop(self, job: Job) -> None:
        while True:
            try:
                await self._prepare(job)
                while await self._next_due(job):
                    pass
            except ButlerMemoryError as error:  # the database is away; it may come back
                log.warning("job %s waits: %s", job.name, error.reason or error.code)
            except Exception as error:  # noqa: BLE001  nobody would start this loop again
                log.error("job %s waits: %s", job.name, type(error).__name__)
            await asyncio.sleep(self._poll_seconds)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            try:
                late = await self.late()
            except Exception as error:  # noqa: BLE001  nobody would start this loop again
                log.warning("the watchman could not look: %s", type(error).__name__)
                continue
            for name in sorted({shard.job for shard in late}):
                log.error("job %s does not run: late in %d shards", name, sum(s.job is name for s in late))

    async def _prepare(self, job: Job) -> None:
        now = self._clock()
        last, fire = self._timetable.last_fire(job.name, now), self._timetable.next_fire(job.name, now)
        await self._database.run_as_worker(lambda conn: leases.prepare(conn, job.name, now, last, fire))

    async def _next_due(self, job: Job) -> Run | None:
        now = self._clock()
        fire = self._timetable.next_fire(job.name, now)
        lease = await self._database.run_as_worker(
            lambda conn: leases.claim_due(conn, job.name, now, fire, self._lease_seconds)
        )
        return await self._run(job, lease) if lease else None

    async def _run_named(self, job: Job, shard: Shard) -> Ran:
        now = self._clock()
        fire = self._timetable.next_fire(job.name, now)
        lease = await self._database.run_as_worker(
            lambda conn: leases.claim_named(conn, job.name, shard.tenant, shard.butler, now, fire, self._lease_seconds)
        )
        return Ran(lease, shard.tenant, shard.butler, await self._run(job, lease) if lease else None)

    async def _run(self, job: Job, lease: Lease) -> Run:
        started = self._clock()
        task = asyncio.create_task(_work(job, lease, started))
        try:
            await self._keep_lease(lease, task)
        except asyncio.CancelledError:
            await self._stop(lease, task, self._run_of(RunOutcome.STOPPED, started))
            raise
        return await self._finished(lease, self._ended(job, task, started))

    def _ended(self, job: Job, task: asyncio.Task[Done], started: datetime) -> Run:
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or isinstance(error, LeaseLost):
            return self._run_of(RunOutcome.LOST, started)
        if error is not None:
            log.warning("job %s failed: %s", job.name, _reason(error))
            failed = self._run_of(RunOutcome.FAILED, started, reason=_reason(error))
            return replace(failed, again_at=_told_to_wait(error, failed.finished_at))
        return self._run_of(RunOutcome.OK, started, task.result())

    async def _keep_lease(self, lease: Lease, task: asyncio.Task[Done]) -> None:
        """Renews until the work is done. While the database is away it cannot tell; then the fence decides."""
        while True:
            await asyncio.wait([task], timeout=self._lease_seconds / 3)
            if task.done():
                return
            try:
                kept = await self._database.run_as_worker(lambda conn: leases.renew(conn, lease, self._lease_seconds))
            except ButlerMemoryError:
                continue
            if not kept:
                task.cancel()

    async def _stop(self, lease: Lease, task: asyncio.Task[Done], run: Run) -> None:
        task.cancel()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.wait([task])
                await self._finished(lease, run)
        except (TimeoutError, ButlerMemoryError) as error:
            log.warning("a shard was not given back (%s); its lease ends by itself", type(error).__name__)

    async def _finished(self, lease: Lease, run: Run) -> Run:
        if run.outcome is RunOutcome.LOST:
            return run  # whoever took the shard over has said so
        kept = await self._database.run_as_worker(lambda conn: leases.finish(conn, lease, run))
        return run if kept else self._run_of(RunOutcome.LOST, run.started_at)

    def _run_of(self, outcome: RunOutcome, started: datetime, done: Done | None = None, *, reason: str = "") -> Run:
        finished = max(started, self._clock())
        if done is None:
            return Run(outcome, started, finished, {}, reason)
        return Run(outcome, started, finished, done.counts, reason, done.caught_up, done.memo, done.again_at)


async def _work(job: Job, lease: Lease, now: datetime) -> Done:
    return await job.run(lease, now)


def _told_to_wait(error: BaseException, now: datetime) -> datetime | None:
    """A backend that is too busy may say when to come back."""
    seconds = error.data.get("retry_after") if isinstance(error, ButlerMemoryError) else None
    return now + timedelta(seconds=min(seconds, LONGEST_TOLD_SECONDS)) if seconds and seconds > 0 else None


def _reason(error: BaseException) -> str:
    """For the record of runs: never a foreign message, which may quote what was stored (G7)."""
    if isinstance(error, ButlerMemoryError):
        return error.reason or error.code
    return type(error).__name__
