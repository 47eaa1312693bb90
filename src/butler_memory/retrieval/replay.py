"""Folds all events of a tenant and compares the outcome with its tables: nothing is changed (L3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.replay import Difference, Stored, Told, compare
from butler_memory.postgres import trail
from butler_memory.postgres.database import Conn, Database

# Who sees a hundred differences knows enough; the rest is counted.
LISTED = 100

Progress = Callable[[int], None]
Stream = AsyncGenerator[tuple[UUID, Any], None]


@dataclass
class Replayed:
    """What was folded, and what differed."""

    tenant: str
    verified: bool
    events: int = 0
    memories: dict[MemoryType, Counter[str]] = field(default_factory=lambda: {kind: Counter() for kind in MemoryType})
    links: int = 0
    differences: int = 0
    listed: list[Difference] = field(default_factory=list)

    def count(self, told: Told) -> None:
        state = (told.reason or "deleted") if told.is_deleted else "present"
        self.memories[told.type][state] += 1
        self.links += len(told.links)

    def as_dict(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant,
            "events": self.events,
            "memories": {kind.value: dict(sorted(counts.items())) for kind, counts in self.memories.items()},
            "links": self.links,
            "differences": self.differences,
            "listed": [
                {"type": each.type.value, "id": str(each.id), "what": each.fault.value, "detail": each.detail}
                for each in self.listed
            ],
        }

    def note(self, found: list[Difference]) -> None:
        self.differences += len(found)
        self.listed += found[: LISTED - len(self.listed)]


async def replay(database: Database, tenant: str, *, verify: bool, progress: Progress) -> Replayed:
    """One snapshot of the tenant, so that what is written meanwhile is no difference."""

    async def work(conn: Conn) -> Replayed:
        replayed = Replayed(tenant, verify)

        def folded(events: int) -> None:
            replayed.events += events
            progress(replayed.events)

        for kind in MemoryType:
            await _replay_type(conn, kind, replayed, folded)
        return replayed

    return await database.snapshot(tenant, work)


async def _replay_type(conn: Conn, kind: MemoryType, replayed: Replayed, folded: Progress) -> None:
    tenant = replayed.tenant
    streams: list[Stream] = [trail.told(conn, tenant, kind, folded)]
    if replayed.verified:
        streams += [trail.rows(conn, tenant, kind), trail.links(conn, tenant, kind)]
        if kind is MemoryType.EPISODE:
            streams.append(trail.tombstones(conn, tenant))
        if kind is MemoryType.RULE:
            streams.append(trail.applications(conn, tenant))
    async with aclosing(side_by_side(streams)) as memories:
        async for memory_id, (told, *stored) in memories:
            if told is not None:
                replayed.count(told)
            if replayed.verified:
                replayed.note(compare(kind, memory_id, told, _stored(kind, *stored)))
            elif told is not None:
                replayed.note(told.trail_faults())


def _stored(kind: MemoryType, row: Any, links: Any, other: Any = None) -> Stored:
    return Stored(
        row=row,
        links=links or {},
        tombstone=other if kind is MemoryType.EPISODE else None,
        applications=other if kind is MemoryType.RULE else None,
    )


async def side_by_side(streams: list[Stream]) -> AsyncGenerator[tuple[UUID, list[Any]], None]:
    """Merges streams that are sorted by id: each id once, with what each stream has of it, or None."""
    async with AsyncExitStack() as stack:
        for stream in streams:
            await stack.enter_async_context(aclosing(stream))
        heads = [await anext(stream, None) for stream in streams]
        while there := [head[0] for head in heads if head is not None]:
            lowest = min(there)
            found: list[Any] = [None] * len(streams)
            for place, head in enumerate(heads):
                if head is not None and head[0] == lowest:
                    found[place] = head[1]
                    heads[place] = await anext(streams[place], None)
            yield lowest, found
