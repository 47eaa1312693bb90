"""What consolidation reads, and the record of each run and of what waits for a person (K1, K5, K7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.records import Episode, Fact, Rule
from butler_memory.postgres.changes import columns_of
from butler_memory.postgres.database import Conn

_EPISODE = columns_of(MemoryType.EPISODE).as_string(None)
_FACT = columns_of(MemoryType.FACT).as_string(None)
_RULE = columns_of(MemoryType.RULE).as_string(None)
_WAITING = (
    "tenant_id = %(tenant)s AND butler = %(butler)s AND consolidation_status = 'pending' AND state = 'active'"
)  # fmt: skip


async def pending(conn: Conn, tenant: str, butler: str, limit: int) -> list[Episode]:
    """In the order in which they came."""
    found = await conn.execute(
        f"SELECT {_EPISODE} FROM memory.episodes WHERE {_WAITING} ORDER BY created_at, id LIMIT %(limit)s",
        {"tenant": tenant, "butler": butler, "limit": limit},
    )
    return [Episode.from_row(row) for row in await found.fetchall()]


async def still_pending(conn: Conn, tenant: str, ids: Sequence[UUID]) -> list[Episode]:
    """Those that nobody has forgotten or read meanwhile, held until the transaction ends."""
    found = await conn.execute(
        f"""
        SELECT {_EPISODE} FROM memory.episodes
        WHERE tenant_id = %s AND id = ANY(%s) AND consolidation_status = 'pending' AND state = 'active'
        ORDER BY created_at, id FOR UPDATE
        """,
        [tenant, list(ids)],
    )
    return [Episode.from_row(row) for row in await found.fetchall()]


async def given_up(conn: Conn, tenant: str, ids: Sequence[UUID] | None) -> list[Episode]:
    """What a person may have read again, held until the transaction ends."""
    found = await conn.execute(
        f"""
        SELECT {_EPISODE} FROM memory.episodes
        WHERE tenant_id = %(tenant)s AND state = 'active' AND consolidation_status IN ('failed', 'dead_letter')
          AND (%(ids)s::uuid[] IS NULL OR id = ANY(%(ids)s))
        ORDER BY created_at, id FOR UPDATE
        """,
        {"tenant": tenant, "ids": None if ids is None else list(ids)},
    )
    return [Episode.from_row(row) for row in await found.fetchall()]


@dataclass(frozen=True)
class Queue:
    """What waits in a shard: how many, since when, and when the last one came."""

    count: int
    oldest: datetime | None
    newest: datetime | None


async def queue(conn: Conn, tenant: str, butler: str) -> Queue:
    found = await conn.execute(
        f"""
        SELECT count(*) AS count, min(created_at) AS oldest, max(created_at) AS newest
        FROM memory.episodes WHERE {_WAITING}
        """,
        {"tenant": tenant, "butler": butler},
    )
    row = await found.fetchone()
    assert row is not None
    return Queue(**row)


async def butlers_waiting(conn: Conn, tenant: str) -> list[str]:
    found = await conn.execute(
        "SELECT DISTINCT butler FROM memory.episodes"
        " WHERE tenant_id = %s AND consolidation_status = 'pending' AND state = 'active' ORDER BY butler",
        [tenant],
    )
    return [row["butler"] for row in await found.fetchall()]


async def count_pending(conn: Conn, tenant: str, butler: str, enough: int) -> int:
    found = await conn.execute(
        f"SELECT count(*) AS n FROM (SELECT 1 FROM memory.episodes WHERE {_WAITING} LIMIT %(enough)s) AS few",
        {"tenant": tenant, "butler": butler, "enough": enough},
    )
    row = await found.fetchone()
    assert row is not None
    return int(row["n"])


async def sessions_of(conn: Conn, tenant: str, episodes: Sequence[UUID]) -> dict[UUID, UUID]:
    """The session in which each was told, named or not: as its first event says."""
    found = await conn.execute(
        """
        SELECT entity_id, payload ->> 'session' AS session FROM memory.memory_events
        WHERE tenant_id = %s AND entity_type = 'episode' AND entity_id = ANY(%s) AND entity_version = 1
        """,
        [tenant, list(episodes)],
    )
    return {row["entity_id"]: UUID(row["session"]) for row in await found.fetchall() if row["session"]}


async def live_facts(conn: Conn, tenant: str, scopes: Sequence[str], limit: int) -> list[Fact]:
    found = await conn.execute(
        f"""
        SELECT {_FACT} FROM memory.facts
        WHERE tenant_id = %s AND validity IN ('active', 'fading') AND scope = ANY(%s)
        ORDER BY last_confirmed_at DESC, id LIMIT %s
        """,
        [tenant, list(scopes), limit],
    )
    return [Fact.from_row(row) for row in await found.fetchall()]


async def live_rules(conn: Conn, tenant: str, scopes: Sequence[str], limit: int) -> list[Rule]:
    found = await conn.execute(
        f"""
        SELECT {_RULE} FROM memory.rules
        WHERE tenant_id = %s AND status IN ('active', 'fading') AND scope = ANY(%s)
        ORDER BY last_confirmed_at DESC, id LIMIT %s
        """,
        [tenant, list(scopes), limit],
    )
    return [Rule.from_row(row) for row in await found.fetchall()]


async def served(conn: Conn, tenant: str, sessions: Sequence[UUID]) -> dict[UUID, set[UUID]]:
    """Which memories each session was shown (C7)."""
    found = await conn.execute(
        """
        SELECT s.session_id, item ->> 'id' AS id FROM memory.served_contexts s
        CROSS JOIN LATERAL jsonb_array_elements(s.items) AS item
        WHERE s.tenant_id = %s AND s.session_id = ANY(%s)
        """,
        [tenant, list(sessions)],
    )
    shown: dict[UUID, set[UUID]] = {}
    for row in await found.fetchall():
        shown.setdefault(row["session_id"], set()).add(UUID(row["id"]))
    return shown


async def marked(conn: Conn, tenant: str, sessions: Sequence[UUID]) -> set[tuple[UUID, UUID]]:
    """Which rules a session has marked itself: (session, rule)."""
    found = await conn.execute(
        "SELECT DISTINCT session_id, rule_id FROM memory.rule_applications"
        " WHERE tenant_id = %s AND session_id = ANY(%s)",
        [tenant, list(sessions)],
    )
    return {(row["session_id"], row["rule_id"]) for row in await found.fetchall()}


# --- runs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecord:
    """One reading of a batch: what it cost, what was proposed, what became of it."""

    id: UUID
    butler: str
    backend: str
    started_at: datetime
    finished_at: datetime
    outcome: str
    counts: Mapping[str, int]
    tokens_in: int
    tokens_out: int
    proposal: Mapping[str, Any]


async def add_run(conn: Conn, tenant: str, run: RunRecord) -> None:
    await conn.execute(
        """
        INSERT INTO memory.consolidation_runs (tenant_id, id, butler, backend, started_at, finished_at, outcome, counts,
                                               tokens_in, tokens_out, proposal)
        VALUES (%(tenant)s, %(id)s, %(butler)s, %(backend)s, %(started_at)s, %(finished_at)s, %(outcome)s, %(counts)s,
                %(tokens_in)s, %(tokens_out)s, %(proposal)s)
        """,
        {"tenant": tenant, **vars(run), "counts": Jsonb(dict(run.counts)), "proposal": Jsonb(dict(run.proposal))},
    )


async def runs_since(conn: Conn, tenant: str, butler: str | None, since: datetime) -> list[RunRecord]:
    found = await conn.execute(
        """
        SELECT id, butler, backend, started_at, finished_at, outcome, counts, tokens_in, tokens_out, proposal
        FROM memory.consolidation_runs
        WHERE tenant_id = %(tenant)s AND started_at >= %(since)s AND (%(butler)s::text IS NULL OR butler = %(butler)s)
        ORDER BY started_at, id
        """,
        {"tenant": tenant, "since": since, "butler": butler},
    )
    return [RunRecord(**row) for row in await found.fetchall()]


async def tokens_spent(conn: Conn, tenant: str, since: datetime, before: datetime) -> int:
    found = await conn.execute(
        "SELECT coalesce(sum(tokens_in + tokens_out), 0) AS n FROM memory.consolidation_runs"
        " WHERE tenant_id = %s AND started_at >= %s AND started_at < %s",
        [tenant, since, before],
    )
    row = await found.fetchone()
    assert row is not None
    return int(row["n"])


# --- reviews ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Review:
    """A person must decide: on a claim that contests what the user said, or on a proposal that retires much."""

    id: UUID
    kind: str
    entity_type: str | None
    entity_id: UUID | None
    run_id: UUID | None
    state: str
    proposal: Mapping[str, Any] | None
    created_at: datetime


_REVIEW = "id, kind, entity_type, entity_id, run_id, state, proposal, created_at"


async def add_review(conn: Conn, tenant: str, review: Review) -> None:
    await conn.execute(
        f"""
        INSERT INTO memory.reviews (tenant_id, {_REVIEW})
        VALUES (%(tenant)s, %(id)s, %(kind)s, %(entity_type)s, %(entity_id)s, %(run_id)s, %(state)s, %(proposal)s,
                %(created_at)s)
        """,
        {
            "tenant": tenant,
            **vars(review),
            "proposal": None if review.proposal is None else Jsonb(dict(review.proposal)),
        },
    )


async def open_reviews(conn: Conn, tenant: str, limit: int) -> list[Review]:
    """Oldest first; a claim that is live no more has been settled without a review."""
    found = await conn.execute(
        f"""
        SELECT {_REVIEW} FROM memory.reviews r
        WHERE tenant_id = %(tenant)s AND state = 'open' AND (entity_type IS DISTINCT FROM 'fact' OR EXISTS (
            SELECT 1 FROM memory.facts f WHERE f.tenant_id = %(tenant)s AND f.id = r.entity_id
              AND f.validity IN ('active', 'fading')))
        ORDER BY created_at, id LIMIT %(limit)s
        """,
        {"tenant": tenant, "limit": limit},
    )
    return [Review(**row) for row in await found.fetchall()]


async def was_rejected(conn: Conn, tenant: str, subject_key: str, predicate_key: str, scope: str, slot: str) -> bool:
    """Whether a person has rejected this claim, as long as that is kept, and has not brought it back since."""
    found = await conn.execute(
        """
        SELECT 1 FROM memory.reviews r JOIN memory.facts f ON (f.tenant_id, f.id) = (r.tenant_id, r.entity_id)
        WHERE r.tenant_id = %s AND r.kind = 'contradiction' AND r.state = 'rejected' AND f.validity = 'retracted'
          AND f.subject_key = %s AND f.predicate_key = %s AND f.scope = %s AND f.slot = %s
        LIMIT 1
        """,
        [tenant, subject_key, predicate_key, scope, slot],
    )
    return await found.fetchone() is not None


async def find_review(conn: Conn, tenant: str, review_id: UUID) -> Review | None:
    """Held until the transaction ends: two people decide one after the other."""
    found = await conn.execute(
        f"SELECT {_REVIEW} FROM memory.reviews WHERE tenant_id = %s AND id = %s FOR UPDATE", [tenant, review_id]
    )
    row = await found.fetchone()
    return Review(**row) if row else None


async def close_review(conn: Conn, tenant: str, review_id: UUID, state: str, who: str, now: datetime) -> None:
    await conn.execute(
        "UPDATE memory.reviews SET state = %s, closed_by = %s, closed_at = %s WHERE tenant_id = %s AND id = %s",
        [state, who, now, tenant, review_id],
    )
