"""Another model, in figures: how many texts a second the job makes, and how long a tenant's swap takes (L5).

    .venv/bin/python bench/reembedding.py [--texts 2000] [--rows 100000]

The first part uses the real model on short facts, alone and while a reader asks without pause. The second has made-up
vectors: the swap does not care. While it runs, a reader and a writer of the same tenant are timed too.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

import corpus
from butler_memory.bootstrap import Engine, open_engine
from butler_memory.domain.kinds import JobName, Role
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.embedding.minilm import MiniLmEmbedder
from butler_memory.embedding.ports import Embedder
from butler_memory.postgres import embeddings
from butler_memory.security.principal import Principal
from butler_memory.settings import load
from load import connect
from measure import percentile

TENANT = "large"
WHO = Principal(TENANT, "claude", Role.ADMIN, uuid5(NAMESPACE_URL, TENANT))
# Vectors with the spread of real ones, and texts of about twelve words.
ROWS = """
INSERT INTO memory.facts (tenant_id, id, version, subject, predicate, subject_key, predicate_key, slot, content,
    content_status, embedding, embedding_version, search_vector, importance, confidence, decay_rate, permanence,
    validity, scope, source_kind, source_butler, fades_at, expires_at_conf, created_at, last_confirmed_at, tags,
    metadata)
SELECT %(tenant)s, uuidv7(), 1, 'user', 'note', 'user', 'note', n::text, text, 'plain', v.embedding, %(version)s,
    strip(to_tsvector('english', text)), 5, 1, 0.008, 'standard', 'active', 'global', 'imported', 'claude',
    now() + interval '200 days', now() + interval '300 days', now(), now(), '[]', '{}'
FROM generate_series(1, %(rows)s) n
CROSS JOIN LATERAL (SELECT 'We met number ' || n || ' at the old harbour in the rain on day ' || n %% 365 AS text) t
CROSS JOIN LATERAL (SELECT array_agg(random() - 0.5)::real[]::halfvec AS embedding
                    FROM generate_series(1, 384) WHERE n > 0) v
"""
BESIDE = """
INSERT INTO memory.new_vectors (tenant_id, type, id, version, embedding)
SELECT tenant_id, 'fact', id, %(version)s, embedding FROM memory.facts WHERE tenant_id = %(tenant)s
"""


@asynccontextmanager
async def engine_with(directory: Path, embedder: Embedder, *older: Embedder) -> AsyncIterator[Engine]:
    settings = load(environ={"BUTLER_MEMORY_DATA_DIR": str(directory)})
    async with open_engine(settings, embedder=embedder, older=older) as engine:
        yield engine


async def while_it_runs(work: Awaitable[object], *calls: Callable[[], Awaitable[object]]) -> tuple[float, list[str]]:
    """Seconds that `work` took, and what each call took meanwhile, again and again."""
    over = asyncio.Event()

    async def again(call: Callable[[], Awaitable[object]]) -> str:
        taken: list[float] = []
        while not over.is_set():
            began = time.perf_counter()
            await call()
            taken.append((time.perf_counter() - began) * 1000)
        return f"{len(taken)} calls, p50 {percentile(taken, 0.5):.0f} ms, longest {max(taken):.0f} ms"

    calling = [asyncio.create_task(again(call)) for call in calls]
    began = time.perf_counter()
    await work
    seconds = time.perf_counter() - began
    over.set()
    return seconds, [await each for each in calling]


async def job_of(engine: Engine) -> int:
    made = 0
    while True:
        [ran] = await engine.workers.run_now(JobName.REEMBED, TENANT)
        assert ran.run is not None
        assert not ran.run.reason, ran.run
        made += ran.run.counts["embedded"]
        if ran.run.caught_up:
            return made


async def texts_a_second(directory: Path, count: int) -> None:
    """With the real model: first alone, then the same way back with a reader beside it."""
    fake, cache = FakeEmbedder(), load(environ={}).env.model_cache
    async with engine_with(directory, fake) as engine:
        await engine.access.ensure_tenant(TENANT)
        for fact in corpus.spread(7, count):
            given = {"subject": fact.subject, "predicate": "note", "content": fact.content}
            await engine.memory.store_fact(WHO, given)
    real = await MiniLmEmbedder.open(cache)
    for version, asks in (("all-MiniLM-L6-v2@alone", False), ("all-MiniLM-L6-v2@beside", True)):
        real.version = version  # another name for the same weights
        async with engine_with(directory, real, FakeEmbedder()) as engine:
            # The model is what is shared: texts of its own, one by one, as questions are.
            calls = [lambda: real.embed(["which restaurant did I like in the old harbour?"])] if asks else []
            seconds, said = await while_it_runs(job_of(engine), *calls)
        print(f"{version}: {count} texts in {seconds:.1f} s, {count / seconds:.0f} a second", *said, sep="; ")
    await real.close()


async def swap_of(directory: Path, count: int) -> None:
    old, new = FakeEmbedder(), FakeEmbedder(version="fake@2")
    async with engine_with(directory, new, old) as engine:
        await engine.access.ensure_tenant(TENANT)
        owner = await connect(engine.urls.owner)
        await owner.execute("UPDATE memory.tenants SET embedding_version = %s", [old.version])
        given = {"tenant": TENANT, "version": old.version, "rows": count}
        await owner.execute(ROWS, given)
        began = time.perf_counter()
        missing = await engine.database.run(TENANT, lambda conn: embeddings.count_to_make(conn, TENANT, new.version))
        print(f"what is missing: {missing} rows, counted in {time.perf_counter() - began:.2f} s")
        await owner.execute(BESIDE, given | {"version": new.version})
        await owner.execute("VACUUM ANALYZE memory.facts")
        await owner.close()
        now = datetime.now(UTC)

        async def swap() -> None:
            await engine.database.run(
                TENANT, lambda conn: embeddings.swap(conn, TENANT, new.version, new.dimensions, now)
            )

        read = {"query": "which number at the harbour?", "limit": 5}
        number = 0

        async def write() -> None:
            nonlocal number
            number += 1
            await engine.memory.store_episode(WHO, {"content": f"It rained {number}"})

        _, said = await while_it_runs(asyncio.sleep(5), lambda: engine.memory.search(WHO, read), write)
        print(f"before; reads: {said[0]}; writes of episodes: {said[1]}")
        seconds, said = await while_it_runs(swap(), lambda: engine.memory.search(WHO, read), write)
        print(f"swap of {count} rows: {seconds:.1f} s; reads: {said[0]}; writes of episodes: {said[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=100_000)
    arguments = parser.parse_args()
    for work, count in ((texts_a_second, arguments.texts), (swap_of, arguments.rows)):
        if count:
            with tempfile.TemporaryDirectory() as directory:
                asyncio.run(work(Path(directory) / "data", count))


if __name__ == "__main__":
    main()
