"""The block that a session starts with: chosen like a recall, written within a budget, logged when served (C1 to C9).

Fails open for callers: an outage or a timeout is an empty block that says so, never an exception in their session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any
from uuid import UUID

from butler_memory.domain import block
from butler_memory.domain.block import Block, Entry, Line, entry_of
from butler_memory.domain.clock import new_id
from butler_memory.domain.kinds import ContextStatus, MemoryType, SearchMode
from butler_memory.domain.ranking import Candidate, Scored, above_floor, by_composite, in_order_of_trust, with_names
from butler_memory.domain.requests import BATCH_CONTEXTS, QUERY_BYTES, BuildContext, session_uuid
from butler_memory.errors import RateLimited, Unavailable
from butler_memory.postgres.database import Conn
from butler_memory.postgres.search import Filters, Found, Gating, Question, ranked_many
from butler_memory.postgres.served import ServedContext
from butler_memory.retrieval.reader import Embedded, Reader
from butler_memory.security.principal import Principal, own_butler

# A session that waits longer than this for its memory starts without. A batch may take longer, by its questions.
PATIENCE_SECONDS = 2.0
FURTHER_QUESTION_SECONDS = 0.1
LONGEST_PATIENCE_SECONDS = 20.0
# A batch of ordinary size is one round trip (C8). A larger one goes on in small steps: a deadline takes only the last.
FIRST_STEP = BATCH_CONTEXTS
FURTHER_STEP = 10
# In characters: about what the embedding model reads to the end.
LONG_PROMPT = 1000
HEAD_AND_TAIL = "\n…\n"

TIMEOUT = "timeout"
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
class _Key:
    """What makes two questions the same one."""

    text: str
    filters: Filters

    @property
    def gating(self) -> Gating:
        return Gating.BEST_OF_EACH if self.text else Gating.NEWEST_OF_EACH


@dataclass(frozen=True)
class _Wanted:
    """One request, with the prompt as it is used and the butler it is for."""

    who: Principal
    request: BuildContext
    prompt: str
    budget: int
    filters: Filters

    @property
    def keys(self) -> list[_Key]:
        """What is asked: the prompt, and of a long one its first and last line too.

        The model reads only the beginning of a long text, and in a pasted log the question's words are few.
        """
        parts = [self.prompt]
        if len(self.prompt) > LONG_PROMPT:
            lines = [line.strip()[:LONG_PROMPT] for line in self.prompt.splitlines() if line.strip()]
            parts += [lines[0], lines[-1]]
        return [_Key(part, self.filters) for part in dict.fromkeys(parts)]

    @property
    def is_cut(self) -> bool:
        return self.prompt != self.request.trigger_prompt


@dataclass
class _Answers:
    """What has been found until the deadline, and why there is not more."""

    found: dict[_Key, tuple[Embedded, Found]] = field(default_factory=dict)
    failure: str = ""


async def contexts(
    reader: Reader, who: Principal, requests: Sequence[BuildContext], now: datetime, *, log: bool = True
) -> list[Context]:
    """One embedding batch and one round trip to the database for all of them (C8); what is in time is kept."""
    wanted = [_wanted(reader, who, request, now) for request in requests]
    answers = await _answers(reader, who.tenant, list(dict.fromkeys(key for each in wanted for key in each.keys)))
    return [
        _context(reader, each, [answers.found[key] for key in each.keys], now, log=log)
        if all(key in answers.found for key in each.keys)
        else failed(answers.failure, reader.counter.name)
        for each in wanted
    ]


async def _answers(reader: Reader, tenant: str, keys: Sequence[_Key]) -> _Answers:
    """Each question asked once, however many requests it belongs to."""
    answers = _Answers()
    if not keys:
        return answers
    try:
        async with asyncio.timeout(patience(len(keys))):
            while missing := [key for key in keys if key not in answers.found]:
                asked = await reader.asked_many(tenant, [key.text for key in missing])
                embedded = dict(zip(missing, asked, strict=True))
                await reader.database.read(tenant, partial(_find, tenant, reader, embedded, answers))
    except (Unavailable, RateLimited) as error:
        answers.failure = error.reason or error.code
    except TimeoutError:
        answers.failure = TIMEOUT
    return answers


async def _find(tenant: str, reader: Reader, embedded: Mapping[_Key, Embedded], answers: _Answers, conn: Conn) -> None:
    """Goes on where it was, should the connection be lost on the way; ends early where the vectors were swapped."""
    missing = [key for key in embedded if key not in answers.found]
    for step in _steps(missing):
        questions = [_question(reader, key, embedded[key]) for key in step]
        for key, found in zip(step, await ranked_many(conn, tenant, questions), strict=True):
            if not reader.was_current(tenant, embedded[key], found):
                return
            answers.found[key] = (embedded[key], found)


def _steps(keys: Sequence[_Key]) -> Iterator[Sequence[_Key]]:
    yield keys[:FIRST_STEP]
    for start in range(FIRST_STEP, len(keys), FURTHER_STEP):
        yield keys[start : start + FURTHER_STEP]


def patience(questions: int) -> float:
    return min(LONGEST_PATIENCE_SECONDS, PATIENCE_SECONDS + FURTHER_QUESTION_SECONDS * max(0, questions - 1))


async def again(reader: Reader, who: Principal, served: ServedContext, now: datetime) -> Context | None:
    """What would be served now for the same request; None where its text has been erased."""
    if served.body is None:
        return None
    speaker = replace(who, butler=served.butler, project=served.body["project"])
    request = BuildContext(trigger_prompt=served.body["prompt"], token_budget=served.budget)
    return (await contexts(reader, speaker, [request], now, log=False))[0]


def _wanted(reader: Reader, who: Principal, request: BuildContext, now: datetime) -> _Wanted:
    speaker = replace(who, butler=own_butler(who, request.butler))
    given = request.token_budget
    budget = reader.settings.retrieval.context_token_budget if given is None else given
    filters = reader.filters(speaker, None, tuple(MemoryType), now)
    return _Wanted(speaker, request, cut_prompt(request.trigger_prompt), budget, filters)


def cut_prompt(prompt: str) -> str:
    """What a session is about stands at the beginning or the end of a prompt: a pasted log keeps both (C6)."""
    data = prompt.encode("utf-8")
    if len(data) <= QUERY_BYTES:
        return prompt
    half = (QUERY_BYTES - len(HEAD_AND_TAIL.encode())) // 2
    head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return head + HEAD_AND_TAIL + tail


def _question(reader: Reader, key: _Key, embedded: Embedded) -> Question:
    return reader.question(embedded, key.filters, SearchMode.HYBRID, reader.settings.retrieval.gate, key.gating)


def failed(reason: str, tokenizer: str) -> Context:
    """What a caller gets instead of an error (C6)."""
    return Context("", ContextStatus.DEGRADED, (reason,), 0, tokenizer, None)


def _context(
    reader: Reader, wanted: _Wanted, answers: Sequence[tuple[Embedded, Found]], now: datetime, *, log: bool
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


def _merged(answers: Sequence[tuple[Embedded, Found]]) -> list[Candidate]:
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


def _degraded(wanted: _Wanted, asked: Embedded) -> tuple[str, ...]:
    return (*([asked.lacking] if asked.lacking else []), *([PROMPT_CUT] if wanted.is_cut else []))


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
