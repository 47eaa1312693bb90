"""The consolidation of one shard: batch after batch, in order, each all or nothing (K1 to K8, E2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from butler_memory.consolidation.apply import Prepared, author_for, prepare, rehearsed, shape_of, write
from butler_memory.consolidation.batch import Batch, UnknownHandle, next_batch
from butler_memory.consolidation.plan import plan
from butler_memory.consolidation.readers import EpisodeReader
from butler_memory.domain.clock import new_id
from butler_memory.domain.kinds import ConsolidationStatus, EventType, JobName, MemoryType
from butler_memory.domain.lifecycle import kept_for_a_person
from butler_memory.domain.outcomes import Applied, TooMuch, after_bad_output
from butler_memory.domain.proposal import Proposal
from butler_memory.domain.records import Episode
from butler_memory.domain.schedule import Timetable
from butler_memory.errors import ButlerMemoryError, InvalidInput, Unavailable
from butler_memory.llm.ports import BackendDown, Bad, BadOutput, Down, Reply, Usage
from butler_memory.postgres import consolidation as table
from butler_memory.postgres.changes import Change, apply, plain_json
from butler_memory.postgres.consolidation import Review, RunRecord
from butler_memory.postgres.database import Conn
from butler_memory.postgres.leases import Lease, fenced
from butler_memory.settings import ConsolidationSettings
from butler_memory.upkeep.job import Done
from butler_memory.writing.desk import Desk

# After so many batches other shards get their turn.
BATCHES_A_RUN = 20
# While a model reads for one butler, which takes it half a minute, the others need not wait; patterns need a core.
SHARDS_AT_ONCE = 4
NEEDS_REVIEW = "needs_review"
NOT_WRITTEN = "not_written"


@dataclass(frozen=True)
class Reading:
    """One batch as it was read: what it cost, and what it came to."""

    batch: Batch
    reply: Reply
    applied: Applied | None
    reason: str = ""


@dataclass(frozen=True)
class Consolidation:
    desk: Desk
    reader: EpisodeReader
    timetable: Timetable

    @property
    def settings(self) -> ConsolidationSettings:
        return self.desk.settings.consolidation

    @property
    def shards_at_once(self) -> int:
        return 1 if self.settings.backend == "offline" else SHARDS_AT_ONCE

    async def run(self, lease: Lease, now: datetime) -> Done:
        """The job: until nothing waits, or what waits must wait."""
        later = None if lease.named else await self._not_before(lease, now)
        if later:
            return Done(more=True, again_at=later)
        counts: Counter[str] = Counter()
        for _ in range(BATCHES_A_RUN):
            batch = await fenced(
                self.desk.database,
                lease,
                lambda conn: next_batch(conn, lease.tenant, lease.butler, self.settings.batch_size, now),
            )
            if batch is None:
                return Done(counts, again_at=await self._next_retry(lease))
            counts.update(await self._one(lease, batch, now))
        return Done(counts, more=True)

    async def rehearse(self, tenant: str, butler: str, now: datetime) -> Reading | None:
        """What the next batch would come to. The model is asked; nothing is written."""
        database, size = self.desk.database, self.settings.batch_size
        batch = await database.run(tenant, lambda conn: next_batch(conn, tenant, butler, size, now))
        if batch is None:
            return None
        await self._require_budget(batch, now)
        reply = await self.reader.read(batch)
        prepared = await self._prepared(batch, reply, now)
        share = self.settings.max_retired_share
        try:
            applied = await rehearsed(database, tenant, lambda conn: write(conn, prepared, share=share))
        except TooMuch:
            return Reading(batch, reply, None, NEEDS_REVIEW)
        return Reading(batch, reply, applied)

    async def _not_before(self, lease: Lease, now: datetime) -> datetime | None:
        """A session that goes on is not read in the middle of it, but at its usual time at the latest (K8)."""
        quiet = timedelta(seconds=self.settings.quiet_seconds)
        if self.settings.backend != "offline" or not quiet:
            return None
        queue = await self.desk.database.run(
            lease.tenant, lambda conn: table.queue(conn, lease.tenant, lease.butler)
        )  # fmt: skip
        if queue.oldest is None or queue.newest is None or not now - quiet < queue.newest <= now:
            return None  # nothing waits, or it has been quiet, or the clock has stepped back and cannot tell
        overdue = queue.oldest < self.timetable.last_fire(JobName.CONSOLIDATE, now)
        return None if overdue else queue.newest + quiet

    async def _next_retry(self, lease: Lease) -> datetime | None:
        waiting = await self.desk.database.run(
            lease.tenant, lambda conn: table.pending(conn, lease.tenant, lease.butler, 1)
        )  # fmt: skip
        return waiting[0].next_consolidation_retry_at if waiting else None

    async def _one(self, lease: Lease, batch: Batch, now: datetime) -> Mapping[str, int]:
        try:
            await self._require_budget(batch, now)
            reply = await self.reader.read(batch)
        except BackendDown as down:
            await self._keep(batch, "paused", now, down.usage, reason=down.reason)
            raise Unavailable(
                "The backend of consolidation cannot read at the moment.",
                reason=down.reason,
                retry_after=down.retry_after,
            ) from None
        except BadOutput as bad:
            return await self._failed(lease, batch, bad.reason, bad.usage, now)
        async with self._paid(batch, reply, now):
            return await self._carried_out(lease, batch, reply, now)

    async def _carried_out(self, lease: Lease, batch: Batch, reply: Reply, now: datetime) -> Mapping[str, int]:
        try:
            prepared = await self._prepared(batch, reply, now)
            applied = await fenced(self.desk.database, lease, lambda conn: self._write(conn, prepared, reply, now))
        except BadOutput as bad:
            return await self._failed(lease, batch, bad.reason, bad.usage, now)
        except TooMuch:
            return await self._for_review(lease, batch, reply, now)
        return applied.counts

    @asynccontextmanager
    async def _paid(self, batch: Batch, reply: Reply, now: datetime) -> AsyncIterator[None]:
        """What cannot be written is read again and again: each time counts, or the day has no limit (K7)."""
        try:
            yield
        except Exception:
            with suppress(ButlerMemoryError):  # the database may be what failed
                await self._keep(batch, "failed", now, reply.usage, reason=NOT_WRITTEN)
            raise

    async def _prepared(self, batch: Batch, reply: Reply, now: datetime) -> Prepared:
        """What names something unknown, or would be refused from a caller, is bad output as a whole (K3)."""
        try:
            planned = plan(batch, reply.proposal)
        except (UnknownHandle, InvalidInput):
            raise BadOutput(Bad.SCHEMA, reply.usage) from None
        return await prepare(self.desk, batch, planned, now)

    async def _require_budget(self, batch: Batch, now: datetime) -> None:
        """What is spent stays spent until the day is over (K7)."""
        day = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        over = day + timedelta(days=1)
        spent = await self.desk.database.run(
            batch.tenant, lambda conn: table.tokens_spent(conn, batch.tenant, day, over)
        )
        if spent >= self.settings.daily_tokens:
            raise BackendDown(Down.SPENT_BUDGET, retry_after=(over - now).total_seconds())

    async def _write(self, conn: Conn, prepared: Prepared, reply: Reply, now: datetime) -> Applied:
        applied = await write(conn, prepared, share=self.settings.max_retired_share)
        outcome = "applied" if applied.items else "empty"
        said = {"read": applied.read, "left_out": applied.left_out, "items": [shape_of(item) for item in applied.items]}
        record = self._record(prepared.batch, outcome, now, reply.usage, applied.counts, said)
        await table.add_run(conn, prepared.batch.tenant, record)
        return applied

    async def _failed(self, lease: Lease, batch: Batch, reason: str, usage: Usage, now: datetime) -> Mapping[str, int]:
        """An attempt of each episode of the batch; smaller batches follow, until the bad one is alone (K3)."""
        counts = {"episodes_failed": len(batch.episodes)}

        async def work(conn: Conn) -> None:
            there = await table.still_pending(conn, batch.tenant, [episode.id for episode in batch.episodes])
            author = author_for(batch, None, now)
            await apply(conn, author, [_attempted(episode, reason, now) for episode in there])
            said = {"read": [episode.id for episode in there], "reason": reason}
            await table.add_run(conn, batch.tenant, self._record(batch, "failed", now, usage, counts, said))

        await fenced(self.desk.database, lease, work)
        return counts

    async def _for_review(self, lease: Lease, batch: Batch, reply: Reply, now: datetime) -> Mapping[str, int]:
        """It would retire too much: nothing is applied, a person looks at it, and the shard goes on (K5)."""
        counts = {"episodes_for_review": len(batch.episodes)}

        async def work(conn: Conn) -> None:
            there = await table.still_pending(conn, batch.tenant, [episode.id for episode in batch.episodes])
            await apply(conn, author_for(batch, None, now), [_for_a_person(episode, now) for episode in there])
            proposed = named_by_id(batch, reply.proposal)
            said = {"read": [episode.id for episode in there], "reason": NEEDS_REVIEW, "proposed": proposed}
            record = self._record(batch, "refused", now, reply.usage, counts, said)
            await table.add_run(conn, batch.tenant, record)
            kept = {"butler": batch.butler, "episodes": [str(each.id) for each in there], "proposed": proposed}
            review = Review(new_id(now), "proposal", None, None, record.id, "open", kept, now)
            await table.add_review(conn, batch.tenant, review)

        await fenced(self.desk.database, lease, work)
        return counts

    async def _keep(self, batch: Batch, outcome: str, now: datetime, usage: Usage, *, reason: str) -> None:
        record = self._record(batch, outcome, now, usage, {}, {"reason": reason})
        await self.desk.database.run(batch.tenant, lambda conn: table.add_run(conn, batch.tenant, record))

    def _record(
        self, batch: Batch, outcome: str, now: datetime, usage: Usage, counts: Mapping[str, int], said: Any
    ) -> RunRecord:
        finished = now + timedelta(seconds=usage.seconds)
        return RunRecord(new_id(now), batch.butler, self.reader.name, now, finished, outcome, counts, usage.tokens_in,
                         usage.tokens_out, plain_json(said))  # fmt: skip


def _attempted(episode: Episode, reason: str, now: datetime) -> Change:
    retry = after_bad_output(episode.consolidation_attempts, now)
    values: dict[str, Any] = {
        "consolidation_attempts": retry.attempts,
        "last_consolidation_error": reason,
        "next_consolidation_retry_at": retry.again_at,
    }
    if retry.gives_up:
        values |= {
            "consolidation_status": ConsolidationStatus.DEAD_LETTER,
            "expires_at": kept_for_a_person(episode.expires_at, now),
        }
    return Change(MemoryType.EPISODE, episode.id, episode.version + 1, EventType.CONSOLIDATION_FAILED, values)


def _for_a_person(episode: Episode, now: datetime) -> Change:
    values = {
        "consolidation_status": ConsolidationStatus.FAILED,
        "last_consolidation_error": NEEDS_REVIEW,
        "next_consolidation_retry_at": None,
        "expires_at": kept_for_a_person(episode.expires_at, now),
    }
    return Change(MemoryType.EPISODE, episode.id, episode.version + 1, EventType.CONSOLIDATION_FAILED, values)


_HANDLES = frozenset({"fact", "memory", "first", "second", "rule"})


def named_by_id(batch: Batch, proposal: Proposal) -> dict[str, Any]:
    """The proposal as it can be read without the batch it was made from."""

    def by_id(handle: str) -> str:
        return str(batch.by_handle[handle.strip()].id)

    def item(fields: dict[str, Any]) -> dict[str, Any]:
        named = {name: by_id(value) if name in _HANDLES else value for name, value in fields.items()}
        return {**named, "evidence": [by_id(handle) for handle in fields["evidence"]]}

    said: dict[str, Sequence[dict[str, Any]]] = proposal.model_dump(mode="json", exclude_unset=True)
    return {kind: [item(fields) for fields in listed] for kind, listed in said.items()}


def ids_in(kept: Mapping[str, Any]) -> list[UUID]:
    return [UUID(text) for text in kept["episodes"]]
