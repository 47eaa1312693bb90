"""Once a day: what has not been confirmed for long fades and expires, and rules rise by age (J2, R3, R4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from butler_memory.domain.clock import days_between
from butler_memory.domain.decay import crosses_at
from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.maturity import Record, after_time
from butler_memory.postgres import sweep
from butler_memory.postgres.changes import Author, Change, apply
from butler_memory.postgres.database import Conn
from butler_memory.postgres.leases import Lease, fenced
from butler_memory.postgres.sweep import expire, fade
from butler_memory.settings import FactSettings
from butler_memory.upkeep.job import Done, author_of_job
from butler_memory.writing.desk import Desk
from butler_memory.writing.marks import to_level

# A batch is one short transaction; after so many of one kind other tenants get their turn.
BATCH = 1000
BATCHES_A_RUN = 50
RULES_A_BATCH = 200
DECAYING = (MemoryType.FACT, MemoryType.RULE)

Step = Callable[[Conn, Author, MemoryType, int], Awaitable[int]]
# Who is past both limits expires at once: a step that nobody could see is left out.
STEPS: Sequence[tuple[str, Step, MemoryType]] = tuple(
    (f"{kind}s_{name}", step, kind) for name, step in (("expired", expire), ("faded", fade)) for kind in DECAYING
)


async def decay_sweep(desk: Desk, lease: Lease, now: datetime) -> Done:
    author = author_of_job(lease, now)
    counts: Counter[str] = Counter()
    limits = desk.settings.facts
    thresholds = [limits.retrieval_confidence_threshold, limits.expiry_confidence_threshold]
    if lease.memo.get("thresholds") != thresholds:
        counts["rescaled"] = sum([await _rescale(desk, lease, author, kind) for kind in DECAYING])
    left = STEPS
    for _ in range(BATCHES_A_RUN):
        moved = await fenced(desk.database, lease, partial(_one_batch_each, author, left))
        counts.update(moved)
        left = [step for step in left if moved[step[0]] == BATCH]
        if not left:
            break
    counts += await _judge(desk, lease, author)
    return Done(counts, more=bool(left), memo={"thresholds": thresholds})


async def _one_batch_each(author: Author, steps: Sequence[tuple[str, Step, MemoryType]], conn: Conn) -> dict[str, int]:
    """How many moved by each step; most tenants are done with one transaction."""
    return {name: await step(conn, author, kind, BATCH) for name, step, kind in steps}


async def _rescale(desk: Desk, lease: Lease, author: Author, kind: MemoryType) -> int:
    """The thresholds are not those that the rows' times were made with, or nobody knows: each row is looked at once."""
    moved, after = 0, None
    while True:
        batch, after = await fenced(
            desk.database, lease, partial(_rescale_some, desk.settings.facts, author, kind, after)
        )
        moved += batch
        if after is None:
            return moved


async def _rescale_some(
    limits: FactSettings, author: Author, kind: MemoryType, after: UUID | None, conn: Conn
) -> tuple[int, UUID | None]:
    rows = await sweep.fading_times(conn, author.tenant, kind, after, BATCH)
    moved = []
    for row in rows:
        decay = (row["confidence"], row["decay_rate"], row["last_confirmed_at"])
        fades = crosses_at(*decay, limits.retrieval_confidence_threshold)
        expires = crosses_at(*decay, limits.expiry_confidence_threshold)
        if (fades, expires) != (row["fades_at"], row["expires_at_conf"]):
            moved.append((row["id"], fades, expires))
    if moved:
        await sweep.set_fading_times(conn, author, kind, moved)
    return len(moved), rows[-1]["id"] if len(rows) == BATCH else None


async def _judge(desk: Desk, lease: Lease, author: Author) -> Counter[str]:
    counts: Counter[str] = Counter()
    after: UUID | None = None
    while True:
        batch, after = await fenced(desk.database, lease, partial(_judge_some, desk, author, after))
        counts += batch
        if after is None:
            return counts


async def _judge_some(desk: Desk, author: Author, after: UUID | None, conn: Conn) -> tuple[Counter[str], UUID | None]:
    """What happened to one batch of rules, and where the next one begins."""
    rules = await sweep.judged(conn, author.tenant, after, RULES_A_BATCH)
    changes: list[Change] = []
    for rule in rules:
        record = Record(rule.success_count, rule.harmful_count, days_between(rule.created_at, author.now))
        level = after_time(rule.maturity, record, desk.settings.rules, pinned=rule.pinned)
        changes += await to_level(conn, desk, rule, level, record, rule.version + 1)
    await apply(conn, author, changes)
    counts = Counter(f"rules_{change.event}" for change in changes)
    return counts, rules[-1].id if len(rules) == RULES_A_BATCH else None
