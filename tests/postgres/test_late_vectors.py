"""A memory is findable at once and its vector may come a moment later; what replaces something waits for it (S12)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import MemoryType
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.embedding.ports import Vector
from butler_memory.errors import Unavailable
from butler_memory.postgres.changes import TABLES
from butler_memory.postgres.provision import Urls
from butler_memory.upkeep import late_vectors
from butler_memory.upkeep.late_vectors import embed_missing
from butler_memory.writing import vectors
from caller import Caller, Json
from conftest import MakePrincipal, OpenEngine, rows

pytestmark = pytest.mark.usefixtures("ledger")

FINDABLE_WITHIN_SECONDS = 2.0
LONG = 0.4  # longer than a writer's patience


class Gated(FakeEmbedder):
    """Holds every text that says "heron" until the gate opens; questions and all other texts pass."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if any("heron" in text.casefold() for text in texts):
            await self.gate.wait()
        return await super().embed(texts)


@pytest.fixture
def embedder() -> Gated:
    return Gated()


@pytest.fixture
async def engine(open_engine: OpenEngine, embedder: Gated) -> Engine:
    made: Engine = await open_engine(embedder=embedder)
    return made


async def version_of(ask: Caller, written: Json) -> str | None:
    version: str | None = (await ask.row(written))["embedding_version"]
    return version


async def has_vector_soon(ask: Caller, written: Json) -> bool:
    end = time.monotonic() + FINDABLE_WITHIN_SECONDS
    while time.monotonic() < end:
        if await version_of(ask, written):
            return True
        await asyncio.sleep(0.02)
    return False


async def found(ask: Caller, query: str, mode: str) -> list[str]:
    answer = await ask.call("search", {"query": query, "mode": mode})
    return [result["id"] for result in answer["results"]]


async def without_vector(urls: Urls) -> int:
    counts = [await rows(urls, f"SELECT 1 FROM memory.{table} WHERE embedding IS NULL") for table in TABLES.values()]
    return sum(map(len, counts))


@pytest.mark.parametrize("kind", ["fact", "episode"])
async def test_s12_what_is_new_is_acknowledged_and_found_by_words_before_its_vector_comes(
    ask: Caller, embedder: Gated, kind: str
) -> None:
    began = time.monotonic()
    written = await getattr(ask, kind)("We saw a heron at the lake")
    assert time.monotonic() - began < 1.0, "the writer waits 150 ms, not for the model"
    assert (written["outcome"], await version_of(ask, written)) == ("created", None)
    for mode in ("keyword", "hybrid"):
        assert await found(ask, "lake", mode) == [written["id"]]
    embedder.gate.set()
    assert await has_vector_soon(ask, written)
    assert await found(ask, "We saw a heron", "semantic") == [written["id"]]


@pytest.mark.parametrize("kind", ["fact", "episode"])
async def test_s12_a_model_that_is_merely_slow_makes_up_within_two_seconds(
    ask: Caller, open_engine: OpenEngine, kind: str
) -> None:
    slow = await open_engine(embedder=FakeEmbedder(delay=LONG))
    written = await getattr(Caller(slow.memory, ask.who), kind)("We saw a swan at the lake")
    assert await version_of(ask, written) is None
    assert await has_vector_soon(ask, written)


async def test_s12_a_quick_model_leaves_nothing_to_make_up(ask: Caller, urls: Urls) -> None:
    for kind in ("fact", "rule", "episode"):
        await getattr(ask, kind)("Always greet the swan")
    assert await without_vector(urls) == 0


@pytest.mark.parametrize("kind", ["fact", "episode"])
async def test_s12_a_vector_that_comes_between_the_writing_and_the_end_of_the_call_is_not_lost(
    ask: Caller, engine: Engine, embedder: Gated, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    await ask.episode("A swan")  # the tenant is known from here on: the next transaction is the write itself
    run = engine.database.run

    async def then_the_vector_comes(tenant: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
        done = await run(tenant, work)
        monkeypatch.undo()
        embedder.gate.set()
        await asyncio.wait(set(engine.desk.vectors._late))
        return done

    monkeypatch.setattr(engine.database, "run", then_the_vector_comes)
    written = await getattr(ask, kind)("We saw a heron")
    assert embedder.gate.is_set()
    assert await has_vector_soon(ask, written)


Write = Callable[[Caller, Json], Awaitable[Json]]
NEEDS_VECTOR: dict[str, tuple[str, Write]] = {
    "another value of one": ("employer", lambda ask, _: ask.fact("Heron Ltd", "employer")),
    "one more of many": ("hobby", lambda ask, _: ask.fact("watching herons", "hobby")),
    "a correction": ("employer", lambda ask, first: ask.edit(first, content="Heron Ltd")),
    "a rule": ("employer", lambda ask, _: ask.rule("Greet every heron")),
}


@pytest.mark.parametrize("case", NEEDS_VECTOR)
async def test_s12_what_supersedes_or_could_be_a_duplicate_waits_for_its_vector(
    ask: Caller, embedder: Gated, case: str
) -> None:
    predicate, write = NEEDS_VECTOR[case]
    first = await ask.fact("Acme", predicate)
    waiting = asyncio.create_task(write(ask, first))
    await asyncio.sleep(LONG)
    assert not waiting.done()
    assert (await ask.row(first))["validity"] == "active"
    await asyncio.wait_for(ask.confirm(first), 1)  # waiting holds no row and no lock
    embedder.gate.set()
    written = await asyncio.wait_for(waiting, FINDABLE_WITHIN_SECONDS)
    assert written["outcome"] in ("created", "superseded")
    assert await version_of(ask, written) == embedder.version, "with its vector from the first moment"


async def test_s12_a_vector_that_never_comes_refuses_the_successor_and_keeps_the_old_one(
    ask: Caller, monkeypatch: pytest.MonkeyPatch, urls: Urls
) -> None:
    monkeypatch.setattr(vectors, "LONGEST_WAIT_SECONDS", 0.1)
    first = await ask.fact("Acme")
    with pytest.raises(Unavailable, check=lambda error: error.reason == "embedding_timeout"):
        await ask.fact("Heron Ltd")
    assert (await ask.row(first))["validity"] == "active"
    assert len(await rows(urls, "SELECT 1 FROM memory.facts")) == 1


async def test_s12_without_a_model_a_supersession_goes_through_and_is_made_up_for(
    ask: Caller, engine: Engine, embedder: Gated, urls: Urls
) -> None:
    embedder.gate.set()
    first = await ask.fact("Acme")
    embedder.available = False
    second = await ask.fact("Heron Ltd")
    rule = await ask.rule("Greet every heron")
    assert second["superseded_id"] == first["id"]
    assert (await ask.row(first))["validity"] == "superseded"
    assert await found(ask, "heron", "hybrid") != []
    assert [await version_of(ask, written) for written in (second, rule)] == [None, None]
    with suppress(Unavailable):
        await embed_missing(engine.database, engine.models)
    assert await without_vector(urls) == 2
    embedder.available = True
    assert await embed_missing(engine.database, engine.models) == 2
    assert await without_vector(urls) == 0
    assert (await found(ask, "Heron Ltd", "semantic"))[0] == second["id"]


async def test_s12_what_is_missing_is_made_up_for_in_all_tenants_and_types(
    ask: Caller, engine: Engine, embedder: Gated, principal: MakePrincipal, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_vectors, "BATCH", 2)
    embedder.gate.set()
    callers = [ask, ask.as_(await principal(tenant="next door"))]
    kept = await ask.episode("A swan")
    embedder.available = False
    written = [(caller, await caller.episode(f"heron number {n}")) for caller in callers for n in range(5)]
    for caller in callers:
        written += [(caller, await caller.fact("heron", "bird")), (caller, await caller.rule("Greet every heron"))]
    assert await without_vector(urls) == len(written) == 14
    before = await rows(urls, "SELECT embedding::text FROM memory.episodes WHERE id = %s", kept["id"])
    embedder.available = True
    assert await embed_missing(engine.database, engine.models) == 14
    assert await without_vector(urls) == 0
    assert {await version_of(caller, one) for caller, one in written} == {embedder.version}
    assert await rows(urls, "SELECT embedding::text FROM memory.episodes WHERE id = %s", kept["id"]) == before
    assert await embed_missing(engine.database, engine.models) == 0
    events = await rows(urls, "SELECT DISTINCT event_type FROM memory.memory_events")
    assert [row["event_type"] for row in events] == ["created"], "vectors are outside of events and versions (L2)"


@pytest.mark.parametrize("kind", list(MemoryType))
async def test_appendix_b_get_shows_every_column_but_the_vectors(ask: Caller, urls: Urls, kind: MemoryType) -> None:
    written = await getattr(ask, kind.value)("Always greet the swan")
    columns = await rows(
        urls,
        "SELECT column_name AS name FROM information_schema.columns WHERE table_schema = 'memory' AND table_name = %s",
        TABLES[kind],
    )
    row = await ask.row(written)
    assert {column["name"] for column in columns} - row.keys() == {"embedding", "search_vector"}
    assert row["embedding_version"] == FakeEmbedder.version
    assert (row["reference_count"], row["last_referenced_at"]) == (0, None)
