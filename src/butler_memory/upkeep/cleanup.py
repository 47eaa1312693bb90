"""Once a day: episodes whose time is over leave a tombstone, old records go (E3, E4, E8, C7)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from functools import partial

from butler_memory.domain.text import digest
from butler_memory.postgres import cleanup, stats
from butler_memory.postgres.changes import Author
from butler_memory.postgres.cleanup import Doomed
from butler_memory.postgres.database import Conn
from butler_memory.postgres.leases import Lease, fenced
from butler_memory.upkeep.job import Done, author_of_job
from butler_memory.writing.desk import Desk

# A batch is read once, for the digests of what it said: at most 6 MB.
BATCH = 200
RECORDS_A_BATCH = 1000
BATCHES_A_RUN = 50

KEPT = {
    "idempotency_keys": timedelta(days=30),
    "served_contexts": timedelta(days=30),
    "job_runs": timedelta(days=90),
    "reviews": timedelta(days=90),
    "consolidation_runs": timedelta(days=90),
}

log = logging.getLogger(__name__)

Choose = Callable[[Conn], Awaitable[list[Doomed]]]


async def clean_up(desk: Desk, lease: Lease, now: datetime) -> Done:
    author = author_of_job(lease, now)
    tenant, capacity = lease.tenant, desk.settings.episode_capacity
    counts: Counter[str] = Counter()
    more = False
    for name, choose in (
        ("episodes_expired", lambda conn: cleanup.over(conn, tenant, now, BATCH)),
        ("episodes_over_capacity", lambda conn: cleanup.too_many(conn, tenant, capacity, BATCH)),
    ):
        counts[name], left = await _bury(desk, lease, author, choose)
        more = more or left
    for table, kept in KEPT.items():
        counts[table], left = await _forget(desk, lease, table, now - kept)
        more = more or left
    counts["still_over_capacity"] = await desk.database.run(
        tenant, lambda conn: cleanup.excess(conn, tenant, capacity)
    )  # fmt: skip
    if not more:
        counts["kept_past_their_time"] = await _kept_past_their_time(desk, tenant, now)
    return Done(counts, more)


async def _kept_past_their_time(desk: Desk, tenant: str, now: datetime) -> int:
    """What could be deleted is gone: what is left, nobody has been able to read, and that is an alarm (E3)."""
    kept = await desk.database.run(tenant, lambda conn: stats.kept_past_their_time(conn, tenant, now))
    if kept:
        log.error("%d episodes are kept past their time: consolidation has not been able to read them", kept)
    return kept


async def _bury(desk: Desk, lease: Lease, author: Author, choose: Choose) -> tuple[int, bool]:
    secret = (await desk.tenant(lease.tenant)).digest_key
    buried = 0
    for _ in range(BATCHES_A_RUN):
        batch = await fenced(desk.database, lease, partial(_bury_some, author, secret, choose))
        buried += batch
        if batch < BATCH:
            return buried, False
    return buried, True


async def _bury_some(author: Author, secret: bytes, choose: Choose, conn: Conn) -> int:
    doomed = await choose(conn)
    if doomed:
        await cleanup.bury(conn, author, doomed, [digest(secret, "episode", each.content or "") for each in doomed])
    return len(doomed)


async def _forget(desk: Desk, lease: Lease, table: str, before: datetime) -> tuple[int, bool]:
    forgotten = 0
    for _ in range(BATCHES_A_RUN):
        batch = await fenced(
            desk.database,
            lease,
            lambda conn: cleanup.forget_records(conn, lease.tenant, table, before, RECORDS_A_BATCH),
        )
        forgotten += batch
        if batch < RECORDS_A_BATCH:
            return forgotten, False
    return forgotten, True
