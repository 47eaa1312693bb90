"""One short method per thing an agent or a person can ask. Every front calls these, and nothing below them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from butler_memory.consolidation import decisions
from butler_memory.consolidation.apply import shape_of
from butler_memory.consolidation.decisions import review_shapes
from butler_memory.domain.clock import Clock
from butler_memory.domain.decay import effective_confidence
from butler_memory.domain.kinds import ApplicationOutcome, Maturity, MemoryType, Relation, Tier
from butler_memory.domain.predicates import Predicate, Registry
from butler_memory.domain.records import AnyMemory, Episode, Rule
from butler_memory.domain.requests import (
    BuildContext,
    BuildContexts,
    ConfirmMemory,
    EditMemory,
    IngestBatch,
    MarkRule,
    OneMemory,
    RecallMemories,
    Request,
    RestoreMemory,
    SearchMemories,
    SetStanding,
    Stats,
    StoreEpisode,
    StoreFact,
    StoreMemory,
    StoreRule,
    StreamActivity,
    parse,
)
from butler_memory.domain.schedule import Timetable
from butler_memory.domain.tiers import PERMANENCE_OF, source_of, tier_of
from butler_memory.errors import ButlerMemoryError, NotFound, Unavailable
from butler_memory.postgres import important, memories, served, stats
from butler_memory.postgres.changes import plain_json
from butler_memory.postgres.database import Conn
from butler_memory.retrieval import search
from butler_memory.retrieval.activity import activity
from butler_memory.retrieval.context import Context, again, contexts
from butler_memory.retrieval.history import history
from butler_memory.retrieval.reader import Reader
from butler_memory.retrieval.replay import replay
from butler_memory.retrieval.search import Answer
from butler_memory.retrieval.standing import jobs_shape, stats_shape
from butler_memory.security.principal import Principal, own_butler, readable_scopes, require_admin
from butler_memory.writing import edit, episodes, facts, lifecycle, marks, predicates, rules, standing
from butler_memory.writing.desk import Desk, Written, visible

Json = dict[str, Any]
RequestT = TypeVar("RequestT", bound=Request)


class Memory:
    """The engine. Reads the clock once per call; takes raw arguments, answers in the shapes of appendix B."""

    def __init__(self, desk: Desk, reader: Reader, clock: Clock, timetable: Timetable) -> None:
        self._desk = desk
        self._reader = reader
        self._clock = clock
        self._timetable = timetable

    async def search(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(SearchMemories, arguments)
        answer = await search.search(self._reader, who, request, self._clock())
        return _answer_shape(answer, request, explain=request.explain)

    async def recall(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(RecallMemories, arguments)
        answer = await search.recall(self._reader, who, request, self._clock())
        return _answer_shape(answer, request, explain=request.explain)

    async def context(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        """The block and what is said about it; a failure of ours is an empty block with a status (C6)."""
        request = self._parse(BuildContext, arguments)
        made = (await contexts(self._reader, who, [request], self._clock()))[0]
        return _context_shape(made, request)

    async def context_batch(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        """One embedding batch and one round trip for all; a malformed item gets its error shape (C8)."""
        batch = self._parse(BuildContexts, arguments)
        items = [_as_item(item, batch.request_context.given()) for item in batch.requests]
        checked = [self._checked(who, item) for item in items]
        wanted = [request for request in checked if isinstance(request, BuildContext)]
        made = iter(await contexts(self._reader, who, wanted, self._clock()))
        results = [
            _context_shape(next(made), request)
            if isinstance(request, BuildContext)
            else request.as_dict() | {"request_context": _lineage_of(item, batch)}
            for item, request in zip(items, checked, strict=True)
        ]
        return {"results": results, "request_context": batch.request_context.given()}

    def _checked(self, who: Principal, item: Json) -> BuildContext | ButlerMemoryError:
        """One item of a batch, or why it is refused."""
        try:
            request = self._parse(BuildContext, item)
            own_butler(who, request.butler)
        except ButlerMemoryError as error:
            return error
        return request

    async def served_list(self, who: Principal, butler: str | None, limit: int) -> list[Json]:
        """What sessions were served, newest first: of the caller's butler, or of all for who sees the tenant."""
        wanted = butler if who.sees_all else own_butler(who, butler)
        await self._reader.served.flush()
        found = await self._desk.database.run(who.tenant, lambda conn: served.newest(conn, who.tenant, wanted, limit))
        return [plain_json(vars(each)) for each in found]

    async def served_show(self, who: Principal, served_id: UUID, *, compare: bool) -> Json:
        """One block as it was served; with `compare`, also what the same request would get now."""
        await self._reader.served.flush()
        found = await self._desk.database.run(who.tenant, lambda conn: served.find(conn, who.tenant, served_id))
        if found is None or not (who.sees_all or found.butler == who.butler):
            raise NotFound("Nothing was served under this id.", field="id", recovery="'served list' shows what was.")
        shape: Json = {"served": plain_json(vars(found))}
        if compare:
            now = await again(self._reader, who, found, self._clock())
            shape["now"] = None if now is None else {"block": now.block, **now.meta()}
        return shape

    async def store_episode(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(StoreEpisode, arguments)
        return _shape(await episodes.store_episode(self._desk, who, request, self._clock()), request)

    async def store_fact(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(StoreFact, arguments)
        return _shape(await facts.store_fact(self._desk, who, request, self._clock()), request)

    async def store_rule(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(StoreRule, arguments)
        return _shape(await rules.store_rule(self._desk, who, request, self._clock()), request)

    async def store(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        """A note for a tier (J4): what happened is an episode, what is to last a fact."""
        request = self._parse(StoreMemory, arguments)
        note: Json = {
            "content": request.content,
            "tags": request.tags,
            "request_context": request.request_context.given(),
        }
        if request.tier is Tier.EDEN:
            return await self.store_episode(who, note)
        as_fact = {"subject": "user", "predicate": "note", "permanence": PERMANENCE_OF[request.tier]}
        return await self.store_fact(who, note | as_fact)

    async def ingest_batch(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        """Each item stands for itself: a write shape or an error shape, in the order given."""
        request = self._parse(IngestBatch, arguments)
        results = await asyncio.gather(*(self._ingest_one(who, item, request) for item in request.episodes))
        return {"results": results, "request_context": request.request_context.given()}

    async def _ingest_one(self, who: Principal, item: Any, batch: IngestBatch) -> Json:
        arguments = _as_item(item, batch.request_context.given())
        try:
            return await self.store_episode(who, arguments)
        except ButlerMemoryError as error:
            return error.as_dict() | {"request_context": _lineage_of(arguments, batch)}

    async def get(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(OneMemory, arguments)
        now = self._clock()

        async def work(conn: Conn) -> Json:
            memory = await visible(conn, who, request.type, request.id)
            beside = await memories.beside(conn, who.tenant, memory.type, memory.id)
            links = await memories.links(conn, who.tenant, memory.type, memory.id)
            sources = [x["id"] for x in links if x["way"] == "out" and x["relation"] == Relation.DERIVED_FROM]
            known = await memories.episode_status(conn, who.tenant, sources)
            shape: Json = plain_json(
                {
                    "memory": record_shape(memory, now) | beside,
                    "links": {way: [_link(x) for x in links if x["way"] == way] for way in ("in", "out")},
                    "provenance": [
                        {"type": MemoryType.EPISODE, "id": source, "status": known.get(source, "erased")}
                        for source in sources
                    ],
                    "request_context": request.request_context.given(),
                }
            )
            return shape

        found = await self._desk.database.run(who.tenant, work)
        self._reader.references.bump(who.tenant, [(request.type, request.id)], now)
        return found

    async def confirm(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(ConfirmMemory, arguments)
        return _shape(await lifecycle.confirm(self._desk, who, request, self._clock()), request)

    async def mark_helpful(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        return await self._mark(who, arguments, ApplicationOutcome.HELPFUL)

    async def mark_harmful(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        return await self._mark(who, arguments, ApplicationOutcome.HARMFUL)

    async def _mark(self, who: Principal, arguments: Mapping[str, Any], outcome: ApplicationOutcome) -> Json:
        request = self._parse(MarkRule, arguments)
        return _shape(await marks.mark(self._desk, who, request, outcome, self._clock()), request)

    async def set_standing(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(SetStanding, arguments)
        return _shape(await standing.set_standing(self._desk, who, request, self._clock()), request)

    async def forget(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(OneMemory, arguments)
        return _shape(await lifecycle.forget(self._desk, who, request, self._clock()), request)

    async def restore(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(RestoreMemory, arguments)
        return _shape(await lifecycle.restore(self._desk, who, request, self._clock()), request)

    async def edit(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(EditMemory, arguments)
        return _shape(await edit.edit(self._desk, who, request, self._clock()), request)

    async def stats(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(Stats, arguments)
        scopes = readable_scopes(who, request.scope or ("*" if who.sees_all else None))
        now = self._clock()
        threshold = self._desk.settings.facts.retrieval_confidence_threshold

        async def work(conn: Conn) -> Json:
            found = await stats.counts(conn, who.tenant, list(scopes) if scopes else None, now, threshold)
            shards, last = await stats.jobs(conn, who.tenant)
            return stats_shape(found, shards, self._timetable, now) | {
                "jobs": jobs_shape(shards, last, self._timetable, now)
            }

        shape: Json = plain_json(await self._desk.database.run(who.tenant, work))
        return shape | {"request_context": request.request_context.given()}

    async def unconfirmed(self, who: Principal, limit: int) -> list[Json]:
        """Important facts that have faded: served as unconfirmed, until somebody says whether they still hold (J3)."""
        scopes = readable_scopes(who, "*" if who.sees_all else None)
        wanted = list(scopes) if scopes else None
        now = self._clock()
        threshold = self._desk.settings.facts.retrieval_confidence_threshold
        found = await self._desk.database.run(
            who.tenant, lambda conn: important.unconfirmed(conn, who.tenant, wanted, now, threshold, limit)
        )
        return [plain_json(record_shape(fact, now) | {"line": fact.line}) for fact in found]

    async def reviews(self, who: Principal, limit: int) -> list[Json]:
        """What waits for a person's word: claims against what the user stated, proposals that retire much."""
        require_admin(who)
        found = await self._desk.database.run(who.tenant, lambda conn: review_shapes(conn, who.tenant, limit))
        return [plain_json(each) for each in found]

    async def review(self, who: Principal, review_id: UUID) -> Json:
        """One of these, and what accepting it would do."""
        return dict(plain_json(await decisions.show(self._desk, who, review_id, self._clock())))

    async def decide_review(self, who: Principal, review_id: UUID, *, accept: bool) -> Json:
        decided = await decisions.decide(self._desk, who, review_id, accept=accept, now=self._clock())
        applied = decided.applied
        shape: Json = {"id": decided.review.id, "kind": decided.review.kind, "state": decided.state}
        return dict(plain_json(shape | {"items": [shape_of(item) for item in applied.items] if applied else []}))

    async def requeue(self, who: Principal, ids: Sequence[UUID] | None) -> Json:
        """Episodes that failed or were given up are read again."""
        requeued = await decisions.requeue(self._desk, who, ids, self._clock())
        return {"requeued": [str(each) for each in requeued]}

    async def list_newest(
        self, who: Principal, kind: MemoryType, scope: str | None, states: list[str] | None, limit: int
    ) -> list[Json]:
        scopes = readable_scopes(who, scope or ("*" if who.sees_all else None))
        now = self._clock()
        found = await self._desk.database.run(
            who.tenant,
            lambda conn: memories.newest(conn, who.tenant, kind, list(scopes) if scopes else None, states, limit),
        )
        return [plain_json(record_shape(memory, now)) for memory in found]

    async def activity_stream(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        request = self._parse(StreamActivity, arguments)
        found = await activity(self._desk.database, who, request, self._clock())
        return found.as_dict() | {"request_context": request.request_context.given()}

    async def history(self, who: Principal, arguments: Mapping[str, Any]) -> Json:
        """Everything that happened to one memory, told in words (L4)."""
        request = self._parse(OneMemory, arguments)
        found = await history(self._desk.database, who, request)
        return found.as_dict() | {"request_context": request.request_context.given()}

    async def replay(self, who: Principal, *, verify: bool, progress: Callable[[int], None]) -> Json:
        """The fold of all events of the caller's tenant; with `verify`, in what the tables differ from it (L3)."""
        require_admin(who)
        return (await replay(self._desk.database, who.tenant, verify=verify, progress=progress)).as_dict()

    async def predicates(self, who: Principal) -> Registry:
        return await predicates.registry(self._desk, who)

    async def set_predicate(self, who: Principal, entry: Predicate) -> int:
        return await predicates.set_predicate(self._desk, who, entry, Request(), self._clock())

    def _parse(self, model: type[RequestT], arguments: Mapping[str, Any]) -> RequestT:
        if not self._desk.settings.enabled:
            raise Unavailable("The memory is switched off (enabled = false).", reason="disabled")
        return parse(model, arguments)


def record_shape(memory: AnyMemory, now: datetime) -> Json:
    """All columns but the vectors, with what a reader wants to know beside them."""
    shape: Json = {"type": memory.type, **vars(memory)}
    if isinstance(memory, Episode):
        return shape | {
            "consolidated": memory.consolidation_status == "consolidated",
            "effective_confidence": 1.0,
            "tier": Tier.EDEN,
            "source": source_of(memory.type, None, memory.session_id),
        }
    warning = isinstance(memory, Rule) and memory.maturity is Maturity.ANTI_PATTERN  # which does not decay (R4)
    rate = 0.0 if warning else memory.decay_rate
    return shape | {
        "effective_confidence": effective_confidence(memory.confidence, rate, memory.last_confirmed_at, now),
        "tier": tier_of(memory.type, memory.permanence, memory.maturity if isinstance(memory, Rule) else None),
        "source": source_of(memory.type, memory.source_episode_id, memory.source_session_id),
    }


def _answer_shape(answer: Answer, request: Request, *, explain: bool) -> Json:
    shape: Json = plain_json(answer.as_dict(explain=explain))
    return shape | {"request_context": request.request_context.given()}


def _shape(written: Written, request: Request) -> Json:
    return written.as_dict() | {"request_context": request.request_context.given()}


def _as_item(item: Any, lineage: Mapping[str, str]) -> Json:
    """The arguments of one item of a batch, under the batch's lineage; what is no object is refused as an argument."""
    given = item if isinstance(item, Mapping) else {"item": item}
    own = given.get("request_context")
    return {**given, "request_context": lineage if own is None else own}


def _lineage_of(item: Json, batch: Request) -> dict[str, str]:
    """The item's own ids where they are well-formed, as in any answer (T2)."""
    try:
        return parse(Request, {"request_context": item["request_context"]}).request_context.given()
    except ButlerMemoryError:
        return batch.request_context.given()


def _context_shape(context: Context, request: Request) -> Json:
    return {"block": context.block, **context.meta(), "request_context": request.request_context.given()}


def _link(row: Mapping[str, Any]) -> Json:
    return {name: row[name] for name in ("relation", "type", "id", "created_at")}
