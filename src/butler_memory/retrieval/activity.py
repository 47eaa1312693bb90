"""What happened, event by event, without ever skipping one that commits late (T1).

Events take their ids before their transactions commit, so 6 may be seen before 5 is. Nor does the order of
transaction ids help: one that began earlier may take its event id later. What does help: every transaction that
has taken an event id holds a lock on the table until its commit can be seen. So look which id is the newest, then
who holds that lock; once all of those are over, nothing can appear below that id any more.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from butler_memory.domain.clock import utc_text
from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.records import AnyMemory
from butler_memory.domain.requests import StreamActivity
from butler_memory.domain.story import Happened, summary
from butler_memory.postgres import events, memories
from butler_memory.postgres.database import Conn, Database
from butler_memory.postgres.search import Filters
from butler_memory.retrieval.reader import filters_for
from butler_memory.security.principal import Principal

# How many events one call looks at, whoever may see them: a butler in a busy tenant gets an answer in time, and
# `next` moves on by what was looked at.
WINDOW = 2_000
# Writing transactions take milliseconds. A long one (a sweep) makes a reader come back later.
PATIENCE_SECONDS = 2.0
LOOK_AGAIN_SECONDS = 0.005

ALL_TYPES = tuple(MemoryType)


@dataclass(frozen=True)
class Activity:
    """`next` is what to give as `since` next time; None where nothing is certain yet."""

    events: list[tuple[Happened, AnyMemory | None]]
    next: int | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "events": [_shape(event, memory) for event, memory in self.events],
            "next": None if self.next is None else str(self.next),
        }


def _shape(event: Happened, memory: AnyMemory | None) -> dict[str, Any]:
    return {
        "id": event.id,
        "event_type": event.event_type.value,
        "type": event.type.value,
        "entity_id": str(event.memory_id),
        "occurred_at": utc_text(event.occurred_at),
        "actor": event.actor,
        "summary": summary(event, memory),
    }


async def activity(database: Database, who: Principal, request: StreamActivity, now: datetime) -> Activity:
    filters = filters_for(who, request.scope, ALL_TYPES, now, 0)
    settled = await _settled(database, who.tenant, request.since or 0)
    if settled is None:
        return Activity([], request.since)
    since, limit = request.since, request.limit

    async def work(conn: Conn) -> Activity:
        if since is None:
            return await _latest(conn, who.tenant, settled, filters, limit)
        return await _after(conn, who.tenant, since, settled, filters, limit)

    return await database.read(who.tenant, work)


async def _settled(database: Database, tenant: str, since: int) -> int | None:
    """An id up to which every event that will ever be is there; None if somebody is still writing.

    Nothing is held while it waits: neither a connection nor a snapshot.
    """
    newest = await database.read(tenant, lambda conn: events.newest_id(conn, tenant))
    if newest <= since:
        return since
    writing = await database.read(tenant, events.writers)
    give_up = asyncio.get_running_loop().time() + PATIENCE_SECONDS
    while writing:
        if asyncio.get_running_loop().time() > give_up:
            return None
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
        writing &= await database.read(tenant, events.writers)
    return newest


async def _latest(conn: Conn, tenant: str, upto: int, filters: Filters, limit: int) -> Activity:
    start = await events.start_of_window(conn, tenant, upto, WINDOW)
    found = await events.between(conn, tenant, start, upto, filters.scopes, filters.butlers, limit, latest=True)
    return Activity(await _with_memories(conn, tenant, found), upto)


async def _after(conn: Conn, tenant: str, since: int, upto: int, filters: Filters, limit: int) -> Activity:
    end = await events.end_of_window(conn, tenant, since, upto, WINDOW)
    found = await events.between(conn, tenant, since, end, filters.scopes, filters.butlers, limit, latest=False)
    full = len(found) == limit
    return Activity(await _with_memories(conn, tenant, found), found[-1].id if full else end)


async def _with_memories(conn: Conn, tenant: str, found: list[Happened]) -> list[tuple[Happened, AnyMemory | None]]:
    rows: dict[Any, AnyMemory] = {}
    for kind in MemoryType:
        ids = {event.memory_id for event in found if event.type is kind}
        rows |= {(kind, each): row for each, row in (await memories.find_many(conn, tenant, kind, list(ids))).items()}
    return [(event, rows.get((event.type, event.memory_id))) for event in found]
