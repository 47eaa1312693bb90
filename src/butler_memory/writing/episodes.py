"""The one place that writes episodes, and its one gate against memory that feeds on itself (E5)."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from butler_memory.domain.clock import new_id
from butler_memory.domain.kinds import (
    ConsolidationStatus,
    ContentStatus,
    EpisodeState,
    EventType,
    JobName,
    MemoryType,
    SourceKind,
    TriggerClass,
    WriteOutcome,
)
from butler_memory.domain.requests import StoreEpisode, session_uuid
from butler_memory.domain.sentence import one_line
from butler_memory.domain.text import digest
from butler_memory.errors import Forbidden
from butler_memory.postgres import keys, leases
from butler_memory.postgres.changes import Change, apply
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import Principal, own_butler, require_writer
from butler_memory.settings import MemorySettings
from butler_memory.writing.desk import Desk, Written, author_of, repeat_key, repeated
from butler_memory.writing.vectors import Ticket


async def store_episode(desk: Desk, who: Principal, request: StoreEpisode, now: datetime) -> Written:
    _check_gate(who)
    require_writer(who)
    butler = own_butler(who, request.butler)
    ticket = await desk.vectors.soon(who.tenant, one_line(request.content))
    return await _store(desk, who, request, butler, now, ticket)


def _check_gate(who: Principal) -> None:
    if who.trigger_class is TriggerClass.MAINTENANCE:
        raise Forbidden(
            "Maintenance sessions never become episodes.",
            reason="maintenance_session",
            recovery="Nothing to do: this is how the memory avoids feeding on itself.",
        )


async def _store(
    desk: Desk, who: Principal, request: StoreEpisode, butler: str, now: datetime, ticket: Ticket
) -> Written:
    secret = (await desk.tenant(who.tenant)).digest_key
    key = idempotency_key(who, request, butler, secret)
    episode_id = new_id(now)

    async def work(conn: Conn) -> Written:
        earlier = await repeated(conn, who, key)
        if earlier:
            return earlier
        waiting = await desk.waiting(conn, who.tenant, butler)
        await leases.wish(conn, who.tenant, butler, JobName.CONSOLIDATE, now, desk.consolidated_by(now, waiting + 1))
        values = _values(request, butler, now, desk.settings)
        change = Change(
            MemoryType.EPISODE,
            episode_id,
            1,
            EventType.CREATED,
            values,
            indexed=desk.vectors.indexed(ticket, request.tags),
        )
        await apply(conn, author_of(who, request, now, request.session), [change])
        if key:
            await keys.claim(conn, who.tenant, key, MemoryType.EPISODE, episode_id, now)
        return Written(MemoryType.EPISODE, episode_id, WriteOutcome.CREATED, EpisodeState.ACTIVE)

    written = await desk.write(who.tenant, ticket, work)
    if written.outcome is WriteOutcome.CREATED:
        desk.vectors.catch_up(who.tenant, MemoryType.EPISODE, written.id, ticket)
    return written


def idempotency_key(who: Principal, request: StoreEpisode, butler: str, secret: bytes) -> str | None:
    """The caller's key; else, within a named session, the content itself (E6)."""
    if request.idempotency_key:
        return repeat_key(secret, who, MemoryType.EPISODE, request.idempotency_key, butler)
    if request.session:
        return digest(secret, "said", butler, request.session, request.content)
    return None


def _values(request: StoreEpisode, butler: str, now: datetime, settings: MemorySettings) -> dict[str, Any]:
    session = request.session
    metadata = dict(request.metadata)
    session_id = session_uuid(session) if session else None
    if session and str(session_id) != session:
        metadata["session_ref"] = session
    return {
        "state": EpisodeState.ACTIVE,
        "butler": butler,
        "session_id": session_id,
        "content": request.content,
        "content_status": ContentStatus.PLAIN,
        "importance": request.importance,
        "consolidation_status": ConsolidationStatus.PENDING,
        "consolidation_attempts": 0,
        "last_consolidation_error": None,
        "next_consolidation_retry_at": None,
        "occurred_at": request.occurred_at or now,
        "created_at": now,
        "expires_at": now + _ttl(request.source_kind, settings),
        "request_id": request.request_context.request_id,
        "source_kind": request.source_kind,
        "tags": request.tags,
        "metadata": metadata,
    }


def _ttl(kind: SourceKind, settings: MemorySettings) -> timedelta:
    """Imported history is not short-lived by accident (E8)."""
    days = settings.episodes.import_ttl_days if kind is SourceKind.IMPORTED else settings.episode_ttl_days
    return timedelta(days=days)
