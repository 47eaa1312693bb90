"""A worker that is killed, or stands still, in the middle of a job: each job ends exactly once in effect (DESIGN 5).

One round each here; `make bench-faults` runs ten.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

import psycopg
import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import JobName
from butler_memory.postgres.provision import Urls
from caller import Caller
from conftest import Hands, Template, owner_connection, rows
from ledger import check_ledger
from processes import until
from worker_process import BATCH, worker

ROUNDS = int(os.environ.get("ROUNDS", "1"))
MEMORIES = 4 * BATCH

every_round = pytest.mark.parametrize("turn", range(ROUNDS))


@asynccontextmanager
async def held(urls: Urls, table: str, memory_id: str) -> AsyncIterator[None]:
    """Somebody else is at this row: whoever comes to it waits."""
    async with await psycopg.AsyncConnection.connect(urls.owner) as conn:
        await conn.execute(f"SELECT 1 FROM memory.{table} WHERE id = %s FOR UPDATE", [memory_id])  # type: ignore[arg-type]
        yield


async def somebody_waits(template: Template, urls: Urls) -> bool:
    name = psycopg.conninfo.conninfo_to_dict(urls.app)["dbname"]
    async with await psycopg.AsyncConnection.connect(template.server.admin_url()) as conn:
        found = await conn.execute(
            "SELECT 1 FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'", [name]
        )
        return await found.fetchone() is not None


async def ended_well(urls: Urls, job: JobName, since: datetime) -> bool:
    """The shard has been given back by a run that got to the end."""
    found = await rows(
        urls,
        "SELECT 1 FROM memory.shards WHERE kind = %s AND tenant_id = 'home' AND lease_until IS NULL"
        " AND last_ok_at >= %s",
        job,
        since,
    )
    return bool(found)


class Work:
    """What one job has to do: rows, the one in the middle, and what must have happened exactly once."""

    job: JobName
    table: str
    event: str
    environ: Mapping[str, str] = {}

    async def prepare(self, ask: Caller, engine: Engine, hands: Hands, urls: Urls) -> list[str]:
        raise AssertionError("each has its own")

    async def check(self, urls: Urls, made: list[str]) -> None:
        """Each got its one event."""
        found = await rows(
            urls, "SELECT entity_id::text AS id FROM memory.memory_events WHERE event_type = %s", self.event
        )
        assert sorted(row["id"] for row in found) == sorted(made)


class Sweep(Work):
    job, table, event = JobName.DECAY_SWEEP, "facts", "faded"

    async def prepare(self, ask: Caller, engine: Engine, hands: Hands, urls: Urls) -> list[str]:
        await engine.workers.run_due()
        made = []
        for n in range(MEMORIES):
            made.append((await ask.fact(f"value {n}", f"key_{n}"))["id"])
            hands.pass_(seconds=1)
        hands.pass_(days=210)
        return made


class Cleanup(Work):
    job, table, event = JobName.EPISODE_CLEANUP, "episodes", "deleted"

    async def prepare(self, ask: Caller, engine: Engine, hands: Hands, urls: Urls) -> list[str]:
        await engine.workers.run_due()
        made = []
        for n in range(MEMORIES):
            episode = await ask.episode(f"day {n}")
            await ask.forget(episode)
            made.append(episode["id"])
            hands.pass_(seconds=1)
        async with owner_connection(urls) as conn:
            await conn.execute("DELETE FROM memory.shards WHERE kind = 'consolidate'")
        hands.pass_(days=100)
        return made


class Reembed(Work):
    """The worker comes with another model. It is hit in its swap: vectors are no events, and change nothing else."""

    job, table = JobName.REEMBED, "facts"
    environ: Mapping[str, str] = {"FAKE_VERSION": "fake@2"}

    async def prepare(self, ask: Caller, engine: Engine, hands: Hands, urls: Urls) -> list[str]:
        await engine.workers.run_due()
        made = [(await ask.fact(f"value {n}", f"key_{n}"))["id"] for n in range(MEMORIES)]
        hands.pass_(hours=1)
        return made

    async def check(self, urls: Urls, made: list[str]) -> None:
        """Swapped as a whole, and what the first had made was not made again."""
        found = await rows(urls, "SELECT DISTINCT embedding_version FROM memory.facts UNION ALL"
                           " SELECT embedding_version FROM memory.tenants")  # fmt: skip
        assert [row["embedding_version"] for row in found] == ["fake@2", "fake@2"]
        assert await rows(urls, "SELECT 1 FROM memory.new_vectors") == []
        runs = await rows(urls, "SELECT counts FROM memory.job_runs WHERE job = 'reembed' AND outcome = 'ok'"
                          " AND (counts ->> 'swapped')::int = 1")  # fmt: skip
        assert [row["counts"]["embedded"] for row in runs] == [0]


WORK = pytest.mark.parametrize("work", [Sweep(), Cleanup(), Reembed()], ids=["sweep", "cleanup", "reembed"])


async def exactly_once(urls: Urls, work: Work, made: list[str]) -> None:
    await work.check(urls, made)
    await check_ledger(urls)


@WORK
@every_round
async def test_killed_in_the_middle_another_worker_ends_the_job(
    work: Work, turn: int, ask: Caller, engine: Engine, hands: Hands, urls: Urls, template: Template,
    environ: Callable[[], dict[str, str]],
) -> None:  # fmt: skip
    made = await work.prepare(ask, engine, hands, urls)
    start = hands.now
    async with held(urls, work.table, made[MEMORIES // 2]):
        with worker({**environ(), **work.environ}) as first:
            await until(lambda: somebody_waits(template, urls), "the worker comes to the row in the middle")
            first.send_signal(signal.SIGKILL)
            first.wait(10)
    with worker({**environ(), **work.environ}):
        await until(lambda: ended_well(urls, work.job, start), "the job ends well")
    await exactly_once(urls, work, made)
    assert {row["outcome"] for row in await rows(urls, "SELECT outcome FROM memory.job_runs WHERE job = %s"
            " AND started_at >= %s", work.job, start)} >= {"lost", "ok"}  # fmt: skip


@WORK
@every_round
async def test_frozen_past_its_lease_it_writes_nothing_when_it_wakes(
    work: Work, turn: int, ask: Caller, engine: Engine, hands: Hands, urls: Urls, template: Template,
    environ: Callable[[], dict[str, str]],
) -> None:  # fmt: skip
    made = await work.prepare(ask, engine, hands, urls)
    start = hands.now
    with worker({**environ(), **work.environ}) as frozen:
        async with held(urls, work.table, made[MEMORIES // 2]):
            await until(lambda: somebody_waits(template, urls), "the worker comes to the row in the middle")
            frozen.send_signal(signal.SIGSTOP)
        with worker({**environ(), **work.environ}) as other:
            await until(lambda: ended_well(urls, work.job, start), "another worker ends the job")
            other.kill()
        before = await rows(urls, "SELECT count(*) AS n, max(id) AS last FROM memory.memory_events")
        frozen.send_signal(signal.SIGCONT)
        await asyncio.sleep(1.5)  # long enough to try: its lease was one second
        assert frozen.poll() is None, "it lives, and goes on with what is its own"
        assert await rows(urls, "SELECT count(*) AS n, max(id) AS last FROM memory.memory_events") == before
    await exactly_once(urls, work, made)
