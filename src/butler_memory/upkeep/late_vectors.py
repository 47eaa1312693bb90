"""Makes up for vectors that are missing: the process died, or there was no model, when the memory was stored (S12)."""

from __future__ import annotations

import logging

from butler_memory.domain.kinds import MemoryType
from butler_memory.embedding.models import Models
from butler_memory.errors import Unavailable
from butler_memory.postgres import access, embeddings
from butler_memory.postgres.database import Database

# Big enough to fill the model's batches, small enough that a crash repeats little.
BATCH = 64
# What is wrong with one tenant's batch must not keep the others waiting; these are wrong with every batch.
HOPELESS = frozenset({"no_model", "no_connection", "connection_lost"})

log = logging.getLogger(__name__)


async def embed_missing(database: Database, models: Models) -> int:
    """All tenants, until none is left but those that fail; returns how many vectors were made."""
    made = 0
    for tenant in await database.run_as_worker(access.tenants):
        for kind in MemoryType:
            try:
                while batch := await _one_batch(database, models, tenant, kind):
                    made += batch
            # Foreign ones too: the next round tries again, and what is behind this batch must not wait for it.
            except Exception as error:
                if isinstance(error, Unavailable) and error.reason in HOPELESS:
                    raise
                log.warning("some %ss are still without a vector: %s", kind, type(error).__name__)  # no content (G7)
    return made


async def _one_batch(database: Database, models: Models, tenant: str, kind: MemoryType) -> int:
    waiting = await database.run(tenant, lambda conn: embeddings.without_vector(conn, tenant, kind, BATCH))
    if not waiting:
        return 0
    model = models.for_writing(tenant)
    ids = [memory.id for memory in waiting]
    vectors = await model.embed([memory.embedded for memory in waiting])
    await database.run(tenant, lambda conn: embeddings.put(conn, tenant, kind, ids, vectors, model.version))
    return len(waiting)
