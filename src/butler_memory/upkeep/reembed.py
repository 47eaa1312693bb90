"""Brings a tenant's vectors to the engine's model, beside the old ones, and swaps them in one transaction (L5).

What is made is kept beside the rows, so that who goes on after a crash makes nothing twice. When nothing is missing,
one transaction swaps the tenant. What others stored with the old model while it was under way has a vector that
nobody asks any more: it is made anew right after the swap, and once more when no process can still believe in the old.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from uuid import UUID

from butler_memory.domain.kinds import JobName, MemoryType
from butler_memory.domain.records import AnyMemory
from butler_memory.embedding.models import Models
from butler_memory.errors import Unavailable
from butler_memory.postgres import embeddings, leases
from butler_memory.postgres.database import Conn, Database
from butler_memory.postgres.leases import Lease, fenced
from butler_memory.upkeep.job import Done

# Big enough to fill the model's batches, small enough that a crash repeats little.
BATCH = 64
# Then other tenants have their turn.
BATCHES_PER_RUN = 32
# Each process looks every minute which tenants have moved; a round of that may take a little longer.
LOOK_AGAIN_AFTER = timedelta(minutes=5)

OLDER_MODEL = "older_model"

Report = Callable[[int], None]


def _unheard(_: int) -> None:
    """Nobody wants to know."""


async def notice(database: Database, models: Models, now: datetime) -> None:
    """One look at all tenants: which answer from another model's vectors; their job is due at once."""

    async def work(conn: Conn) -> list[embeddings.Other]:
        found = await embeddings.others(conn, models.current.version)
        # An older process must not bring back what a newer one has left behind.
        behind = [other.tenant for other in found if not other.retired]
        if behind:
            await leases.hurry(conn, JobName.REEMBED, behind, now)
        return found

    models.learn_all({other.tenant: other.version for other in await database.run_as_worker(work)})


async def reembed(
    database: Database, models: Models, lease: Lease, now: datetime, *, back: bool = False, report: Report = _unheard
) -> Done:
    """`back`: a person wants it, also to a model that the tenant had left. `report` hears how many were made."""
    run = _Run(database, models, lease, now)
    is_swapped = await fenced(database, lease, lambda conn: run.begin(conn, back=back))
    made, swaps = 0, 0
    for _ in range(BATCHES_PER_RUN):
        kind, batch = await run.next_batch()
        if batch:
            await run.make(kind, batch, on_rows=is_swapped)
            made += len(batch)
            report(len(batch))
        elif is_swapped:
            return Done({"embedded": made, "swapped": swaps})
        else:
            await run.swap()
            is_swapped, swaps = True, 1
    return Done({"embedded": made, "swapped": swaps}, more=True)


@dataclass
class _Run:
    """One turn of one tenant, and how far it has looked through each type of memory."""

    database: Database
    models: Models
    lease: Lease
    now: datetime
    after: dict[MemoryType, UUID] = field(default_factory=lambda: dict.fromkeys(MemoryType, UUID(int=0)))

    async def begin(self, conn: Conn, *, back: bool) -> bool:
        """Does the tenant answer from the engine's version already?"""
        tenant, model = self.lease.tenant, self.models.current
        known = await embeddings.known(conn, tenant)
        if known.current is None:
            await embeddings.use(conn, tenant, model.version, model.dimensions, self.now)
        self.models.learn(tenant, known.current or model.version)
        if known.current in (None, model.version):
            await self._look_again(conn, known.since)
            return True
        if model.version in known.retired and not back:
            raise Unavailable("This tenant has left this process's embedding model behind.", reason=OLDER_MODEL)
        await embeddings.begin(conn, tenant, model.version, model.dimensions, self.now)
        return False

    async def _look_again(self, conn: Conn, swapped: datetime | None) -> None:
        """For what is being stored with the old model still, by a process that has not noticed the swap."""
        if swapped and self.now < swapped + LOOK_AGAIN_AFTER:
            await leases.again_at(conn, self.lease, swapped + LOOK_AGAIN_AFTER)

    async def next_batch(self) -> tuple[MemoryType, Sequence[AnyMemory]]:
        """Memories without a vector of the engine's version; none when there are no more."""
        tenant, version = self.lease.tenant, self.models.current.version
        for kind in MemoryType:
            look = partial(
                embeddings.to_make, tenant=tenant, kind=kind, version=version, after=self.after[kind], limit=BATCH
            )
            found = await self.database.run(tenant, look)
            if found:
                self.after[kind] = found[-1].id
                return kind, found
        return MemoryType.FACT, []

    async def make(self, kind: MemoryType, batch: Sequence[AnyMemory], *, on_rows: bool) -> None:
        tenant, model = self.lease.tenant, self.models.current
        ids = [memory.id for memory in batch]
        vectors = await model.embed([memory.embedded for memory in batch])

        async def store(conn: Conn) -> None:
            if on_rows:
                await embeddings.put(conn, tenant, kind, ids, vectors, model.version, over=True)
            else:
                await embeddings.keep(conn, tenant, kind, ids, vectors, model.version)

        await fenced(self.database, self.lease, store)

    async def swap(self) -> None:
        tenant, model = self.lease.tenant, self.models.current

        async def work(conn: Conn) -> None:
            await embeddings.swap(conn, tenant, model.version, model.dimensions, self.now)
            await self._look_again(conn, self.now)

        await fenced(self.database, self.lease, work)
        self.models.learn(tenant, model.version)
        self.after = dict.fromkeys(MemoryType, UUID(int=0))
