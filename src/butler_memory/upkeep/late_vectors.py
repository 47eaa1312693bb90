"""Makes up for vectors that are missing: the process died, or there was no model, when the memory was stored (S12)."""

from __future__ import annotations

from butler_memory.domain.kinds import MemoryType
from butler_memory.embedding.ports import Embedder
from butler_memory.postgres import access, memories
from butler_memory.postgres.database import Conn, Database

# Big enough to fill the model's batches, small enough that a crash repeats little.
BATCH = 64


async def embed_missing(database: Database, embedder: Embedder) -> int:
    """All tenants, until none is left; returns how many vectors were made."""
    made = 0
    for tenant in await database.run_as_worker(access.tenants):
        for kind in MemoryType:
            while batch := await _one_batch(database, embedder, tenant, kind):
                made += batch
    return made


async def _one_batch(database: Database, embedder: Embedder, tenant: str, kind: MemoryType) -> int:
    waiting = await database.run(tenant, lambda conn: memories.without_vector(conn, tenant, kind, BATCH))
    if not waiting:
        return 0
    vectors = await embedder.embed([memory.line for memory in waiting])

    async def store(conn: Conn) -> None:
        for memory, vector in zip(waiting, vectors, strict=True):
            await memories.set_vector(conn, tenant, kind, memory.id, vector, embedder.version)

    await database.run(tenant, store)
    return len(waiting)
