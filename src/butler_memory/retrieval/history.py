"""The life of one memory, for whoever may see it (L4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from butler_memory.domain.clock import utc_text
from butler_memory.domain.kinds import MemoryType, Relation
from butler_memory.domain.life import Chapter, Kin, life
from butler_memory.domain.records import AnyMemory
from butler_memory.domain.requests import OneMemory
from butler_memory.errors import NotFound
from butler_memory.postgres import events, memories
from butler_memory.postgres.database import Conn, Database
from butler_memory.security.principal import Principal
from butler_memory.writing.desk import visible


@dataclass(frozen=True)
class History:
    request: OneMemory
    chapters: list[Chapter]
    kin: list[Kin]

    def as_dict(self) -> dict[str, Any]:
        return {
            "type": self.request.type.value,
            "id": str(self.request.id),
            "history": [_chapter(each) for each in self.chapters],
            "links": [_kin(each) | {"created_at": utc_text(each.created_at)} for each in self.kin],
        }


def _chapter(chapter: Chapter) -> dict[str, Any]:
    event = chapter.event
    return {
        "version": event.version,
        "event_type": event.event_type.value,
        "occurred_at": utc_text(event.occurred_at),
        "actor": event.actor,
        "request_id": event.request_id,
        "told": chapter.told,
        "links": [_kin(each) for each in chapter.began],
    }


def _kin(kin: Kin) -> dict[str, Any]:
    return {
        "way": kin.way,
        "relation": kin.relation.value,
        "type": kin.type.value,
        "id": str(kin.id),
        "line": kin.line,
    }


async def history(database: Database, who: Principal, request: OneMemory) -> History:
    async def work(conn: Conn) -> History:
        await _require_visible(conn, who, request)
        trail = await events.of_memory(conn, who.tenant, request.type, request.id)
        kin = await _kin_of(conn, who, request)
        return History(request, life(trail, kin), kin)

    return await database.run(who.tenant, work)


async def _require_visible(conn: Conn, who: Principal, request: OneMemory) -> None:
    """The life of a deleted episode is told to whom the episode was shown."""
    try:
        await visible(conn, who, request.type, request.id)
    except NotFound:
        butler = None
        if request.type is MemoryType.EPISODE:
            butler = await events.butler_of_deleted(conn, who.tenant, request.id)
        if butler is None or not who.may_see(butler):
            raise


async def _kin_of(conn: Conn, who: Principal, request: OneMemory) -> list[Kin]:
    links = await memories.links(conn, who.tenant, request.type, request.id)
    there: dict[Any, AnyMemory] = {}
    for kind in MemoryType:
        ids = [link["id"] for link in links if link["type"] == kind]
        there |= await memories.find_many(conn, who.tenant, kind, ids)
    return [_as_kin(who, link, there.get(link["id"])) for link in links]


def _as_kin(who: Principal, link: Mapping[str, Any], memory: AnyMemory | None) -> Kin:
    shown = memory is not None and memory.content is not None and who.may_see(memory.scope)
    return Kin(
        way=link["way"],
        relation=Relation(link["relation"]),
        type=MemoryType(link["type"]),
        id=link["id"],
        created_at=link["created_at"],
        line=memory.line if shown and memory else None,
    )
