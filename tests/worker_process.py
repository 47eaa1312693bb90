"""A worker as a process of its own, for tests that kill it or make it stand still: short leases, small batches."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from butler_memory.bootstrap import open_engine, timetable
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.settings import load
from butler_memory.upkeep import cleanup, decay_sweep, reembed
from butler_memory.workers.workers import Workers
from points import once_at

LEASE_SECONDS = 1.0
BATCH = 3


async def work() -> None:
    decay_sweep.BATCH = cleanup.BATCH = reembed.BATCH = BATCH  # type: ignore[attr-defined]
    settings = load()
    embedder = FakeEmbedder(version=os.environ.get("FAKE_VERSION", FakeEmbedder.version))
    async with _standing_still(), open_engine(settings, embedder=embedder) as engine:
        await Workers(
            engine.database,
            engine.jobs,
            timetable(settings),
            engine.clock,
            lease_seconds=LEASE_SECONDS,
            poll_seconds=0.05,
        ).run_forever()


@asynccontextmanager
async def _standing_still() -> AsyncIterator[None]:
    """The whole process, in the middle of its first reading, for as long as the file is there."""
    if "STAND_STILL_AT" not in os.environ:
        yield
        return
    file = Path(os.environ["STAND_STILL_FILE"])

    async def stand_still() -> None:
        file.touch()
        while file.exists():
            time.sleep(0.01)

    with once_at(os.environ["STAND_STILL_AT"], stand_still):
        yield


@contextmanager
def worker(environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The process; it does not outlive the test, however it stands."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BUTLER_MEMORY_")}
    process = subprocess.Popen([sys.executable, __file__], env={**kept, **environ})
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(10)


if __name__ == "__main__":
    asyncio.run(work())
