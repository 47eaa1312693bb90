"""The law of events (L2, L3): folding them gives the tables back, version by version, link by link."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from typing import Any

import psycopg

from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.records import FREE_TEXT
from butler_memory.postgres.changes import RECORDS, TABLES, plain_json
from butler_memory.postgres.provision import Urls

Key = tuple[str, str, str]  # tenant, type, id
LINK_COLUMNS = ("tenant_id", "source_type", "source_id", "relation", "target_type", "target_id")


async def check_ledger(urls: Urls) -> int:
    """Asserts that the tables are the fold of the events; returns the number of events."""
    async with await psycopg.AsyncConnection.connect(urls.owner, row_factory=psycopg.rows.dict_row) as conn:
        events = await _all(
            conn,
            "SELECT e.*, b.body FROM memory.memory_events e"
            " LEFT JOIN memory.memory_event_bodies b ON (b.tenant_id, b.event_id) = (e.tenant_id, e.id) ORDER BY e.id",
        )
        stored = {kind: await _all(conn, f"SELECT * FROM memory.{table}") for kind, table in TABLES.items()}
        links = await _all(conn, "SELECT * FROM memory.memory_links")
        tombstones = await _all(conn, "SELECT tenant_id, id, reason FROM memory.episode_tombstones")
    assert fold(events) == {
        (row["tenant_id"], kind.value, str(row["id"])): _declared(kind, row) for kind, found in stored.items()
        for row in found
    }  # fmt: skip
    left = {(row["tenant_id"], "episode", str(row["id"])): row["reason"] for row in tombstones}
    assert deleted(events).items() <= left.items(), "what was deleted leaves its tombstone; some tests make others"
    assert links_said(events) == {tuple(str(row[name]) for name in LINK_COLUMNS) for row in links}
    return len(events)


def fold(events: list[dict[str, Any]]) -> dict[Key, dict[str, Any]]:
    """Each memory as its events tell it; versions must run 1, 2, 3, ... in the order of the events, to the last.

    What was deleted is not there, and none of its text is left (E4).
    """
    gone = deleted(events)
    told: dict[Key, dict[str, Any]] = defaultdict(dict)
    for event in events:
        key = _key(event)
        assert key not in gone or event["body"] is None, f"a text remains: {key}"
        assert event["entity_version"] == told[key].get("version", 0) + 1, f"a version is missing or doubled: {key}"
        assert event["event_type"] == "created" or event["entity_version"] > 1
        plain, text = event["payload"]["set"], (event["body"] or {"set": {}})["set"]
        assert not FREE_TEXT & plain.keys(), "free text belongs into the body (L3)"
        told[key] |= {**plain, **text, "version": event["entity_version"], "tenant_id": key[0], "id": key[2]}
    assert all(told[key]["version"] == version for key, version in _deletions(events).items())
    return {key: columns for key, columns in told.items() if key not in gone}


def deleted(events: list[dict[str, Any]]) -> dict[Key, str]:
    """Each memory that was deleted, and why."""
    return {_key(event): event["payload"]["reason"] for event in events if event["event_type"] == "deleted"}


def _deletions(events: list[dict[str, Any]]) -> dict[Key, int]:
    return {_key(event): event["entity_version"] for event in events if event["event_type"] == "deleted"}


def _key(event: dict[str, Any]) -> Key:
    return (event["tenant_id"], event["entity_type"], str(event["entity_id"]))


def links_said(events: list[dict[str, Any]]) -> set[tuple[str, ...]]:
    return {
        (event["tenant_id"], event["entity_type"], str(event["entity_id"]), link["relation"], link["type"], link["id"])
        for event in events
        for link in event["payload"].get("links", [])
    }


def _declared(kind: MemoryType, row: dict[str, Any]) -> dict[str, Any]:
    named: dict[str, Any] = plain_json({field.name: row[field.name] for field in dataclasses.fields(RECORDS[kind])})
    return named


async def _all(conn: Any, query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = await (await conn.execute(query)).fetchall()
    return found
