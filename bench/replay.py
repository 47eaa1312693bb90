"""How fast `replay --verify` folds a tenant's events, and how much memory that takes (L3).

    python bench/replay.py [EVENTS]

The events are written as the engine writes them, in large transactions; that takes longer than what is measured.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from butler_memory.bootstrap import Engine, open_engine
from butler_memory.domain.clock import new_id
from butler_memory.domain.kinds import ApplicationOutcome, EventType, MemoryType, Relation, Role
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.postgres import applications
from butler_memory.postgres.applications import Application
from butler_memory.postgres.changes import Author, Change, Link, apply
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import Principal
from butler_memory.settings import load
from butler_memory.writing.rules import fresh_rule_values

WHO = Principal("home", "bench", Role.ADMIN, uuid4())
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOW + timedelta(days=1)
AUTHOR = Author("home", WHO.actor, NOW, uuid4())
TEXT = "The user said that the quarterly report has to be ready on Friday, and that the last one was far too long. "
EVENTS_OF_A_LIFE = 11
LIVES_AT_ONCE = 50

_COMMON: dict[str, Any] = {
    "content_status": "plain", "importance": 5.0, "source_kind": "user_stated", "request_id": None, "tags": ["work"],
    "metadata": {}, "created_at": NOW,
}  # fmt: skip
_LEARNED: dict[str, Any] = _COMMON | {
    "confidence": 1.0, "decay_rate": 0.008, "permanence": "standard", "scope": "global", "source_butler": "bench",
    "source_episode_id": None, "source_session_id": None, "supersedes_id": None, "superseded_at": None,
    "fades_at": LATER, "expires_at_conf": LATER, "last_confirmed_at": NOW,
}  # fmt: skip


def _fact(number: int, content: str, **more: Any) -> dict[str, Any]:
    own = {
        "subject": "user", "predicate": "note", "subject_key": "user", "predicate_key": "note", "slot": str(number),
        "content": content, "validity": "active", "valid_from": None, "valid_to": None,
    }  # fmt: skip
    return _LEARNED | own | more


def _episode(content: str) -> dict[str, Any]:
    return _COMMON | {
        "state": "active", "butler": "bench", "session_id": None, "content": content, "occurred_at": NOW,
        "consolidation_status": "pending", "consolidation_attempts": 0, "last_consolidation_error": None,
        "next_consolidation_retry_at": None, "expires_at": LATER,
    }  # fmt: skip


def _life(number: int) -> tuple[list[Change], Application]:
    """A fact and its successor, an episode, a rule with marks: eleven events."""
    old, new, episode, rule = (new_id(NOW) for _ in range(4))
    fact, confirmed = MemoryType.FACT, {"last_confirmed_at": LATER, "fades_at": LATER}
    replaced = (Link(Relation.SUPERSEDES, fact, old), Link(Relation.DERIVED_FROM, MemoryType.EPISODE, episode))
    changes = [
        Change(MemoryType.EPISODE, episode, 1, EventType.CREATED, _episode(f"{number} {TEXT * 3}")),
        Change(fact, old, 1, EventType.CREATED, _fact(number, TEXT)),
        Change(fact, old, 2, EventType.SUPERSEDED, {"validity": "superseded", "superseded_at": LATER}),
        Change(fact, new, 1, EventType.CREATED, _fact(number, f"Not so. {TEXT}", supersedes_id=old), links=replaced),
        Change(fact, new, 2, EventType.CONFIRMED, confirmed),
        Change(fact, new, 3, EventType.CONFIRMED, confirmed),
        Change(MemoryType.EPISODE, episode, 2, EventType.CONSOLIDATED, {"consolidation_status": "consolidated"}),
        Change(
            MemoryType.RULE, rule, 1, EventType.CREATED, _LEARNED | fresh_rule_values(TEXT, str(rule), "global", NOW)
        ),
    ]
    for version in (2, 3, 4):
        counters = {"applied_count": 1, "success_count": 1} if version == 2 else {"last_evaluated_at": LATER}
        changes.append(
            Change(MemoryType.RULE, rule, version, EventType.MARKED, counters, said={"reason": "it went well"})
        )
    mark = Application(
        "home", new_id(NOW), rule, AUTHOR.session, ApplicationOutcome.HELPFUL, None, None, WHO.actor, NOW
    )
    return changes, mark


async def _write(engine: Engine, lives: int) -> None:
    async def work(conn: Conn, first: int) -> None:
        for number in range(first, min(first + LIVES_AT_ONCE, lives)):
            changes, mark = _life(number)
            await apply(conn, AUTHOR, changes)
            await applications.add(conn, mark)

    for first in range(0, lives, LIVES_AT_ONCE):
        await engine.database.run("home", partial(work, first=first))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


async def main(events: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        settings = load(environ={"BUTLER_MEMORY_DATA_DIR": str(Path(directory) / "data")})
        async with open_engine(settings, embedder=FakeEmbedder()) as engine:
            await engine.access.ensure_tenant("home")
            began = time.perf_counter()
            await _write(engine, -(-events // EVENTS_OF_A_LIFE))
            print(f"written in {time.perf_counter() - began:.0f} s")
            for verify in (False, True):
                before, began = _peak_mb(), time.perf_counter()
                found = await engine.memory.replay(WHO, verify=verify, progress=lambda _: None)
                seconds = time.perf_counter() - began
                print(
                    f"{'verified' if verify else 'folded'}: {found['events']:,} events in {seconds:.1f} s,"
                    f" {found['events'] / seconds:,.0f} a second, {found['differences']} differences;"
                    f" peak memory {before:.0f} -> {_peak_mb():.0f} MB"
                )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 200_000))
