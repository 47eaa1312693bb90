"""How long does the decay sweep take? A million facts of a thousand tenants; a usual day, and the worst one.

    make bench-sweep ARGS="--tenants 1000 --facts 1000"

The job runs as in production: tenant by tenant under its lease, as the application role with row-level security on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector_async
from rich.console import Console

from butler_memory.bootstrap import Engine, open_engine
from butler_memory.domain.kinds import JobName
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.settings import load
from measure import machine, memory_mb

RESULTS = Path(__file__).parent / "results"
START = datetime(2026, 3, 1, tzinfo=UTC)
# Of a tenant's facts, one in so many fades within the usual day.
USUAL_SHARE = 20
FLEET_TENANTS = 10_000
LIMIT_MINUTES = 30
BATCH_TENANTS = 50

console = Console()


@dataclass
class Hands:
    now: datetime = START

    def __call__(self) -> datetime:
        return self.now


@dataclass(frozen=True)
class Sweep:
    name: str
    seconds: float
    moved: int
    memory_mb: float

    def row(self, facts: int, tenants: int) -> dict[str, Any]:
        fleet = self.seconds * FLEET_TENANTS / tenants / 60
        return {
            "sweep": self.name,
            "seconds": round(self.seconds, 1),
            "transitions": self.moved,
            "transitions_per_second": round(self.moved / self.seconds),
            "facts_per_second": round(facts / self.seconds),
            "peak_memory_mb": round(self.memory_mb),
            "minutes_for_10000_tenants": round(fleet, 1),
            "within_30_minutes": fleet <= LIMIT_MINUTES,
        }


# One in twenty has faded by tomorrow, the others in half a year; all of standard permanence, with vector and words.
_FACTS = """
INSERT INTO memory.facts (tenant_id, id, version, subject, predicate, subject_key, predicate_key, slot, content,
    content_status, embedding, embedding_version, importance, confidence, decay_rate, permanence, validity, scope,
    source_kind, source_butler, fades_at, expires_at_conf, created_at, last_confirmed_at, tags, metadata, search_vector)
SELECT t.tenant, gen_random_uuid(), 1, 'user', 'key ' || n, 'user', 'key_' || n, '', 'value ' || n || ' of the user',
    'plain', %(vector)s, 'fake', 5, 1, 0.008, 'standard', 'active', 'global', 'user_stated', 'bench',
    CASE WHEN n %% %(share)s = 0 THEN %(start)s + interval '1 hour' ELSE %(start)s + interval '180 days' END,
    %(start)s + interval '400 days', %(start)s, %(start)s, '[]', '{}',
    strip(to_tsvector('pg_catalog.english', 'key ' || n || ' value of the user'))
FROM unnest(%(tenants)s::text[]) AS t(tenant) CROSS JOIN generate_series(1, %(facts)s) AS n
"""


async def fill(engine: Engine, tenants: Sequence[str], facts: int) -> None:
    for tenant in tenants:
        await engine.access.ensure_tenant(tenant)
    async with await psycopg.AsyncConnection.connect(engine.urls.owner, autocommit=True) as conn:
        await register_vector_async(conn)
        vector = HalfVector(np.full(384, 0.05, np.float32))
        for first in range(0, len(tenants), BATCH_TENANTS):
            some = list(tenants[first : first + BATCH_TENANTS])
            await conn.execute(
                _FACTS, {"vector": vector, "start": START, "tenants": some, "facts": facts, "share": USUAL_SHARE}
            )
        # The rows were made under the thresholds that hold: the sweep need not look at each.
        await engine.workers.run_due()
        await conn.execute("UPDATE memory.shards SET memo = '{\"thresholds\": [0.2, 0.05]}' WHERE kind = 'decay_sweep'")
        await conn.execute("VACUUM (ANALYZE) memory.facts")


async def swept(engine: Engine, name: str) -> Sweep:
    began = time.perf_counter()
    counts: Counter[str] = Counter()
    peak = memory_mb(os.getpid())["now"]
    more = True
    while more:
        ran = await engine.workers.run_now(JobName.DECAY_SWEEP)
        peak = max(peak, memory_mb(os.getpid())["now"])
        more = any(each.run is not None and not each.run.caught_up for each in ran)
        for each in ran:
            assert each.run is not None
            counts.update(each.run.counts)
    return Sweep(name, time.perf_counter() - began, counts.total(), peak)


async def measure(tenants: int, facts: int) -> list[dict[str, Any]]:
    hands = Hands()
    names = [f"t{n:06d}" for n in range(tenants)]
    with tempfile.TemporaryDirectory(prefix="butler-memory-bench-") as place:
        settings = load(environ={"BUTLER_MEMORY_DATA_DIR": place})
        async with open_engine(settings, embedder=FakeEmbedder(), clock=hands) as engine:
            began = time.perf_counter()
            await fill(engine, names, facts)
            console.print(
                f"{tenants * facts:,} facts of {tenants:,} tenants made in {time.perf_counter() - began:.0f} s"
            )
            sweeps = []
            hands.now = START + timedelta(days=1)
            sweeps.append(await swept(engine, f"a usual day: 1 in {USUAL_SHARE} fades"))
            sweeps.append(await swept(engine, "again: nothing has changed"))
            hands.now = START + timedelta(days=181)
            sweeps.append(await swept(engine, "the worst day: all the others fade"))
            hands.now = START + timedelta(days=401)
            sweeps.append(await swept(engine, "the end: all expire"))
            sweeps.append(await swept(engine, "again: nothing has changed"))
            _check(sweeps, tenants * facts)
    return [sweep.row(tenants * facts, tenants) for sweep in sweeps]


def _check(sweeps: Sequence[Sweep], facts: int) -> None:
    """Every fact faded once and expired once, and a second run changed nothing."""
    assert [sweep.moved for sweep in sweeps] == [facts // USUAL_SHARE, 0, facts - facts // USUAL_SHARE, facts, 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, default=1000)
    parser.add_argument("--facts", type=int, default=1000, help="of each tenant; a multiple of 20")
    given = parser.parse_args()
    rows = asyncio.run(measure(given.tenants, given.facts))
    RESULTS.mkdir(exist_ok=True)
    report = {"machine": machine(), "tenants": given.tenants, "facts_each": given.facts, "sweeps": rows}
    (RESULTS / "sweep.json").write_text(json.dumps(report, indent=2))
    for row in rows:
        console.print_json(data=row)


if __name__ == "__main__":
    main()
