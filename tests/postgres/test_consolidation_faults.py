"""Whatever happens to a reading, and wherever: nothing is lost, nothing comes twice, order is kept (K1, K4, E2).

Each kind of trouble at each point of the pipeline. The processes that are killed or frozen are a few here; `make
bench-faults` runs them at every point, and more rounds of them.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import psycopg
import pytest

from butler_memory.bootstrap import Engine
from butler_memory.consolidation.batch import Batch
from butler_memory.consolidation.readers import OfflineReader
from butler_memory.llm.ports import BackendDown, Bad, BadOutput, Down, Reply
from butler_memory.postgres.provision import Urls
from butler_memory.workers.workers import Workers
from caller import Caller, Json
from conftest import Hands, MakePrincipal, OpenEngine, Template, rows
from points import IN_NO_TRANSACTION, POINTS, Trouble, once_at
from processes import PATIENCE_SECONDS, Check, until
from worker_process import worker

pytestmark = pytest.mark.usefixtures("ledger")

ROUNDS = int(os.environ.get("ROUNDS", "0"))  # none: the few that the suite runs
LEASE_SECONDS = 1.0
SMALL_BATCHES = {"BUTLER_MEMORY_CONSOLIDATION__BATCH_SIZE": "2"}
PLACES = "Athens Bergen Cork Delft Essen".split()


def workers_of(engine: Engine, lease_seconds: float) -> Workers:
    return Workers(
        engine.database,
        engine.jobs,
        engine.desk.timetable,
        engine.clock,
        lease_seconds=lease_seconds,
        poll_seconds=0.05,
    )


@asynccontextmanager
async def at_work(*engines: Engine, lease_seconds: float = LEASE_SECONDS) -> AsyncIterator[None]:
    """Engines that run their jobs."""
    running = [asyncio.create_task(workers_of(each, lease_seconds).run_forever()) for each in engines]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def told(ask: Caller, hands: Hands) -> list[Json]:
    """Five episodes, each of which says one thing; they have been quiet for long enough to be read."""
    made = []
    for number, place in enumerate(PLACES):
        made.append(await ask.in_session(f"session {number}").episode(f"User: My friend Jo{number} lives in {place}."))
        hands.pass_(seconds=1)
    hands.pass_(hours=1)
    return made


async def is_read(urls: Urls) -> bool:
    waiting = await rows(urls, "SELECT 1 FROM memory.episodes WHERE consolidation_status = 'pending' AND"
                         " state = 'active'")  # fmt: skip
    leased = await rows(urls, "SELECT 1 FROM memory.shards WHERE kind = 'consolidate' AND lease_until IS NOT NULL")
    return not waiting and not leased


async def assert_read_once_and_in_order(urls: Urls, made: list[Json], but: Json | None = None) -> None:
    """Each episode that is to be read was read once, in order; what it says is known once, with it as evidence."""
    wanted = [episode["id"] for episode in made if episode is not but]
    read = await rows(urls, "SELECT entity_id::text AS id FROM memory.memory_events WHERE event_type = 'consolidated'"
                      " ORDER BY id")  # fmt: skip
    assert [row["id"] for row in read] == wanted
    known = await rows(
        urls,
        "SELECT l.target_id::text AS episode, array_agg(f.content ORDER BY f.content) AS contents FROM memory.facts f"
        " JOIN memory.memory_links l ON (l.tenant_id, l.source_id) = (f.tenant_id, f.id)"
        " WHERE l.relation = 'derived_from' GROUP BY 1",
    )
    said = {
        episode["id"]: [place, f"Jo{number}"]
        for number, (episode, place) in enumerate(zip(made, PLACES, strict=True))
        if episode is not but
    }
    assert {row["episode"]: row["contents"] for row in known} == said


# --- what may happen -------------------------------------------------------------------------------------------------


class Scene:
    """A tenant with five episodes, and an engine that is about to read them."""

    def __init__(self, engine: Engine, ask: Caller, hands: Hands, urls: Urls, template: Template) -> None:
        self.engine, self.ask, self.hands, self.urls, self.template = engine, ask, hands, urls, template
        self.made: list[Json] = []
        self.running: asyncio.Task[None] | None = None

    async def raises_a_bug(self) -> None:
        raise RuntimeError("a bug")

    async def loses_the_database(self) -> None:
        name = psycopg.conninfo.conninfo_to_dict(self.urls.app)["dbname"]
        async with await psycopg.AsyncConnection.connect(self.template.server.admin_url(), autocommit=True) as conn:
            await conn.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

    async def is_told_to_stop(self) -> None:
        assert self.running
        self.running.cancel()
        await asyncio.sleep(PATIENCE_SECONDS)

    async def loses_its_lease(self) -> None:
        """While it stands still, another has read everything."""
        await rows(self.urls, "UPDATE memory.shards SET lease_until = clock_timestamp() - interval '1 s'"
                   " WHERE kind = 'consolidate' RETURNING 1")  # fmt: skip
        await self.engine.workers.run_due()

    async def an_episode_is_forgotten(self) -> None:
        await self.ask.forget(self.made[1])

    async def the_backend_is_down(self) -> None:
        raise BackendDown(Down.NO_NETWORK)

    async def the_backend_says_nonsense(self) -> None:
        raise BadOutput(Bad.NOT_JSON)


ANYWHERE = ("raises_a_bug", "loses_the_database", "is_told_to_stop")
OUTSIDE_OF_TRANSACTIONS = ("loses_its_lease", "an_episode_is_forgotten")
OF_THE_CALL = ("the_backend_is_down", "the_backend_says_nonsense")
MATRIX = [
    *product(ANYWHERE, POINTS),
    *product(OUTSIDE_OF_TRANSACTIONS, IN_NO_TRANSACTION),
    *product(OF_THE_CALL, ["mid-call"]),
]


@pytest.fixture
async def scene(
    open_engine: OpenEngine, principal: MakePrincipal, hands: Hands, urls: Urls, template: Template
) -> Scene:
    engine: Engine = await open_engine(**SMALL_BATCHES)
    made = Scene(engine, Caller(engine.memory, await principal()), hands, urls, template)
    made.made = await told(made.ask, hands)
    return made


@pytest.mark.parametrize(("happens", "point"), MATRIX)
async def test_e2_k4_whatever_happens_and_wherever(scene: Scene, happens: str, point: str) -> None:
    trouble: Trouble = getattr(scene, happens)
    with once_at(point, trouble) as came:
        while not came or not await is_read(scene.urls):
            async with asyncio.timeout(PATIENCE_SECONDS):
                scene.running = asyncio.create_task(_until_read(scene))
                await asyncio.wait([scene.running])
    forgotten = scene.made[1] if happens == "an_episode_is_forgotten" else None
    await assert_read_once_and_in_order(scene.urls, scene.made, but=forgotten)
    attempts = await rows(scene.urls, "SELECT consolidation_attempts AS n FROM memory.episodes ORDER BY created_at")
    is_contents = happens == "the_backend_says_nonsense"
    assert [row["n"] for row in attempts] == ([1, 1, 0, 0, 0] if is_contents else [0] * 5)


async def _until_read(scene: Scene) -> None:
    """The engine's own workers, as long as it takes; waiting times pass quickly."""
    async with at_work(scene.engine):
        while not await is_read(scene.urls):
            scene.hands.pass_(seconds=30)
            await asyncio.sleep(0.05)


# --- processes -------------------------------------------------------------------------------------------------------

FEW = [("SIGKILL", "mid-call"), ("SIGKILL", "before commit"), ("SIGSTOP", "after the call"), ("SIGSTOP", "claim")]
PROCESSES = [(*each, turn) for each in product(["SIGKILL", "SIGSTOP"], POINTS) for turn in range(ROUNDS)]


@pytest.mark.parametrize(("sent", "point", "turn"), PROCESSES or [(*each, 0) for each in FEW])
async def test_k1_a_process_that_dies_or_stands_still_in_the_middle_of_a_reading(
    sent: str, point: str, turn: int, scene: Scene, urls: Urls, tmp_path: Path, environ: Callable[[], dict[str, str]],
) -> None:  # fmt: skip
    """It stands still where the file is, and is hit there; another goes on; it wakes and writes nothing."""
    here = tmp_path / "here"
    with worker({**environ(), **SMALL_BATCHES, "STAND_STILL_AT": point, "STAND_STILL_FILE": str(here)}) as first:
        await until(_is_there(here), "the first worker comes to the point")
        first.send_signal(signal.Signals[sent])
        with worker({**environ(), **SMALL_BATCHES}) as other:
            await until(lambda: is_read(urls), "another worker reads everything")
            other.kill()
        before = await rows(urls, "SELECT count(*) AS n, max(id) AS last FROM memory.memory_events")
        here.unlink()
        first.send_signal(signal.SIGCONT)
        await asyncio.sleep(1.0)  # long enough to try
        assert (first.poll() is None) is (sent == "SIGSTOP")
        assert await rows(urls, "SELECT count(*) AS n, max(id) AS last FROM memory.memory_events") == before
    await assert_read_once_and_in_order(urls, scene.made)


def _is_there(file: Path) -> Check:
    async def check() -> bool:
        return file.exists()

    return check


# --- many ------------------------------------------------------------------------------------------------------------


class Watched:
    """Says who has read what."""

    def __init__(self, seen: list[tuple[int, str]], number: int) -> None:
        self.seen, self.number = seen, number
        self.inner = OfflineReader()
        self.name = self.inner.name

    async def read(self, batch: Batch) -> Reply:
        self.seen += [(self.number, str(episode.id)) for episode in batch.episodes]
        await asyncio.sleep(random.Random(len(self.seen)).uniform(0, 0.02))
        return await self.inner.read(batch)

    async def close(self) -> None:
        """Nothing is held."""


async def test_k1_four_workers_on_forty_groups_keep_the_order_of_each(
    open_engine: OpenEngine, principal: MakePrincipal, hands: Hands, urls: Urls
) -> None:
    seen: list[tuple[int, str]] = []
    engines = [await open_engine(episode_reader=Watched(seen, n), **SMALL_BATCHES) for n in range(4)]
    groups = [(tenant, f"butler{n}") for tenant in ("home", "work", "club", "farm") for n in range(10)]
    callers = [Caller(engines[0].memory, await principal(butler, tenant=tenant)) for tenant, butler in groups]
    for number, place in enumerate(PLACES):
        for ask in callers:
            await ask.in_session(f"session {number}").episode(f"User: My friend Jo{number} lives in {place}.")
        hands.pass_(seconds=1)
    hands.pass_(hours=1)
    async with at_work(*engines, lease_seconds=60):  # who is only slow keeps what it has
        await until(lambda: is_read(urls), "everything is read")
    by_group = await rows(
        urls,
        "SELECT e.tenant_id, e.butler, array_agg(e.created_at ORDER BY v.id) AS times FROM memory.memory_events v"
        " JOIN memory.episodes e ON (e.tenant_id, e.id) = (v.tenant_id, v.entity_id)"
        " WHERE v.event_type = 'consolidated' GROUP BY 1, 2",
    )
    assert len(by_group) == len(groups)
    for row in by_group:
        assert row["times"] == sorted(row["times"])
        assert len(row["times"]) == len(PLACES)
    assert max(Counter(episode for _, episode in seen).values()) == 1, "no episode is read by two"
    assert {number for number, _ in seen} == {0, 1, 2, 3}, "all have worked"
