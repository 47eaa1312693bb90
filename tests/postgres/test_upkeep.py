"""Vectors that are missing are made up for, whatever is wrong with some of them (S12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from butler_memory import bootstrap
from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import JobName, Role
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.embedding.models import Models
from butler_memory.embedding.ports import Vector
from butler_memory.errors import Unavailable
from butler_memory.postgres.provision import Urls
from butler_memory.serve import upkeep
from butler_memory.upkeep.late_vectors import embed_missing
from caller import Caller
from conftest import Hands, OpenEngine, rows

pytestmark = pytest.mark.usefixtures("ledger")

POISON = "poison"


class Choosy(FakeEmbedder):
    """Breaks on some texts, in a way that nobody foresaw."""

    broken = False

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if self.broken or any(POISON in text for text in texts):
            raise RuntimeError(f"cannot read: {texts}")
        return await super().embed(texts)


async def caller(engine: Engine, tenant: str) -> Caller:
    secret, _ = await engine.access.create_token(tenant, "health", Role.BUTLER)
    return Caller(engine.memory, await engine.access.authenticate(secret))


async def without_vector(urls: Urls) -> list[str]:
    found = await rows(
        urls,
        """
        SELECT tenant_id || ' ' || content AS line FROM memory.facts WHERE embedding IS NULL
        UNION ALL
        SELECT tenant_id || ' ' || content FROM memory.episodes WHERE embedding IS NULL
        ORDER BY 1
        """,
    )
    return [row["line"] for row in found]


async def stored_without(engine: Engine, embedder: FakeEmbedder, *tenants: str, poisoned: str) -> None:
    embedder.available = False
    for tenant in tenants:
        ask = await caller(engine, tenant)
        await ask.episode(POISON if tenant == poisoned else "It rained")
        await ask.fact("Acme")
    embedder.available = True


@asynccontextmanager
async def kept_up(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    monkeypatch.setattr(bootstrap, "MAKE_UP_EVERY_SECONDS", 0.02)
    async with upkeep(engine):
        yield


async def until_none_is_left(urls: Urls) -> None:
    async with asyncio.timeout(10):
        while await without_vector(urls):
            await asyncio.sleep(0.02)


async def test_s12_what_fails_for_one_tenant_does_not_keep_types_and_tenants_waiting(
    open_engine: OpenEngine, urls: Urls, caplog: pytest.LogCaptureFixture
) -> None:
    embedder = Choosy()
    engine = await open_engine(embedder)
    await stored_without(engine, embedder, "a", "b", "c", poisoned="a")
    assert len(await without_vector(urls)) == 6
    assert await embed_missing(engine.database, engine.models) == 5
    assert await without_vector(urls) == [f"a {POISON}"]
    assert "RuntimeError" in caplog.text
    assert POISON not in caplog.text  # G7


async def test_s12_without_a_model_a_round_ends_at_the_first_batch(open_engine: OpenEngine, urls: Urls) -> None:
    embedder = FakeEmbedder()
    engine = await open_engine(embedder)
    await stored_without(engine, embedder, "a", "b", poisoned="")
    asked: list[Sequence[str]] = []

    class Missing(FakeEmbedder):
        async def embed(self, texts: Sequence[str]) -> list[Vector]:
            asked.append(texts)
            raise Unavailable("The embedding model is missing.", reason="no_model")

    with pytest.raises(Unavailable):
        await embed_missing(engine.database, Models(Missing()))
    assert len(asked) == 1


async def test_s12_upkeep_survives_a_round_that_breaks_and_makes_up_in_the_next(
    open_engine: OpenEngine, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Choosy()
    engine = await open_engine(embedder)
    await stored_without(engine, embedder, "a", poisoned="")
    rounds = 0

    async def breaking(*_: object) -> int:
        nonlocal rounds
        rounds += 1
        if rounds == 1:
            raise RuntimeError("nobody foresaw this")
        if rounds == 2:
            raise Unavailable("The database does not answer.", reason="no_connection")
        return await embed_missing(engine.database, engine.models)

    monkeypatch.setattr(bootstrap, "embed_missing", breaking)
    async with kept_up(engine, monkeypatch):
        await until_none_is_left(urls)
    assert rounds >= 3


async def test_appendix_c_a_disabled_memory_runs_no_job_at_a_hosts_tick(
    ask: Caller, open_engine: OpenEngine, hands: Hands
) -> None:
    off = await open_engine(BUTLER_MEMORY_ENABLED="false")
    hands.pass_(days=3)
    assert await off.workers.run_due() == []
    with pytest.raises(Unavailable):
        await off.workers.run_now(JobName.DECAY_SWEEP)


async def test_appendix_c_a_disabled_memory_has_no_upkeep(
    open_engine: OpenEngine, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Choosy()
    await stored_without(await open_engine(embedder), embedder, "a", poisoned="")
    off = await open_engine(embedder, BUTLER_MEMORY_ENABLED="false")
    async with kept_up(off, monkeypatch):
        await asyncio.sleep(0.2)
    assert len(await without_vector(urls)) == 2
