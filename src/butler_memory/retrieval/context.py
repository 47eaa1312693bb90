"""The block that a session starts with: chosen like a recall, written within a budget, logged when served (C1 to C9).

Fails open for callers: an outage or a timeout is an empty block that says so, never an exception in their session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from butler_memory.domain import block
from butler_memory.domain.block import Block, Entry, Line, entry_of
from butler_memory.domain.clock import new_id
from butler_memory.domain.kinds import ContextStatus, MemoryType, SearchMode
from butler_memory.domain.ranking import Candidate, Scored, above_floor, by_composite, in_order_of_trust, with_names
from butler_memory.domain.requests import QUERY_BYTES, BuildContext, session_uuid
from butler_memory.errors import RateLimited, Unavailable
from butler_memory.postgres.search import Asked, Found, Gating, Question, ranked_many
from butler_memory.postgres.served import ServedContext
from butler_memory.retrieval.reader import Reader, filters_for
from butler_memory.security.principal import Principal, own_butler

# A session that waits longer than this for its memory starts without.
PATIENCE_SECONDS = 2.0
# In characters: about what the embedding model reads to the end.
LONG_PROMPT = 1000
HEAD_AND_TAIL = "\n…\n"

NO_MODEL = "no_embedding_model"
PROMPT_CUT = "prompt_cut"


@dataclass(frozen=True)
class Context:
    """What the caller gets. `degraded` says what was missing; a failure is degraded and empty, never `empty`."""

    block: str
    status: ContextStatus
    degraded: tuple[str, ...]
    tokens: int
    tokenizer: str
    served_id: UUID | None

    def meta(self) -> dict[str, Any]:
        return {
            "status": self.status.value,
            "degraded": list(self.degraded),
            "tokens": self.tokens,
            "tokenizer": self.tokenizer,
            "served_id": str(self.served_id) if self.served_id else None,
        }


@dataclass(frozen=True)
class _Wanted:
    """One request, with the prompt as it is used and the butler it is for."""

    who: Principal
    request: BuildContext
    prompt: str
    budget: int

    @property
    def parts(self) -> list[str]:
        """What is asked: the prompt, and of a long one its first and last line too.

        The model reads only the beginning of a long text, and in a pasted log the question's words are few.
        """
        if len(self.prompt) <= LONG_PROMPT:
            return [self.prompt]
        lines = [line.strip()[:LONG_PROMPT] for line in self.prompt.splitlines() if line.strip()]
        return list(dict.fromkeys([self.prompt, lines[0], lines[-1]]))

    @property
    def is_cut(self) -> bool:
        return self.prompt != self.request.trigger_prompt


async def contexts(
    reader: Reader, who: Principal, requests: Sequence[BuildContext], now: datetime, *, log: bool = True
) -> list[Context]:
    """One embedding batch and one round trip to the database for all of them (C8)."""
    wanted = [_wanted(reader, who, request) for request in requests]
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            parts = [(each, part) for each in wanted for part in each.parts]
            asked = await reader.asked_many([part for _, part in parts])
            questions = [_question(reader, each, one, now) for (each, _), one in zip(parts, asked, strict=True)]
            found = await reader.database.read(who.tenant, lambda conn: ranked_many(conn, who.tenant, questions))
    except (Unavailable, RateLimited) as error:
        return [_failed(reader, error.reason or error.code) for _ in wanted]
    except TimeoutError:
        return [_failed(reader, "timeout") for _ in wanted]
    answers = iter(zip(asked, found, strict=True))
    return [_context(reader, each, [next(answers) for _ in each.parts], now, log=log) for each in wanted]


async def again(reader: Reader, who: Principal, served: ServedContext, now: datetime) -> Context | None:
    """What would be served now for the same request; None where its text has been erased."""
    if served.body is None:
        return None
    speaker = replace(who, butler=served.butler, project=served.body["project"])
    request = BuildContext(trigger_prompt=served.body["prompt"], token_budget=served.budget)
    return (await contexts(reader, speaker, [request], now, log=False))[0]


def _wanted(reader: Reader, who: Principal, request: BuildContext) -> _Wanted:
    speaker = replace(who, butler=own_butler(who, request.butler))
    given = request.token_budget
    budget = reader.settings.retrieval.context_token_budget if given is None else given
    return _Wanted(speaker, request, cut_prompt(request.trigger_prompt), budget)


def cut_prompt(prompt: str) -> str:
    """What a session is about stands at the beginning or the end of a prompt: a pasted log keeps both (C6)."""
    data = prompt.encode("utf-8")
    if len(data) <= QUERY_BYTES:
        return prompt
    half = (QUERY_BYTES - len(HEAD_AND_TAIL.encode())) // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return head + HEAD_AND_TAIL + tail


def _question(reader: Reader, wanted: _Wanted, asked: Asked, now: datetime) -> Question:
    filters = filters_for(wanted.who, None, tuple(MemoryType), now, reader.threshold(None))
    gating = Gating.BEST_OF_EACH if wanted.prompt else Gating.NEWEST_OF_EACH
    return reader.question(asked, filters, SearchMode.HYBRID, reader.settings.retrieval.gate, gating)


def _failed(reader: Reader, reason: str) -> Context:
    return Context("", ContextStatus.DEGRADED, (reason,), 0, reader.counter.name, None)


def _context(
    reader: Reader, wanted: _Wanted, answers: Sequence[tuple[Asked, Found]], now: datetime, *, log: bool
) -> Context:
    retrieval = reader.settings.retrieval
    scored = _chosen(reader, wanted, _merged(answers), now)
    made = block.build(
        {kind: [entry_of(item, now, core=core) for item, core in items] for kind, items in scored.items()},
        budget=wanted.budget,
        quotas=retrieval.quotas,
        core_share=retrieval.core_share,
        prompt=wanted.prompt,
        count=reader.counter.count,
    )
    degraded = _degraded(wanted, answers[0][0])
    status = _status(made, degraded)
    context = Context(made.text, status, degraded, made.tokens, reader.counter.name, new_id(now))
    if log:
        signals = {item.candidate.id: item.signals for items in scored.values() for item, _ in items}
        reader.served.add(wanted.who.tenant, _served(wanted, context, made, signals, now))
    return context


def _merged(answers: Sequence[tuple[Asked, Found]]) -> list[Candidate]:
    """Each memory as the part of the prompt sees it that it fits best."""
    best: dict[UUID, Candidate] = {}
    for asked, found in answers:
        for candidate in with_names(found.candidates, asked.text):
            known = best.get(candidate.id)
            if known is None or candidate.absolute > known.absolute:
                best[candidate.id] = candidate
    return list(best.values())


def _chosen(
    reader: Reader, wanted: _Wanted, candidates: list[Candidate], now: datetime
) -> dict[MemoryType, list[tuple[Scored, bool]]]:
    """Each type by itself, best first: what the prompt asks for, and core memory, marked where only that."""
    weights = reader.settings.weights_of(wanted.who.butler)
    chosen = {}
    for kind in MemoryType:
        of_kind = [candidate for candidate in candidates if candidate.type is kind]
        relevant = above_floor(of_kind, reader.settings.retrieval.floor) if wanted.prompt else of_kind
        known = {candidate.id for candidate in relevant}
        core = [candidate for candidate in of_kind if candidate.is_core and candidate.id not in known]
        ordered = by_composite([*relevant, *core], weights, now, scale=of_kind)
        chosen[kind] = [(item, item.candidate.id not in known) for item in in_order_of_trust(ordered)]
    return chosen


def _degraded(wanted: _Wanted, asked: Asked) -> tuple[str, ...]:
    without_model = [NO_MODEL] if wanted.prompt and asked.vector is None else []
    return (*without_model, *([PROMPT_CUT] if wanted.is_cut else []))


def _status(made: Block, degraded: tuple[str, ...]) -> ContextStatus:
    if made.too_small:
        return ContextStatus.BUDGET_TOO_SMALL
    if degraded:
        return ContextStatus.DEGRADED
    return ContextStatus.OK if made.text else ContextStatus.EMPTY


def _served(
    wanted: _Wanted, context: Context, made: Block, signals: dict[UUID, dict[str, float]], now: datetime
) -> ServedContext:
    lineage = wanted.request.request_context
    assert context.served_id is not None
    return ServedContext(
        id=context.served_id,
        butler=wanted.who.butler,
        session_id=session_uuid(lineage.session_id) if lineage.session_id else None,
        request_id=lineage.request_id,
        served_at=now,
        status=context.status,
        budget=wanted.budget,
        tokens=context.tokens,
        tokenizer=context.tokenizer,
        items=[_item(line, signals[line.entry.id]) for line in made.lines],
        body={"prompt": wanted.prompt, "project": wanted.who.project, "block": context.block},
    )


def _item(line: Line, signals: dict[str, float]) -> dict[str, Any]:
    entry: Entry = line.entry
    return {
        "type": entry.type.value,
        "id": str(entry.id),
        "score": round(entry.score, 6),
        "signals": {name: round(value, 6) for name, value in signals.items()},
        "tokens": line.tokens,
        "core": entry.core,
        "cut": line.cut,
    }
