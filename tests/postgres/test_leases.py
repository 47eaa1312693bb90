"""Jobs under leases: they always exist, run when due, once, in order, and are taken over from the dead (J1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from butler_memory.bootstrap import Engine, timetable
from butler_memory.domain.kinds import JobName, RunOutcome
from butler_memory.errors import Unavailable
from butler_memory.postgres import leases
from butler_memory.postgres.leases import Lease, LeaseLost, fenced
from butler_memory.postgres.provision import Urls
from butler_memory.security.principal import Principal
from butler_memory.upkeep.job import Done, Job
from butler_memory.workers.workers import Workers
from conftest import Hands, rows

SWEEP = JobName.DECAY_SWEEP
LEASE_SECONDS = 0.3
MakeWorkers = Callable[..., Workers]


class Scripted:
    """A job that does what a test says."""

    def __init__(self) -> None:
        self.seen: list[Lease] = []
        self.does: Callable[[Lease], Awaitable[Done]] = self._nothing

    async def __call__(self, lease: Lease, now: datetime) -> Done:
        self.seen.append(lease)
        return await self.does(lease)

    async def _nothing(self, lease: Lease) -> Done:
        return Done({"done": 1})


@pytest.fixture
async def script(engine: Engine) -> Scripted:
    for tenant in ("a", "b"):
        await engine.access.ensure_tenant(tenant)
    return Scripted()


@pytest.fixture
def workers(engine: Engine, hands: Hands) -> MakeWorkers:
    def make(script: Scripted, name: JobName = SWEEP, at_once: int = 1) -> Workers:
        job = Job(name, script, at_once)
        return Workers(
            engine.database, [job], timetable(engine.settings), hands, lease_seconds=LEASE_SECONDS, poll_seconds=0.02
        )

    return make


@pytest.fixture
async def running() -> AsyncIterator[Callable[[Workers], asyncio.Task[None]]]:
    tasks: list[asyncio.Task[None]] = []

    def start(workers: Workers) -> asyncio.Task[None]:
        tasks.append(asyncio.create_task(workers.run_forever()))
        return tasks[-1]

    yield start
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)


async def until(holds: Callable[[], bool], seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.01)


async def outcomes(urls: Urls) -> list[tuple[str, str]]:
    found = await rows(urls, "SELECT tenant_id, outcome FROM memory.job_runs ORDER BY finished_at, tenant_id")
    return [(row["tenant_id"], row["outcome"]) for row in found]


@pytest.mark.parametrize("at_once", [1, 2])
async def test_k1_one_process_runs_as_many_shards_of_a_job_at_once_as_the_job_says(
    script: Scripted, workers: MakeWorkers, hands: Hands, running: Callable[[Workers], Any], at_once: int
) -> None:
    release, most = asyncio.Event(), 0

    async def waits(_: Lease) -> Done:
        nonlocal most
        most = max(most, len(script.seen))
        await release.wait()
        return Done()

    script.does = waits
    hands.pass_(days=1)
    running(workers(script, at_once=at_once))
    await until(lambda: len(script.seen) == at_once)
    await asyncio.sleep(0.1)
    assert most == at_once
    release.set()
    await until(lambda: len(script.seen) == 2)
    assert {lease.tenant for lease in script.seen} == {"a", "b"}


async def test_j1_each_tenant_has_each_job_and_it_runs_when_its_time_comes(
    script: Scripted, workers: MakeWorkers, hands: Hands, urls: Urls
) -> None:
    made = workers(script)
    assert await made.run_due() == [], "a new tenant's first sweep is the next one at 03:00"
    hands.now = datetime(2026, 3, 2, 3, 0, tzinfo=UTC)
    ran = await made.run_due()
    assert [run.outcome for run in ran] == [RunOutcome.OK] * 2
    assert await outcomes(urls) == [("a", "ok"), ("b", "ok")]
    assert await made.run_due() == [], "once"
    hands.pass_(days=1)
    assert len(await made.run_due()) == 2


async def test_j1_a_run_that_was_missed_is_made_up_once(script: Scripted, workers: MakeWorkers, hands: Hands) -> None:
    made = workers(script)
    await made.run_due()
    hands.pass_(days=9)
    assert len(await made.run_due()) == 2
    assert await made.run_due() == []


async def test_j1_jobs_run_by_themselves_while_the_engine_runs(
    script: Scripted,
    workers: MakeWorkers,
    hands: Hands,
    running: Callable[[Workers], asyncio.Task[None]],
) -> None:
    running(workers(script))
    await asyncio.sleep(0.1)
    assert script.seen == []
    hands.pass_(days=1)
    await until(lambda: len(script.seen) == 2)


async def test_l6_a_clock_that_was_ahead_for_a_while_does_not_stop_the_jobs(
    script: Scripted, workers: MakeWorkers, hands: Hands
) -> None:
    made = workers(script)
    hands.pass_(days=400)
    await made.run_due()
    hands.pass_(days=1)
    assert len(await made.run_due()) == 2
    hands.pass_(days=-401)
    await made.run_due()
    assert await made.late() == []
    hands.pass_(days=1)
    assert len(await made.run_due()) == 2


async def test_j1_of_many_processes_one_runs_each_shard(
    script: Scripted, workers: MakeWorkers, hands: Hands, engine: Engine
) -> None:
    for number in range(20):
        await engine.access.ensure_tenant(f"t{number}")
    several = [workers(script) for _ in range(4)]
    await several[0].run_due()
    hands.pass_(days=1)
    await asyncio.gather(*(each.run_due() for each in several))
    assert len(script.seen) == 22
    assert len({(lease.tenant, lease.token) for lease in script.seen}) == 22


async def test_j1_a_failure_is_kept_and_tried_again_later_and_later(
    script: Scripted, workers: MakeWorkers, hands: Hands, urls: Urls
) -> None:
    async def fails(lease: Lease) -> Done:
        raise Unavailable("no", reason="no_network")

    script.does = fails
    made = workers(script)
    await made.run_due()
    hands.now = datetime(2026, 3, 2, 3, 0, tzinfo=UTC)
    assert [run.reason for run in await made.run_due()] == ["no_network"] * 2
    waited = []
    for _ in range(5):
        before = hands.now
        while not await made.run_due():
            hands.pass_(seconds=20)
        waited.append(round((hands.now - before) / timedelta(minutes=1)))
    assert waited == [1, 4, 16, 60, 60]
    script.does = script._nothing
    hands.pass_(hours=1)
    assert [run.outcome for run in await made.run_due()] == [RunOutcome.OK] * 2
    assert {row["attempts"] for row in await rows(urls, "SELECT attempts FROM memory.shards")} == {0}


async def test_g7_what_a_job_failed_with_is_kept_without_its_words(
    script: Scripted, workers: MakeWorkers, hands: Hands, urls: Urls, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(lease: Lease) -> Done:
        raise RuntimeError("zanzibar")

    script.does = fails
    made = workers(script)
    await made.run_due()
    hands.pass_(days=1)
    await made.run_due()
    kept = await rows(urls, "SELECT * FROM memory.job_runs")
    assert {row["reason"] for row in kept} == {"RuntimeError"}
    assert "zanzibar" not in caplog.text + str(kept)


async def test_a_job_with_more_to_do_goes_on_at_once_after_the_others(
    script: Scripted, workers: MakeWorkers, hands: Hands, urls: Urls
) -> None:
    async def three_times(lease: Lease) -> Done:
        turns = sum(seen.tenant == lease.tenant for seen in script.seen)
        return Done({"turn": turns}, more=turns < 3, memo={"turn": turns})

    script.does = three_times
    made = workers(script)
    await made.run_due()
    hands.pass_(days=1)
    await made.run_due()
    assert [lease.tenant for lease in script.seen].count("a") == 3
    assert [dict(lease.memo) for lease in script.seen if lease.tenant == "a"] == [{}, {"turn": 1}, {"turn": 2}]
    late = await rows(urls, "SELECT last_ok_at FROM memory.shards")
    assert all(row["last_ok_at"] == hands.now for row in late)


async def test_a_dead_process_is_followed_by_another_after_its_lease(
    script: Scripted, workers: MakeWorkers, hands: Hands, engine: Engine, urls: Urls
) -> None:
    made = workers(script)
    await made.run_due()
    hands.pass_(days=1)
    dead = await engine.database.run_as_worker(
        lambda conn: leases.claim_due(conn, SWEEP, hands.now, hands.now + timedelta(days=1), LEASE_SECONDS)
    )
    assert dead is not None
    assert len(await made.run_due()) == 1, "the other tenant's; this one is held"
    await asyncio.sleep(LEASE_SECONDS * 1.2)
    assert len(await made.run_due()) == 1
    assert script.seen[-1].token == dead.token + 1
    assert (dead.tenant, "lost") in await outcomes(urls)


async def test_a_process_that_stood_still_past_its_lease_writes_nothing(
    script: Scripted, workers: MakeWorkers, hands: Hands, engine: Engine, urls: Urls
) -> None:
    made = workers(script)
    await made.run_due()
    hands.pass_(days=1)
    asleep = await engine.database.run_as_worker(
        lambda conn: leases.claim_due(conn, SWEEP, hands.now, hands.now + timedelta(days=1), LEASE_SECONDS)
    )
    assert asleep is not None
    await asyncio.sleep(LEASE_SECONDS * 1.2)

    async def late_work(conn: leases.Conn) -> None:
        raise AssertionError("must not run")

    with pytest.raises(LeaseLost):  # also before anybody else has taken it over
        await fenced(engine.database, asleep, late_work)
    await made.run_due()
    with pytest.raises(LeaseLost):
        await fenced(engine.database, asleep, late_work)
    over = leases.Run(RunOutcome.OK, hands.now, hands.now, {}, caught_up=True)
    assert not await engine.database.run_as_worker(lambda conn: leases.finish(conn, asleep, over))
    assert (asleep.tenant, "ok") in await outcomes(urls)


async def test_a_long_run_keeps_its_lease(script: Scripted, workers: MakeWorkers, hands: Hands, engine: Engine) -> None:
    async def long(lease: Lease) -> Done:
        await asyncio.sleep(LEASE_SECONDS * 4)
        await fenced(engine.database, lease, _nothing)
        return Done()

    script.does = long
    one, other = workers(script), workers(script)
    await one.run_due()
    hands.pass_(days=1)
    runs = await asyncio.gather(one.run_due(), other.run_due())
    assert [run.outcome for each in runs for run in each] == [RunOutcome.OK] * 2
    assert len(script.seen) == 2


async def test_a_run_whose_lease_is_taken_is_ended(
    script: Scripted, workers: MakeWorkers, hands: Hands, engine: Engine, urls: Urls
) -> None:
    ended = asyncio.Event()

    async def long(lease: Lease) -> Done:
        await engine.database.run_as_worker(_steal)
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()
        return Done()

    script.does = long
    made = workers(script)
    await made.run_due()
    hands.pass_(days=1)
    assert (await made.run_due())[0].outcome is RunOutcome.LOST
    assert ended.is_set()


async def test_told_to_stop_it_gives_its_shard_back_at_once(
    script: Scripted, workers: MakeWorkers, hands: Hands, urls: Urls
) -> None:
    async def endless(lease: Lease) -> Done:
        await asyncio.sleep(60)
        return Done()

    script.does = endless
    made = workers(script)
    await made.run_due()
    hands.pass_(days=1)
    running = asyncio.create_task(made.run_due())
    await until(lambda: bool(script.seen))
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [outcome for _, outcome in await outcomes(urls)] == ["stopped"]
    script.does = script._nothing
    assert len(await made.run_due()) == 2, "nobody has to wait for the lease to end"


async def test_a_wish_that_comes_while_the_job_runs_is_not_lost(
    script: Scripted, workers: MakeWorkers, hands: Hands, engine: Engine
) -> None:
    job = JobName.CONSOLIDATE

    async def wishes(lease: Lease) -> Done:
        if len(script.seen) == 1:
            await engine.database.run("a", lambda conn: leases.wish(conn, "a", "health", job, hands.now, hands.now))
        return Done()

    script.does = wishes
    made = workers(script, job)
    await engine.database.run("a", lambda conn: leases.wish(conn, "a", "health", job, hands.now, hands.now))
    assert len(await made.run_due()) == 2
    assert await made.run_due() == []


async def test_a_shard_that_failed_is_not_hurried_by_new_wishes(
    script: Scripted, workers: MakeWorkers, hands: Hands, engine: Engine
) -> None:
    async def fails(lease: Lease) -> Done:
        raise Unavailable("no")

    job = JobName.CONSOLIDATE
    script.does = fails
    made = workers(script, job)

    async def wish() -> None:
        await engine.database.run("a", lambda conn: leases.wish(conn, "a", "health", job, hands.now, hands.now))

    await wish()
    assert len(await made.run_due()) == 1
    await wish()
    assert await made.run_due() == []
    hands.pass_(minutes=1)
    assert len(await made.run_due()) == 1


async def test_a_wish_that_comes_while_a_failed_job_is_tried_again_is_not_lost(
    script: Scripted, workers: MakeWorkers, hands: Hands, engine: Engine
) -> None:
    job = JobName.CONSOLIDATE

    async def wish() -> None:
        await engine.database.run("a", lambda conn: leases.wish(conn, "a", "health", job, hands.now, hands.now))

    async def fails_then_wishes(lease: Lease) -> Done:
        if len(script.seen) == 1:
            raise Unavailable("no")
        if len(script.seen) == 2:
            await wish()  # after it has read what was there
        return Done()

    script.does = fails_then_wishes
    made = workers(script, job)
    await wish()
    assert [run.outcome for run in await made.run_due()] == [RunOutcome.FAILED]
    hands.pass_(minutes=1)
    assert [run.outcome for run in await made.run_due()] == [RunOutcome.OK] * 2


async def test_j1_a_shard_whose_time_is_moved_forward_has_not_run_for_all_that(
    script: Scripted, workers: MakeWorkers, hands: Hands, engine: Engine
) -> None:
    """As where a backend asked for a long break, or the cron expression was changed."""
    job = JobName.CONSOLIDATE
    far = hands.now + timedelta(days=30)
    await engine.database.run("a", lambda conn: leases.wish(conn, "a", "health", job, hands.now, far))
    made = workers(script, job)
    assert await made.run_due() == []
    [shard] = await engine.database.run_as_worker(lambda conn: leases.shards(conn, job=job))
    assert shard.next_run_at
    assert shard.next_run_at < far
    assert shard.last_ok_at is None
    hands.pass_(days=1)
    assert await made.late() == [shard]


async def test_j1_the_watchman_names_a_job_that_has_not_run_for_twice_its_period(
    script: Scripted, workers: MakeWorkers, hands: Hands
) -> None:
    made = workers(script)
    await made.run_due()
    hands.now = datetime(2026, 3, 3, 2, 59, tzinfo=UTC)
    assert await made.late() == []
    hands.now = datetime(2026, 3, 3, 3, 1, tzinfo=UTC)
    assert [(shard.tenant, shard.job) for shard in await made.late()] == [("a", SWEEP), ("b", SWEEP)]
    await made.run_due()
    assert await made.late() == []


async def test_j1_a_job_that_no_process_has_ever_run_is_late_too(
    script: Scripted, engine: Engine, hands: Hands, admin: Principal
) -> None:
    assert await engine.workers.late() == []
    hands.pass_(days=3)
    late = {(shard.tenant, shard.job) for shard in await engine.workers.late()}
    ours = (JobName.DECAY_SWEEP, JobName.EPISODE_CLEANUP, JobName.REEMBED)
    assert late == {(tenant, job) for tenant in ("a", "b", "home") for job in ours}
    jobs = (await engine.memory.stats(admin, {}))["jobs"]
    assert [name for name, job in jobs.items() if job["late"]] == sorted(ours)
    assert all(job["next_run_at"] for job in jobs.values())
    assert len(await engine.workers.run_due()) == 9, "made up once, at the start"
    assert await engine.workers.late() == await engine.workers.run_due() == []


async def test_run_now_takes_each_shard_whatever_its_time_but_not_from_another(
    script: Scripted, workers: MakeWorkers, hands: Hands, engine: Engine
) -> None:
    made = workers(script)
    ran = await made.run_now(SWEEP)
    assert [(each.tenant, each.run.outcome if each.run else None) for each in ran] == [
        ("a", RunOutcome.OK), ("b", RunOutcome.OK),
    ]  # fmt: skip
    fire = hands.now + timedelta(days=1)
    await engine.database.run_as_worker(
        lambda conn: leases.claim_named(conn, SWEEP, "a", "", hands.now, fire, LEASE_SECONDS * 100)
    )
    assert [(each.tenant, each.run is None) for each in await made.run_now(SWEEP)] == [("a", True), ("b", False)]
    assert [each.tenant for each in await made.run_now(SWEEP, "b")] == ["b"]


async def _nothing(conn: leases.Conn) -> None:
    await conn.execute("SELECT 1")


async def _steal(conn: leases.Conn) -> None:
    await conn.execute("UPDATE memory.shards SET lease_token = lease_token + 1")
