"""A worker as a process of its own, for tests that kill it or make it stand still: short leases, small batches."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from butler_memory.bootstrap import open_engine, timetable
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.settings import load
from butler_memory.upkeep import cleanup, decay_sweep
from butler_memory.workers.workers import Workers

LEASE_SECONDS = 1.0
BATCH = 3


async def work() -> None:
    decay_sweep.BATCH = cleanup.BATCH = BATCH  # type: ignore[attr-defined]
    settings = load()
    embedder = FakeEmbedder(version=os.environ.get("FAKE_VERSION", FakeEmbedder.version))
    async with open_engine(settings, embedder=embedder) as engine:
        await Workers(
            engine.database,
            engine.jobs,
            timetable(settings),
            engine.clock,
            lease_seconds=LEASE_SECONDS,
            poll_seconds=0.05,
        ).run_forever()


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
