"""A plain hybrid search beside ours: one table, an HNSW and a GIN index, two queries, fused in Python.

It has what makes it fast: no row-level security, the owner's role, a b-tree on the tenant. Three ways to get the
vector list:

    HNSW             top 50 of the index, then the tenant's among them: pgvector's default
    HNSW iterative   the index is read on until 50 of the tenant are found (hnsw.iterative_scan = relaxed_order)
    exact            the tenant's rows by the b-tree, sorted by distance
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from pgvector import HalfVector

from butler_memory.embedding.ports import Vector
from load import Advance, Owner, connect, tenant_name

DEPTH = 50
TOP = 20
K = 60
BUILD_MEMORY = "2GB"
VARIANTS = ("HNSW", "HNSW iterative", "exact")

_TABLE = """
DROP TABLE IF EXISTS bench.facts;
CREATE UNLOGGED TABLE bench.facts AS
SELECT tenant_id, id, content, embedding::halfvec(384) AS embedding, search_vector
FROM memory.facts WHERE tenant_id < '{beyond}'
"""
# The planner would rather sort 1,000 rows than use the vector index, once there are many tenants.
_SETTINGS = {
    "HNSW": f"SET hnsw.ef_search = {DEPTH}; SET enable_sort = off",
    "HNSW iterative": f"SET hnsw.ef_search = {DEPTH}; SET hnsw.iterative_scan = relaxed_order; SET enable_sort = off",
    "exact": "",
}
_NEAREST = """
SELECT id, content FROM bench.facts WHERE tenant_id = %(tenant)s
ORDER BY (embedding <=> %(vector)s::halfvec(384)) {no_index} LIMIT {limit}
"""
_WORDS = f"""
SELECT id, content FROM bench.facts,
       (SELECT replace(plainto_tsquery('english', %(text)s)::text, ' & ', ' | ')::tsquery AS any_of) asked
WHERE tenant_id = %(tenant)s AND search_vector @@ any_of
ORDER BY ts_rank(search_vector, any_of) DESC LIMIT {DEPTH}
"""
_BUILT = "SELECT tuples_done FROM pg_stat_progress_create_index WHERE index_relid = to_regclass('bench.facts_hnsw')"


@dataclass
class Baseline:
    """A connection for each way to the vector list, and one for words."""

    tenants: int
    rows: int
    vector_conns: dict[str, Owner]
    words_conn: Owner

    async def search(self, variant: str, tenant: int, text: str, vector: Vector) -> list[UUID]:
        """The fused top 20."""
        near = await self.nearest(variant, tenant, vector)
        found = await self.words_conn.execute(_WORDS, {"tenant": tenant_name(tenant), "text": text})
        return fused([near, [row[0] for row in await found.fetchall()]])[:TOP]

    async def nearest(self, variant: str, tenant: int, vector: Vector, limit: int = DEPTH) -> list[UUID]:
        statement = _NEAREST.format(no_index="+ 0" if variant == "exact" else "", limit=limit)
        found = await self.vector_conns[variant].execute(
            statement, {"tenant": tenant_name(tenant), "vector": HalfVector(vector)}
        )
        return [row[0] for row in await found.fetchall()]

    async def recall(self, variant: str, questions: Sequence[tuple[int, Vector]]) -> float:
        """Share of a tenant's exact top 20 by cosine among the 50 that this way finds."""
        shares = []
        for tenant, vector in questions:
            exact = set(await self.nearest("exact", tenant, vector, TOP))
            shares.append(len(exact & set(await self.nearest(variant, tenant, vector))) / len(exact))
        return sum(shares) / len(shares)

    async def close(self) -> None:
        for conn in (*self.vector_conns.values(), self.words_conn):
            await conn.close()


def fused(lists: Sequence[Sequence[UUID]]) -> list[UUID]:
    """Reciprocal ranks, the usual way."""
    scores: dict[UUID, float] = {}
    for ranked in lists:
        for rank, found in enumerate(ranked, 1):
            scores[found] = scores.get(found, 0.0) + 1 / (K + rank)
    return sorted(scores, key=lambda found: -scores[found])


async def build(owner_url: str, tenants: int, advance: Advance) -> Baseline:
    """The first tenants' facts again, in a table with both indexes."""
    conn = await connect(owner_url)
    await conn.execute(_TABLE.format(beyond=tenant_name(tenants)))
    await conn.execute(f"SET maintenance_work_mem = '{BUILD_MEMORY}'; SET max_parallel_maintenance_workers = 2")
    building = asyncio.create_task(_index(conn))
    await _watched(owner_url, building, advance)
    found = await conn.execute("SELECT count(*) FROM bench.facts")
    rows = (await found.fetchone() or (0,))[0]
    by_variant = {variant: await connect(owner_url) for variant in VARIANTS}
    for variant, settings in _SETTINGS.items():
        # pgvector's settings are known once its library is loaded.
        await by_variant[variant].execute(f"SELECT '[1]'::halfvec; {settings}")
    return Baseline(tenants, rows, by_variant, conn)


async def _index(conn: Owner) -> None:
    await conn.execute("CREATE INDEX facts_hnsw ON bench.facts USING hnsw (embedding halfvec_cosine_ops)")
    await conn.execute("CREATE INDEX facts_gin ON bench.facts USING gin (search_vector)")
    await conn.execute("CREATE INDEX facts_tenant ON bench.facts (tenant_id)")
    await conn.execute("VACUUM (ANALYZE) bench.facts")


async def _watched(owner_url: str, building: asyncio.Task[None], advance: Advance) -> None:
    """Tells how many rows the vector index holds, until it is done."""
    told = 0
    watcher = await connect(owner_url)
    while not building.done():
        await asyncio.wait([building], timeout=1)
        found = await watcher.execute(_BUILT)
        done = (await found.fetchone() or (0,))[0] or 0
        if done > told:
            advance(done - told)
            told = done
    await watcher.close()
    await building
