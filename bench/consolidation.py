"""A month of episodes without a language model: do the laws hold, how soon is each read, and how many a second?

    make bench-consolidation ARGS="--episodes 2000 --days 30"

First the month is lived through, every job at its time, with a backend that is away for two days and some episodes that
nobody can read; then the laws are checked, and the bench fails where one does not hold. Then the same episodes are read
as fast as it goes: by the patterns alone, and by the job with all it writes and the real embedding model.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row
from rich.console import Console

from butler_memory.bootstrap import Engine, open_engine
from butler_memory.consolidation.readers import EpisodeReader
from butler_memory.domain.extraction import Source, extract
from butler_memory.domain.kinds import JobName
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.settings import load
from measure import machine, memory_mb, percentile
from month import BEGINS, BUTLERS, TENANT, Hands, Month, broken, butlers, live, store, waits

RESULTS = Path(__file__).parent / "results"
STEP = timedelta(minutes=30)
BACKLOG_HOURS = 6  # SPEC 11, p95

Json = dict[str, Any]
console = Console()


@asynccontextmanager
async def opened(hands: Hands, reader: EpisodeReader | None = None, *, real: bool = False) -> AsyncIterator[Engine]:
    with tempfile.TemporaryDirectory(prefix="butler-memory-bench-") as place:
        settings = load(environ={"BUTLER_MEMORY_DATA_DIR": place})
        embedder = None if real else FakeEmbedder()
        async with open_engine(settings, embedder=embedder, clock=hands, episode_reader=reader) as engine:
            yield engine


async def lived(month: Month) -> Json:
    hands = Hands()
    began = time.perf_counter()
    async with opened(hands, month.reader(hands)) as engine:
        stored = await live(engine, hands, month, STEP)

        async def rows(query: str) -> list[Json]:
            async with await psycopg.AsyncConnection.connect(engine.urls.owner, row_factory=dict_row) as conn:
                return await (await conn.execute(query)).fetchall()

        wrong = await broken(engine, rows, stored)
        if wrong:
            raise SystemExit("\n".join(["These laws do not hold:", *wrong]))
        hours = await waits(rows, month)
        counts = {
            table: (await rows(f"SELECT count(*) AS n FROM memory.{table}"))[0]["n"]
            for table in ("episodes", "episode_tombstones", "facts", "rules", "memory_events", "consolidation_runs")
        }
    return {
        "episodes": len(stored), "days": month.days, "rows": counts,
        "hours_until_read": {"p50": round(percentile(hours, 0.5), 2), "p95": round(percentile(hours, 0.95), 2)},
        "within_6_hours": percentile(hours, 0.95) <= BACKLOG_HOURS, "took_seconds": round(time.perf_counter() - began),
    }  # fmt: skip


def by_patterns(month: Month) -> Json:
    texts = [(moment, text) for moment, _, text in month.told()]
    began = time.perf_counter()
    for moment, text in texts:
        extract([Source("E1", text, moment)])
    seconds = time.perf_counter() - began
    return {
        "episodes_per_second": round(len(texts) / seconds),
        "milliseconds_each": round(seconds / len(texts) * 1e3, 2),
    }


async def by_the_job(month: Month) -> Json:
    """Stored first, embedded too; only the reading is timed."""
    hands = Hands()
    async with opened(hands, real=True) as engine:
        await store(engine, await butlers(engine), list(month.told()))
        hands.now = BEGINS + timedelta(days=month.days + 1)
        before, began = memory_mb(os.getpid()), time.perf_counter()
        await _read_all(engine)
        seconds = time.perf_counter() - began
        after = memory_mb(os.getpid())
        left = (await engine.memory.stats(await _anybody(engine), {}))["backlog"]["pending"]
        assert left == 0, f"{left} episodes are still waiting"
    return {
        "episodes_per_second": round(month.episodes / seconds), "butlers": len(BUTLERS),
        "memory_mb": {"before": before["now"], "highest": after["highest"], "after": after["now"]},
    }  # fmt: skip


async def _read_all(engine: Engine) -> None:
    more = True
    while more:
        ran = await engine.workers.run_now(JobName.CONSOLIDATE, TENANT)
        more = any(each.run is not None and each.run.counts for each in ran)


async def _anybody(engine: Engine) -> Any:
    secret, _ = await engine.access.create_token(TENANT, "desk", "admin")  # type: ignore[arg-type]
    return await engine.access.authenticate(secret)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=2000)
    parser.add_argument("--days", type=int, default=30)
    given = parser.parse_args()
    month = Month(given.episodes, given.days)
    parts: dict[str, Callable[[], Json]] = {
        "month": lambda: asyncio.run(lived(month)),
        "patterns": lambda: by_patterns(month),
        "job": lambda: asyncio.run(by_the_job(month)),
    }
    report: Json = {"machine": machine()}
    for name, figures in parts.items():
        report[name] = figures()
        console.print_json(data={name: report[name]})
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "consolidation.json").write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
