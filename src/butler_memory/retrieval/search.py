"""`memory_search` ranks by relevance; `memory_recall` by the composite inside the gate, above the floor (S9, S10)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from butler_memory.domain.clock import utc_text
from butler_memory.domain.kinds import MemoryType, SearchMode
from butler_memory.domain.predicates import Registry
from butler_memory.domain.ranking import Candidate, Scored, above_floor, by_composite, in_order, with_names
from butler_memory.domain.requests import RecallMemories, SearchMemories
from butler_memory.domain.text import key, subject_key
from butler_memory.domain.tiers import TYPES_OF, source_of, tier_of
from butler_memory.postgres import predicates
from butler_memory.postgres import search as table
from butler_memory.postgres.database import Conn
from butler_memory.postgres.search import Filters, Found, Question
from butler_memory.retrieval.reader import Embedded, Reader
from butler_memory.security.principal import Principal

RECALLED = (MemoryType.FACT, MemoryType.RULE)


@dataclass(frozen=True)
class Answer:
    """Results in order, what was held back, and what was missing while answering."""

    scored: list[Scored]
    score_kind: str
    hidden: dict[str, int]
    degraded: list[str]

    def as_dict(self, *, explain: bool) -> dict[str, Any]:
        return {
            "results": [result_shape(item, self.score_kind, explain=explain) for item in self.scored],
            "hidden": self.hidden,
            "status": "degraded" if self.degraded else "ok",
            "degraded": self.degraded,
        }


async def search(reader: Reader, who: Principal, request: SearchMemories, now: datetime) -> Answer:
    limit = request.limit or reader.settings.retrieval.default_limit
    filters = _filters(reader, who, request, now)
    if not request.query:
        found = await reader.database.read(who.tenant, lambda conn: _browse(conn, who, request, filters, limit))
        return _answer(reader, who, [Scored(c, 0.0, {}) for c in found.candidates], "newest", found, 0, [], now)
    mode = request.mode or SearchMode(reader.settings.retrieval.default_mode)
    composite = request.order == "composite"
    gate = max(limit, reader.settings.retrieval.gate) if composite else limit

    async def ask(asked: Embedded) -> Found:
        question = reader.question(asked, filters, mode, gate)
        return await reader.database.read(who.tenant, lambda conn: _ranked(conn, who, request, question))

    asked, found = await reader.answer(who.tenant, request.query, ask)
    degraded = [asked.lacking] if asked.lacking and mode is not SearchMode.KEYWORD else []
    if composite:
        scored = by_composite(found.candidates, reader.settings.weights_of(who.butler), now)
    else:
        scored = in_order([Scored(c, c.fused, {}) for c in found.candidates])
    kind = "composite" if composite else "relevance"
    return _answer(reader, who, scored[:limit], kind, found, 0, degraded, now)


async def recall(reader: Reader, who: Principal, request: RecallMemories, now: datetime) -> Answer:
    retrieval = reader.settings.retrieval
    filters = reader.filters(who, request.scope, RECALLED, now, request.min_confidence)
    gate = max(request.limit or 0, retrieval.gate)  # who asks for more than the gate lets through, gets it

    async def ask(asked: Embedded) -> Found:
        question = reader.question(asked, filters, SearchMode.HYBRID, gate)
        return await reader.database.read(who.tenant, lambda conn: table.ranked(conn, who.tenant, question))

    asked, found = await reader.answer(who.tenant, request.topic, ask)
    relevant = above_floor(with_names(found.candidates, request.topic), retrieval.floor)
    scored = by_composite(relevant, reader.settings.weights_of(who.butler), now)
    degraded = [asked.lacking] if asked.lacking else []
    below = len(found.candidates) - len(relevant)
    limit = request.limit or retrieval.default_limit
    return _answer(reader, who, scored[:limit], "composite", found, below, degraded, now)


def _answer(
    reader: Reader,
    who: Principal,
    scored: list[Scored],
    kind: str,
    found: Found,
    below_floor: int,
    degraded: list[str],
    now: datetime,
) -> Answer:
    reader.references.bump(who.tenant, [(s.candidate.type, s.candidate.id) for s in scored], now)
    hidden = {"decayed": found.decayed, "below_floor": below_floor, "shadowed": found.shadowed}
    return Answer(scored, kind, hidden, degraded)


def _filters(reader: Reader, who: Principal, request: SearchMemories, now: datetime) -> Filters:
    types = tuple(request.types)
    if request.subject or request.predicate or request.valid_at:
        types = (MemoryType.FACT,)
    if request.tier:
        types = tuple(kind for kind in types if kind in TYPES_OF[request.tier])
    plain = reader.filters(who, request.scope, types, now, request.min_confidence)
    return replace(
        plain,
        tier=request.tier,
        tags=tuple(request.tags),
        subject_key=subject_key(request.subject) if request.subject else None,
        since=request.since,
        until=request.until,
        valid_at=request.valid_at,
    )


async def _with_predicate(conn: Conn, who: Principal, predicate: str | None, filters: Filters) -> Filters:
    """By the word as written and by what it is an alias of."""
    if predicate is None:
        return filters
    registry = Registry(await predicates.own_predicates(conn, who.tenant))
    return replace(filters, predicate_keys=tuple({key(predicate), registry.find(predicate).name}))


async def _browse(conn: Conn, who: Principal, request: SearchMemories, filters: Filters, limit: int) -> Found:
    return await table.newest(conn, who.tenant, await _with_predicate(conn, who, request.predicate, filters), limit)


async def _ranked(conn: Conn, who: Principal, request: SearchMemories, question: Question) -> Found:
    narrowed = await _with_predicate(conn, who, request.predicate, question.filters)
    return await table.ranked(conn, who.tenant, replace(question, filters=narrowed))


def result_shape(scored: Scored, score_kind: str, *, explain: bool) -> dict[str, Any]:
    candidate = scored.candidate
    row = candidate.row
    shape: dict[str, Any] = {
        "type": candidate.type,
        "id": candidate.id,
        **{name: row[name] for name in ("content", "subject", "predicate", "scope", "state")},
        **_standing(row),
        "tier": tier_of(candidate.type, row["permanence"], row["maturity"]),
        "source": source_of(candidate.type, row["source_episode_id"], row["source_session_id"]),
        "source_kind": row["source_kind"],
        "contested": row["contested"],
        "effective_confidence": candidate.effective_confidence,
        **({"occurred_at": row["occurred_at"]} if row["occurred_at"] else {}),
        "created_at": candidate.created_at,
        "last_confirmed_at": row["last_confirmed_at"],
        **({"unconfirmed_since": row["last_confirmed_at"]} if row["unconfirmed"] else {}),
        "tags": row["tags"],
        "metadata": row["metadata"],
        "score": scored.score,
        "score_kind": score_kind,
    }
    return shape | (_explanation(scored) if explain else {})


def _standing(row: dict[str, Any]) -> dict[str, Any]:
    if row["maturity"]:
        return {"maturity": row["maturity"]}
    return {"permanence": row["permanence"]} if row["permanence"] else {}


def _explanation(scored: Scored) -> dict[str, Any]:
    c = scored.candidate
    return {
        "signals": {
            **scored.signals,
            "fused": c.fused,
            "cosine": c.cosine,
            "lexical": c.lexical,
            "coverage": c.coverage,
            "absolute": c.absolute,
        },
        "ranks": {"semantic": c.dense_rank, "keyword": c.lexical_rank},
        "why": _why(c),
    }


def _why(candidate: Candidate) -> str:
    parts = []
    if candidate.dense_rank:
        parts.append(f"meaning: number {candidate.dense_rank}, cosine {candidate.cosine:.2f}")
    if candidate.lexical_rank:
        parts.append(f"words: number {candidate.lexical_rank}, {candidate.coverage or 0:.0%} of the question")
    referenced = candidate.last_referenced_at
    parts.append(f"last used {utc_text(referenced)[:10]}" if referenced else "never used before")
    return "; ".join(parts)
