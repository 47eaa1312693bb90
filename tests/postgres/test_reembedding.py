"""Another model: a tenant answers from one version at any moment, misses nothing, no vector is made twice (L5)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from butler_memory.bootstrap import Engine, timetable
from butler_memory.domain.kinds import JobName, Role, RunOutcome
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.embedding.ports import Vector
from butler_memory.errors import Unavailable
from butler_memory.postgres import embeddings, leases
from butler_memory.postgres.changes import TABLES
from butler_memory.postgres.database import Conn
from butler_memory.postgres.leases import Run
from butler_memory.postgres.provision import Urls
from butler_memory.upkeep import reembed as job
from butler_memory.upkeep.job import Job
from butler_memory.upkeep.late_vectors import embed_missing
from butler_memory.upkeep.reembed import notice
from butler_memory.workers.workers import Workers
from caller import Caller
from conftest import Hands, MakePrincipal, OpenEngine, owner_connection, rows

pytestmark = pytest.mark.usefixtures("ledger")

BIRDS = "heron swan crane stork ibis egret bittern spoonbill plover curlew".split()
KNOWN = [f"We saw a {bird} at lake {place}" for bird in BIRDS for place in ("Como", "Garda", "Orta")]


class Turned(FakeEmbedder):
    """Another model: its vectors are just as good, and nonsense beside the other's."""

    def __init__(self, version: str = "turned@2", turn: int = 191, delay: float = 0.0) -> None:
        super().__init__(delay=delay, version=version)
        self.turn = turn
        self.made: list[str] = []

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        made = await super().embed(texts)
        self.made += texts
        return made

    def _bucket(self, word: str) -> int:
        return (super()._bucket(word) + self.turn) % self.dimensions


OLD, NEW = FakeEmbedder.version, "turned@2"


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "BATCH", 5)
    monkeypatch.setattr(job, "BATCHES_PER_RUN", 3)


async def remember(ask: Caller) -> list[str]:
    """Facts, episodes and rules; their ids."""
    written = [await ask.fact(text, "note") for text in KNOWN]
    written += [await ask.episode(f"Heard of it: {text}") for text in KNOWN[:5]]
    written += [await ask.rule(f"Always mention {bird}s first") for bird in BIRDS[:5]]
    return [each["id"] for each in written]


async def one_turn(engine: Engine, tenant: str = "home") -> Run:
    [ran] = await engine.workers.run_now(JobName.REEMBED, tenant)
    assert ran.run is not None
    assert ran.run.outcome is RunOutcome.OK, ran.run
    return ran.run


async def due(engine: Engine) -> list[Run]:
    """What this job runs by itself, now."""
    work = Job(JobName.REEMBED, partial(job.reembed, engine.database, engine.models))
    return await Workers(engine.database, [work], timetable(engine.settings), engine.clock).run_due()


async def until_done(engine: Engine, tenant: str = "home") -> int:
    """How many vectors were made."""
    made = 0
    while True:
        run = await one_turn(engine, tenant)
        made += run.counts["embedded"]
        if run.caught_up:
            return made


async def versions(urls: Urls, tenant: str = "home") -> dict[str | None, int]:
    every = " UNION ALL ".join(f"SELECT tenant_id, embedding_version FROM memory.{name}" for name in TABLES.values())
    found = await rows(
        urls, f"SELECT embedding_version AS v, count(*) AS n FROM ({every}) x WHERE tenant_id = %s GROUP BY 1", tenant
    )
    return {row["v"]: row["n"] for row in found}


async def states(urls: Urls, tenant: str = "home") -> dict[str, str]:
    found = await rows(urls, "SELECT version, state FROM memory.embedding_versions WHERE tenant_id = %s", tenant)
    return {row["version"]: row["state"] for row in found}


async def by_meaning(ask: Caller, text: str) -> dict[str, float]:
    """Everything that has a vector to compare with, best first, with its cosine."""
    answer = await ask.call("search", {"query": text, "mode": "semantic", "limit": 200, "explain": True})
    assert answer["status"] == "ok"
    return {result["id"]: result["signals"]["cosine"] for result in answer["results"]}


async def is_found_exactly(ask: Caller, text: str) -> bool:
    return next(iter((await by_meaning(ask, f"User note {text}")).values()), 0) > 0.8


async def test_l5_another_model_re_embeds_a_tenant_and_swaps_it_at_once(
    ask: Caller, open_engine: OpenEngine, urls: Urls
) -> None:
    ids = await remember(ask)
    assert await states(urls) == {OLD: "current"}
    model = Turned()
    new = await open_engine(model, older=[FakeEmbedder()])
    asker = Caller(new.memory, ask.who)
    first = await one_turn(new)
    assert not first.caught_up
    assert first.counts == {"embedded": 15, "swapped": 0}
    assert (await versions(urls), await states(urls)) == ({OLD: 40}, {OLD: "current", NEW: "building"})
    assert len(await rows(urls, "SELECT 1 FROM memory.new_vectors")) == 15
    assert await until_done(new) == 25
    assert (await versions(urls), await states(urls)) == ({NEW: 40}, {OLD: "retired", NEW: "current"})
    assert await rows(urls, "SELECT 1 FROM memory.new_vectors") == []
    assert len(model.made) == 40
    assert set(await by_meaning(asker, KNOWN[0])) == set(ids)
    assert await is_found_exactly(asker, KNOWN[0])
    assert await until_done(new) == 0


async def test_l5_under_live_traffic_each_answer_is_of_one_version_and_misses_nothing(
    ask: Caller, open_engine: OpenEngine, urls: Urls
) -> None:
    known = set(await remember(ask))
    models = Turned(delay=0.002), FakeEmbedder(delay=0.002)
    here, there = [await open_engine(models[0], older=[models[1]]) for _ in range(2)]
    askers = [Caller(engine.memory, ask.who) for engine in (here, there)]
    written: list[str] = []
    asked = {OLD: 0, NEW: 0}
    over = asyncio.Event()

    async def read(asker: Caller, number: int) -> None:
        while not over.is_set():
            text = KNOWN[number % len(KNOWN)]
            before = (await answering(urls))[0]
            found = await by_meaning(asker, f"User note {text}")
            assert known <= found.keys(), "nothing is missing"
            assert max(found.values()) > 0.8, "and the best is what was asked for"
            block = await asker.call("context", {"trigger_prompt": text})
            assert (block["status"], text.split()[3] in block["block"]) == ("ok", True)
            asked[before] += 1
            number += 7

    async def write(asker: Caller, name: str) -> None:
        number = 0
        while not over.is_set():
            number += 1
            one = await asker.fact(f"{name} saw bird number {number}", "note")
            if number % 3 == 0:
                await asker.edit(one, importance=7)
            written.append(one["id"])

    traffic = [asyncio.create_task(read(asker, number)) for number, asker in enumerate(askers * 2)]
    traffic += [asyncio.create_task(write(asker, f"Writer{n}")) for n, asker in enumerate(askers)]
    async with asyncio.timeout(60):
        await until(lambda: asked[OLD] > 5, traffic)
        await until_swapped(here, urls)
        seen = asked[NEW]
        await until(lambda: asked[NEW] > seen + 20, traffic)
    over.set()
    await asyncio.gather(*traffic)
    await until_done(here)
    assert list(await versions(urls)) == [NEW]
    assert known | set(written) <= (await by_meaning(askers[1], "bird")).keys() | set(written[150:])
    assert len(written) > 10


async def until(holds: Any, traffic: Sequence[asyncio.Task[None]]) -> None:
    while not holds():
        for task in traffic:
            if task.done():
                task.result()
        await asyncio.sleep(0.005)


async def until_swapped(engine: Engine, urls: Urls) -> None:
    while await answering(urls) != [NEW]:
        await one_turn(engine)
        await asyncio.sleep(0.01)


async def answering(urls: Urls) -> list[str]:
    found = await rows(urls, "SELECT embedding_version AS v FROM memory.tenants ORDER BY tenant_id")
    return [row["v"] for row in found]


async def test_l5_who_goes_on_after_a_crash_makes_nothing_twice(
    ask: Caller, open_engine: OpenEngine, urls: Urls
) -> None:
    await remember(ask)

    class Dying(Turned):
        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            if len(self.made) >= 20:
                await asyncio.sleep(60)
            return await super().embed(texts)

    dying = Dying()
    first = await open_engine(dying, older=[FakeEmbedder()])

    async def die() -> None:
        while True:
            await one_turn(first)

    running = asyncio.create_task(die())
    while len(await rows(urls, "SELECT 1 FROM memory.new_vectors")) < 20:
        await asyncio.sleep(0.01)
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    model = Turned()
    second = await open_engine(model, older=[FakeEmbedder()])
    assert await until_done(second) == 20
    assert not set(model.made) & set(dying.made)
    assert await versions(urls) == {NEW: 40}


async def test_l5_a_process_that_lost_its_lease_neither_keeps_nor_swaps(
    ask: Caller, open_engine: OpenEngine, urls: Urls, hands: Hands
) -> None:
    await ask.fact("chess", "hobby")

    class Overtaken(Turned):
        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            async with owner_connection(urls) as conn:
                await conn.execute("UPDATE memory.shards SET lease_token = lease_token + 1")
            return await super().embed(texts)

    new = await open_engine(Overtaken())
    [ran] = await new.workers.run_now(JobName.REEMBED, "home")
    assert ran.run is not None
    assert ran.run.outcome is RunOutcome.LOST
    assert (await versions(urls), await rows(urls, "SELECT 1 FROM memory.new_vectors")) == ({OLD: 1}, [])


async def test_l5_without_the_old_model_words_are_compared_until_the_swap(
    ask: Caller, open_engine: OpenEngine, urls: Urls
) -> None:
    await remember(ask)
    new = await open_engine(Turned())
    asker = Caller(new.memory, ask.who)
    for call in ("search", "recall", "context"):
        argument = {"search": "query", "recall": "topic", "context": "trigger_prompt"}[call]
        answer = await asker.call(call, {argument: KNOWN[0]})
        assert (answer["status"], answer["degraded"]) == ("degraded", ["reembedding"]), call
        assert "heron" in str(answer)
    written = await asker.fact("We met a pelican", "note")
    assert (await asker.row(written))["embedding_version"] == NEW, "it will be found from the swap on"
    await until_done(new)
    answer = await asker.call("search", {"query": KNOWN[0]})
    assert (answer["status"], answer["degraded"]) == ("ok", [])
    assert len(await by_meaning(asker, "pelican")) == 41
    assert await versions(urls) == {NEW: 41}


async def test_l5_tenants_swap_one_by_one(
    ask: Caller, open_engine: OpenEngine, principal: MakePrincipal, urls: Urls
) -> None:
    neighbour = ask.as_(await principal(tenant="next door"))
    for caller in (ask, neighbour):
        await caller.fact(KNOWN[0], "note")
    new = await open_engine(Turned(), older=[FakeEmbedder()])
    await until_done(new, "next door")
    assert await answering(urls) == [OLD, NEW]
    for caller in (ask, neighbour):
        assert await is_found_exactly(Caller(new.memory, caller.who), KNOWN[0])
    assert (await versions(urls), await versions(urls, "next door")) == ({OLD: 1}, {NEW: 1})


async def test_l5_another_process_notices_the_swap_at_its_next_read(ask: Caller, open_engine: OpenEngine) -> None:
    await remember(ask)
    here, there, elsewhere = [await open_engine(Turned(), older=[FakeEmbedder()]) for _ in range(3)]
    searching, starting = [Caller(engine.memory, ask.who) for engine in (there, elsewhere)]
    assert await is_found_exactly(searching, KNOWN[0])
    await until_done(here)
    assert there.models.version_of("home") == OLD, "nobody told it"
    assert await is_found_exactly(searching, KNOWN[0])
    assert there.models.version_of("home") == NEW
    batch = await starting.call("context_batch", {"requests": [{"trigger_prompt": text} for text in KNOWN[:3]]})
    assert [each["status"] for each in batch["results"]] == ["ok"] * 3
    assert isinstance(elsewhere.embedder, Turned)
    assert elsewhere.embedder.made == KNOWN[:3], "embedded again, with the model of the swap"


async def test_l5_what_was_stored_with_the_old_model_after_the_swap_is_made_anew_minutes_later(
    ask: Caller, open_engine: OpenEngine, urls: Urls, hands: Hands
) -> None:
    await remember(ask)
    new = await open_engine(Turned(), older=[FakeEmbedder()])
    await until_done(new)
    straggler = await ask.fact("We met a pelican", "note")  # by a process that has not noticed
    assert (await ask.row(straggler))["embedding_version"] == OLD
    assert straggler["id"] not in await by_meaning(Caller(new.memory, ask.who), "pelican"), "versions are not compared"
    assert await due(new) == []
    assert await until_done(new) == 1, "a run in between finds what is there"
    other = await ask.fact("We met a cormorant", "note")
    assert (await ask.row(other))["embedding_version"] == OLD
    hands.pass_(minutes=5)
    assert [run.counts["embedded"] for run in await due(new)] == [1]
    assert await versions(urls) == {NEW: 42}
    hands.pass_(minutes=5)
    assert await due(new) == []


async def test_l5_a_change_of_model_is_noticed_at_the_start_and_the_job_is_due_at_once(
    ask: Caller, engine: Engine, open_engine: OpenEngine, urls: Urls
) -> None:
    await ask.fact("chess", "hobby")
    assert await due(engine) == []
    await open_engine()  # with the same model
    assert await due(engine) == []
    new = await open_engine(Turned())
    ran = await due(new)
    assert [run.outcome for run in ran] == [RunOutcome.OK]
    assert await versions(urls) == {NEW: 1}


async def test_l5_no_start_waits_for_a_swap_under_way(ask: Caller, engine: Engine, open_engine: OpenEngine) -> None:
    await ask.fact("chess", "hobby")
    await engine.workers.run_now(JobName.REEMBED, "home")

    async def start(conn: Conn) -> None:
        await conn.execute("SELECT 1 FROM memory.shards FOR NO KEY UPDATE")
        await asyncio.wait_for(open_engine(Turned()), 5)

    await engine.database.run("home", start)


async def test_l5_an_older_process_does_not_bring_its_model_back_but_a_person_may(
    ask: Caller, engine: Engine, open_engine: OpenEngine, urls: Urls, hands: Hands
) -> None:
    await ask.fact("chess", "hobby")
    await until_done(await open_engine(Turned(), older=[FakeEmbedder()]))
    await notice(engine.database, engine.models, hands.now)
    hands.pass_(minutes=5)
    [refused] = await due(engine)
    assert (refused.outcome, refused.reason) == (RunOutcome.FAILED, job.OLDER_MODEL)
    answer = await ask.call("search", {"query": "chess"})
    assert (answer["degraded"], len(answer["results"])) == (["reembedding"], 1)
    hands.pass_(days=1)
    lease = await engine.database.run_as_worker(
        lambda conn: leases.claim_named(conn, JobName.REEMBED, "home", "", hands.now, hands.now, 60)
    )
    assert lease is not None
    done = await job.reembed(engine.database, engine.models, lease, hands.now, back=True)
    assert done.counts == {"embedded": 1, "swapped": 1}
    assert (await versions(urls), await states(urls)) == ({OLD: 1}, {OLD: "current", NEW: "retired"})


async def test_l5_a_third_model_takes_over_what_the_second_had_begun(
    ask: Caller, open_engine: OpenEngine, urls: Urls
) -> None:
    await remember(ask)
    await one_turn(await open_engine(Turned(), older=[FakeEmbedder()]))
    third = await open_engine(Turned("third@3", turn=77), older=[FakeEmbedder()])
    assert await until_done(third) == 40
    assert await versions(urls) == {"third@3": 40}
    assert await states(urls) == {OLD: "retired", NEW: "retired", "third@3": "current"}


async def test_r4_a_warning_is_still_found_where_the_rule_was(ask: Caller, open_engine: OpenEngine, urls: Urls) -> None:
    rule = await ask.rule("Always feed the heron")
    for _ in range(4):
        await ask.call("mark_harmful", {"rule_id": rule["id"], "reason": "it came back with friends"})
    assert (await ask.row(rule))["maturity"] == "anti_pattern"
    new = await open_engine(Turned(), older=[FakeEmbedder()])
    await until_done(new)
    [cosine] = (await by_meaning(Caller(new.memory, ask.who), "Always feed the heron")).values()
    assert cosine > 0.99


async def test_g5_what_is_erased_on_the_way_gets_no_vector(
    ask: Caller, open_engine: OpenEngine, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = [await ask.episode(text) for text in KNOWN[:3]]
    ids = [each["id"] for each in written]

    class Slow(Turned):
        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            await erase(ids[0])
            return await super().embed(texts)

    async def erase(memory_id: str) -> None:
        async with owner_connection(urls) as conn:
            await conn.execute(
                "UPDATE memory.episodes SET content = NULL, embedding = NULL, embedding_version = NULL WHERE id = %s",
                [memory_id],
            )
            await conn.execute("UPDATE memory.memory_event_bodies SET body = jsonb_set(body, '{set,content}', 'null')"
                               " WHERE event_id = (SELECT id FROM memory.memory_events WHERE entity_id = %s)",
                               [memory_id])  # fmt: skip

    new = await open_engine(Slow())
    swap = embeddings.swap

    async def erased_before(*given: Any) -> None:
        assert len(await rows(urls, "SELECT 1 FROM memory.new_vectors")) == 2
        await erase(ids[1])
        await swap(*given)

    monkeypatch.setattr(embeddings, "swap", erased_before)
    await until_done(new)
    left = await rows(urls, "SELECT id::text AS id FROM memory.episodes WHERE embedding IS NOT NULL")
    assert [row["id"] for row in left] == [ids[2]]


async def test_s12_a_memory_without_any_vector_gets_its_tenants(
    ask: Caller, engine: Engine, open_engine: OpenEngine, urls: Urls
) -> None:
    assert isinstance(engine.embedder, FakeEmbedder)
    engine.embedder.available = False
    for text in KNOWN[:6]:
        await ask.episode(text)
    new = await open_engine(Turned(), older=[FakeEmbedder()])
    assert await embed_missing(new.database, new.models) == 6
    assert await versions(urls) == {OLD: 6}, "found now, not only after the swap"
    await ask.episode(KNOWN[7])
    assert await until_done(new) == 7
    assert await versions(urls) == {NEW: 7}


async def test_s12_the_job_also_makes_what_is_missing_where_no_model_changed(
    ask: Caller, engine: Engine, urls: Urls
) -> None:
    assert isinstance(engine.embedder, FakeEmbedder)
    engine.embedder.available = False
    await ask.episode(KNOWN[0])
    [ran] = await engine.workers.run_now(JobName.REEMBED, "home")
    assert ran.run is not None
    assert ran.run.outcome is RunOutcome.FAILED, "and it says so"
    engine.embedder.available = True
    assert await until_done(engine) == 1
    assert await versions(urls) == {OLD: 1}


async def test_l5_a_new_tenant_answers_from_the_engines_version(open_engine: OpenEngine, urls: Urls) -> None:
    new = await open_engine(Turned())
    await new.access.create_token("home", "health", Role.BUTLER)
    await new.access.ensure_tenant("home")
    assert (await answering(urls), await states(urls)) == ([NEW], {NEW: "current"})
    with pytest.raises(Unavailable):
        await new.database.run("", lambda conn: embeddings.known(conn, ""))
