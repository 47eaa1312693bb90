"""One short method per thing an agent or a person can ask. Every front calls these, and nothing below them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from butler_memory.domain.clock import Clock, days_between
from butler_memory.domain.decay import effective_confidence
from butler_memory.domain.kinds import ApplicationOutcome, Maturity, MemoryType, Relation
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
    StoreRule,
    StreamActivity,
    parse,
)
from butler_memory.domain.schedule import Timetable
from butler_memory.errors import ButlerMemoryError, NotFound, Unavailable
from butler_memory.postgres import memories, served, stats
from butler_memory.postgres.changes import plain_json
from butler_memory.postgres.database import Conn
from butler_memory.retrieval import search
from butler_memory.retrieval.activity import activity
from butler_memory.retrieval.context import Context, again, contexts
from butler_memory.retrieval.history import history
from butler_memory.retrieval.reader import Reader
from butler_memory.retrieval.replay import replay
from butler_memory.retrieval.search import Answer
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
        found = await self._desk.database.run(
            who.tenant, lambda conn: stats.counts(conn, who.tenant, list(scopes) if scopes else None)
        )
        return _stats_shape(found, now) | {"request_context": request.request_context.given()}

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
        return shape | {"consolidated": memory.consolidation_status == "consolidated", "effective_confidence": 1.0}
    warning = isinstance(memory, Rule) and memory.maturity is Maturity.ANTI_PATTERN  # which does not decay (R4)
    rate = 0.0 if warning else memory.decay_rate
    return shape | {
        "effective_confidence": effective_confidence(memory.confidence, rate, memory.last_confirmed_at, now)
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


def _stats_shape(found: Mapping[str, Any], now: datetime) -> Json:
    pending = found["episodes_by_consolidation"].get("pending", 0)
    oldest = found["oldest_pending"]
    return {
        "episodes": {
            "by_state": found["episodes_by_state"],
            "by_consolidation_status": found["episodes_by_consolidation"],
        },
        "facts": {"by_state": found["facts_by_state"], "by_permanence": found["facts_by_permanence"]},
        "rules": {"by_state": found["rules_by_state"], "by_maturity": found["rules_by_maturity"]},
        "backlog": {
            "pending": pending,
            "oldest_age_hours": round(days_between(oldest, now) * 24, 3) if oldest else None,
        },
        "without_vector": found["without_vector"],
    }
