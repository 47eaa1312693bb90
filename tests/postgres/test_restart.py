"""PostgreSQL restarts under a running engine: reads, writes and jobs go on by themselves (J1, DESIGN 5)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path

from butler_memory import bootstrap
from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import JobName, Role
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.errors import ButlerMemoryError
from butler_memory.postgres import leases
from butler_memory.postgres.keeper import Cluster
from butler_memory.postgres.server import embedded_server
from butler_memory.settings import load
from butler_memory.workers.workers import Workers
from caller import Caller
from conftest import Hands

PATIENCE_SECONDS = 30


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            if await holds():
                return
        except ButlerMemoryError:
            await asyncio.sleep(0.1)  # the server is away
        assert time.monotonic() < end, f"never: {what}"
        await asyncio.sleep(0.05)


async def swept_since(engine: Engine, moment: datetime) -> bool:
    shards = await engine.database.run_as_worker(lambda conn: leases.shards(conn, "home"))
    return any(s.job is JobName.DECAY_SWEEP and s.last_ok_at is not None and s.last_ok_at >= moment for s in shards)


async def test_the_engine_goes_on_when_postgresql_has_been_restarted(tmp_path: Path, hands: Hands) -> None:
    settings = load(environ={"BUTLER_MEMORY_DATA_DIR": str(tmp_path / "data")})
    async with (
        embedded_server(tmp_path / "data") as server,
        bootstrap.open_engine(settings, embedder=FakeEmbedder(), clock=hands) as engine,
    ):
        secret, _ = await engine.access.create_token("home", "health", Role.BUTLER)
        ask = Caller(engine.memory, await engine.access.authenticate(secret))
        workers = Workers(engine.database, engine.jobs, bootstrap.timetable(settings), hands, poll_seconds=0.05)
        working = asyncio.create_task(workers.run_forever())
        try:
            fact = await ask.fact("Acme", "customer")
            await _restart(server.cluster)
            await until(lambda: _is_there(ask, fact["id"]), "what was stored can be read")
            await until(lambda: _stored(ask), "something can be stored")
            hands.pass_(days=210)
            await until(lambda: swept_since(engine, hands.now), "the sweep ran after the restart")
            assert (await ask.row(fact))["validity"] == "fading"
            assert not working.done()
        finally:
            working.cancel()
            await asyncio.wait([working])


async def _restart(cluster: Cluster) -> None:
    with cluster.spawn("pg_ctl", "restart", "-m", "fast", "-w") as pg_ctl:
        assert await asyncio.to_thread(pg_ctl.wait, 60) == 0


async def _is_there(ask: Caller, memory_id: str) -> bool:
    return bool((await ask.row({"type": "fact", "id": memory_id}))["content"])


async def _stored(ask: Caller) -> bool:
    return bool((await ask.fact("Globex", "supplier"))["id"])
