"""The one way a memory changes: its row, its event, the event's text and its links, in one transaction (L2).

A `Change` says which columns get which values and which version that makes. Version 1 inserts; any other
updates the row only where the version before it still stands. The event carries the same values, free text in
a body apart from it, so that folding the events in order gives the tables back (L3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any
from uuid import UUID

import numpy as np
from pgvector import HalfVector
from psycopg import sql
from psycopg.types.json import Jsonb

from butler_memory.domain.clock import utc_text
from butler_memory.domain.kinds import EventType, MemoryType, Relation
from butler_memory.domain.records import FREE_TEXT, Episode, Fact, Rule
from butler_memory.errors import Integrity
from butler_memory.postgres.database import Conn
from butler_memory.postgres.seam import Contended

TABLES: dict[MemoryType, str] = {MemoryType.EPISODE: "episodes", MemoryType.FACT: "facts", MemoryType.RULE: "rules"}
RECORDS: dict[MemoryType, type[Episode] | type[Fact] | type[Rule]] = {
    MemoryType.EPISODE: Episode,
    MemoryType.FACT: Fact,
    MemoryType.RULE: Rule,
}
_JSON_COLUMNS = frozenset({"tags", "metadata"})


@dataclass(frozen=True)
class Author:
    """Who changes what, when, and on whose request: the same for all changes of one call."""

    tenant: str
    actor: str
    now: datetime
    session: UUID
    lineage: Mapping[str, str] = field(default_factory=dict)

    @property
    def request_id(self) -> str | None:
        return self.lineage.get("request_id")


@dataclass(frozen=True)
class Indexed:
    """What search reads: the text to index and its vector, which may come later."""

    text: str
    vector: np.ndarray[Any, np.dtype[np.float32]] | None
    version: str
    text_config: str
    keeps_vector: bool = False  # only words around the same text changed: its vector stays right


@dataclass(frozen=True)
class Link:
    relation: Relation
    target_type: MemoryType
    target_id: UUID


@dataclass(frozen=True)
class Change:
    type: MemoryType
    id: UUID
    version: int
    event: EventType
    values: Mapping[str, Any]
    indexed: Indexed | None = None
    links: tuple[Link, ...] = ()
    said: Mapping[str, Any] = field(default_factory=dict)  # free text that is no column: reasons
    noted: Mapping[str, Any] = field(default_factory=dict)  # facts about the change without content


async def apply(conn: Conn, author: Author, changes: Sequence[Change]) -> None:
    for change in changes:
        await _write_row(conn, author, change)
        await _write_event(conn, author, change)
    for change in changes:
        for link in change.links:
            await _write_link(conn, author, change, link)


def columns_of(kind: MemoryType) -> sql.Composed:
    names = [f.name for f in dataclasses.fields(RECORDS[kind])]
    return sql.SQL(", ").join(map(sql.Identifier, names))


async def _write_row(conn: Conn, author: Author, change: Change) -> None:
    values = {name: _stored(name, value) for name, value in change.values.items()}
    placeholders: dict[str, sql.Composable] = {name: sql.Placeholder(name) for name in values}
    if change.indexed:
        placeholders |= _indexed_columns(change.indexed, values)
    if change.version == 1:
        await _insert(conn, author, change, values, placeholders)
    else:
        await _update(conn, author, change, values, placeholders)


async def _insert(
    conn: Conn, author: Author, change: Change, values: dict[str, Any], places: dict[str, sql.Composable]
) -> None:
    head = {"tenant_id": author.tenant, "id": change.id, "version": 1}
    places = {**{name: sql.Placeholder(name) for name in head}, **places}
    statement = sql.SQL("INSERT INTO memory.{} ({}) VALUES ({})").format(
        sql.Identifier(TABLES[change.type]),
        sql.SQL(", ").join(map(sql.Identifier, places)),
        sql.SQL(", ").join(places.values()),
    )
    await conn.execute(statement, {**values, **head})


async def _update(
    conn: Conn, author: Author, change: Change, values: dict[str, Any], places: dict[str, sql.Composable]
) -> None:
    settings = [sql.SQL("{} = {}").format(sql.Identifier(name), place) for name, place in places.items()]
    statement = sql.SQL(
        "UPDATE memory.{} SET version = %(_next)s{}{}"
        " WHERE tenant_id = %(_tenant)s AND id = %(_id)s AND version = %(_next)s - 1"
    ).format(
        sql.Identifier(TABLES[change.type]),
        sql.SQL(", ") if settings else sql.SQL(""),
        sql.SQL(", ").join(settings),
    )
    done = await conn.execute(
        statement, {**values, "_tenant": author.tenant, "_id": change.id, "_next": change.version}
    )
    if done.rowcount != 1:
        raise Contended


def _indexed_columns(indexed: Indexed, values: dict[str, Any]) -> dict[str, sql.Composable]:
    """Adds what search reads. Stripped of positions, a text vector keeps the row in one page (DESIGN 2)."""
    values["_text"], values["_config"] = indexed.text, indexed.text_config
    text: dict[str, sql.Composable] = {
        "search_vector": sql.SQL("strip(to_tsvector(%(_config)s::regconfig, %(_text)s))")
    }
    if indexed.keeps_vector:
        return text
    values["embedding"] = None if indexed.vector is None else HalfVector(indexed.vector)
    values["embedding_version"] = indexed.version if indexed.vector is not None else None
    return text | {
        "embedding": sql.Placeholder("embedding"),
        "embedding_version": sql.Placeholder("embedding_version"),
    }


async def _write_event(conn: Conn, author: Author, change: Change) -> None:
    plain, text = _split(change.values)
    lineage = {k: v for k, v in author.lineage.items() if k != "request_id"}
    links = [{"relation": x.relation, "type": x.target_type, "id": x.target_id} for x in change.links]
    payload = {"set": plain, "session": author.session, **change.noted}
    if lineage:
        payload["lineage"] = lineage
    if links:
        payload["links"] = links
    body = {"set": text, **change.said}
    has_body = bool(text or change.said)
    if has_body:
        payload["body"] = True  # so that a text which is gone can be told from one that never was
    await conn.execute(
        """
        WITH event AS (
            INSERT INTO memory.memory_events (tenant_id, event_type, entity_type, entity_id, entity_version,
                                              occurred_at, actor, request_id, payload)
            VALUES (%(tenant)s, %(event)s, %(type)s, %(id)s, %(version)s, %(now)s, %(actor)s, %(request)s, %(payload)s)
            RETURNING id
        )
        INSERT INTO memory.memory_event_bodies (tenant_id, event_id, body)
        SELECT %(tenant)s, event.id, %(body)s FROM event WHERE %(has_body)s
        """,
        {
            "tenant": author.tenant,
            "event": change.event,
            "type": change.type,
            "id": change.id,
            "version": change.version,
            "now": author.now,
            "actor": author.actor,
            "request": author.request_id,
            "payload": Jsonb(plain_json(payload)),
            "body": Jsonb(plain_json(body)),
            "has_body": has_body,
        },
    )


async def _write_link(conn: Conn, author: Author, change: Change, link: Link) -> None:
    """Both ends must be there, as a row or a tombstone; the source was written in this transaction."""
    if not await _exists(conn, author.tenant, link.target_type, link.target_id):
        raise Integrity(f"The {link.target_type} to link to does not exist.", reason="broken_link")
    await conn.execute(
        """
        INSERT INTO memory.memory_links
            (tenant_id, source_type, source_id, target_type, target_id, relation, created_at)
        VALUES (%s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING
        """,
        [author.tenant, change.type, change.id, link.target_type, link.target_id, link.relation, author.now],
    )


async def _exists(conn: Conn, tenant: str, kind: MemoryType, memory_id: UUID) -> bool:
    found = await conn.execute(
        sql.SQL(
            "SELECT 1 FROM memory.{} WHERE tenant_id = %(tenant)s AND id = %(id)s"
            " UNION ALL SELECT 1 FROM memory.episode_tombstones"
            " WHERE %(type)s = 'episode' AND tenant_id = %(tenant)s AND id = %(id)s"
        ).format(sql.Identifier(TABLES[kind])),
        {"tenant": tenant, "id": memory_id, "type": kind},
    )
    return await found.fetchone() is not None


def _split(values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    plain = {name: value for name, value in values.items() if name not in FREE_TEXT}
    text = {name: value for name, value in values.items() if name in FREE_TEXT}
    return plain, text


def _stored(name: str, value: Any) -> Any:
    return Jsonb(value) if name in _JSON_COLUMNS else value


def plain_json(value: Any) -> Any:
    """Times, ids and words of closed sets as JSON knows them."""
    match value:
        case Mapping():
            return {str(key): plain_json(item) for key, item in value.items()}
        case list() | tuple():
            return [plain_json(item) for item in value]
        case datetime():
            return utc_text(value)
        case Enum():
            return value.value
        case UUID():
            return str(value)
        case _:
            return value
