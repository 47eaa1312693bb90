"""Whatever is done, in whatever order, while the clock jumps: the laws of SPEC 1 to 4 hold.

one live row per key, and one live rule per meaning       F3, R8
counters equal the applications                           R5
every step of every life is one that is allowed           F2, R1, E2
the events fold into exactly the tables                   L2, L3
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from uuid import uuid4

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from butler_memory import bootstrap
from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import (
    Cardinality,
    ConsolidationStatus,
    EpisodeState,
    JobName,
    MemoryType,
    Permanence,
    Role,
    RuleStatus,
    RunOutcome,
    Standing,
    Validity,
)
from butler_memory.domain.lifecycle import CONSOLIDATION_STEPS, EPISODE_STEPS, FACT_STEPS, RULE_STEPS
from butler_memory.domain.predicates import Predicate
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.errors import Conflict
from butler_memory.postgres.provision import Urls
from caller import Caller, Json
from conftest import Hands, Template, rows, settings_for
from ledger import check_ledger

T = TypeVar("T")

EXAMPLES = 15
STEPS = 30
# Few words, so that keys meet; one predicate of each kind.
PREDICATES = st.sampled_from(["employer", "allergy", "weight", "birthday"])
CONTENTS = st.sampled_from(["red", "blue", "Red.", "green tea", "User: I am allergic to nuts. I work at Acme."])
PERMANENCE = st.sampled_from([None, "permanent", "standard", "volatile", "ephemeral"])
SOURCES = st.sampled_from(["user_stated", "agent_inferred", "imported"])
SESSIONS = st.sampled_from(["s1", "s2", "s3"])
SCOPES = st.sampled_from([None, "global", "health"])
RULES = st.sampled_from(["Be brief", "Never call before nine", "Send the report on Fridays"])
DAYS = st.sampled_from([-40.0, -0.5, 0.01, 1.0, 9.0, 35.0, 120.0, 400.0])

LEGAL: dict[tuple[str, str], frozenset[Any]] = {
    ("fact", "validity"): frozenset((a.value, b.value) for a, b in FACT_STEPS),
    ("rule", "status"): frozenset((a.value, b.value) for a, b in RULE_STEPS),
    ("episode", "state"): frozenset((a.value, b.value) for a, b in EPISODE_STEPS),
    ("episode", "consolidation_status"): frozenset((a.value, b.value) for a, b in CONSOLIDATION_STEPS),
}
BORN: dict[tuple[str, str], set[str]] = {
    ("fact", "validity"): {Validity.ACTIVE, Validity.SUPERSEDED},
    ("rule", "status"): {RuleStatus.ACTIVE},
    ("episode", "state"): {EpisodeState.ACTIVE},
    ("episode", "consolidation_status"): {ConsolidationStatus.PENDING},
}


class Stage:
    """One engine for all examples; each example is a tenant of its own."""

    def __init__(self, runner: asyncio.Runner, engine: Engine, hands: Hands, urls: Urls) -> None:
        self.runner, self.engine, self.hands, self.urls = runner, engine, hands, urls

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)


class Life(RuleBasedStateMachine):
    stage: ClassVar[Stage]
    memories = Bundle("memories")
    rules = Bundle("rules")

    def __init__(self) -> None:
        super().__init__()
        self.stage.hands.now = datetime(2026, 3, 1, 12, tzinfo=UTC)
        self.tenant = f"t{uuid4().hex}"
        self.ask, self.admin = (self.stage.run(self._caller(role)) for role in (Role.BUTLER, Role.ADMIN))

    async def _caller(self, role: Role) -> Caller:
        access = self.stage.engine.access
        secret, _ = await access.create_token(self.tenant, "health", role)
        return Caller(self.stage.engine.memory, await access.authenticate(secret))

    def attempt(self, work: Coroutine[Any, Any, Json]) -> Json | None:
        """None where the state did not allow it. Any other refusal is a defect, an integrity error above all."""
        try:
            return self.stage.run(work)
        except Conflict:
            return None

    @rule(target=memories, predicate=PREDICATES, content=CONTENTS, permanence=PERMANENCE, source=SOURCES, scope=SCOPES,
          session=SESSIONS)  # fmt: skip
    def store_fact(
        self, predicate: str, content: str, permanence: str | None, source: str, scope: str | None, session: str
    ) -> Json:
        more = {"permanence": permanence, "source_kind": source, "scope": scope}
        written = self.attempt(self.ask.in_session(session).fact(content, predicate, **more))
        assert written is not None
        return written

    @rule(target=memories, text=CONTENTS, session=SESSIONS)
    def store_episode(self, text: str, session: str) -> Json:
        written = self.attempt(self.ask.in_session(session).episode(text))
        assert written is not None
        return written

    @rule(target=rules, text=RULES, scope=SCOPES)
    def store_rule(self, text: str, scope: str | None) -> Json:
        return self.attempt(self.ask.rule(text, scope=scope)) or {}

    @rule(memory=memories, session=SESSIONS)
    def confirm(self, memory: Json, session: str) -> None:
        if memory["type"] == MemoryType.FACT:
            self.attempt(self.ask.in_session(session).confirm(memory))

    @rule(memory=memories)
    def forget(self, memory: Json) -> None:
        self.attempt(self._if_there(memory, self.ask.forget))

    @rule(memory=memories, replace=st.booleans())
    def restore(self, memory: Json, replace: bool) -> None:
        self.attempt(self._if_there(memory, lambda it: self.ask.restore(it, replace=replace)))

    async def _if_there(self, memory: Json, act: Any) -> Json:
        """Episodes may have been deleted by the cleanup."""
        there = await rows(self.stage.urls, f"SELECT 1 FROM memory.{memory['type']}s WHERE id = %s", memory["id"])
        return dict(await act(memory)) if there else {}

    @rule(memory=memories, content=CONTENTS)
    def edit(self, memory: Json, content: str) -> None:
        if memory["type"] == MemoryType.FACT:
            self.attempt(self.ask.edit(memory, content=content))

    @rule(one=rules, helpful=st.booleans(), times=st.sampled_from([1, 1, 5, 16]))
    def mark(self, one: Json, helpful: bool, times: int) -> None:
        for _ in range(times if one else 0):
            tool = "mark_helpful" if helpful else "mark_harmful"
            self.attempt(self.ask.call(tool, {"rule_id": one["id"], "reason": "it was so"}))

    @rule(one=rules, standing=st.sampled_from(list(Standing)))
    def decide(self, one: Json, standing: Standing) -> None:
        if one:
            self.attempt(self.admin.call("set_standing", {"rule_id": one["id"], "standing": standing}))

    @rule(one=rules, back=st.booleans())
    def forget_or_restore_rule(self, one: Json, back: bool) -> None:
        if one:
            self.attempt(self.ask.restore(one, replace=True) if back else self.ask.forget(one))

    @rule(days=DAYS)
    def time_passes(self, days: float) -> None:
        self.stage.hands.now += timedelta(days=days)

    @rule(job=st.sampled_from([*JobName, JobName.DECAY_SWEEP]))
    def a_job_runs(self, job: JobName) -> None:
        for ran in self.stage.run(self.stage.engine.workers.run_now(job, self.tenant)):
            assert ran.run is not None
            assert ran.run.outcome is RunOutcome.OK

    @rule(name=PREDICATES, many=st.booleans(), temporal=st.booleans())
    def set_predicate(self, name: str, many: bool, temporal: bool) -> None:
        cardinality = Cardinality.MANY if many else Cardinality.ONE
        entry = Predicate(name, cardinality, temporal, Permanence.STANDARD)
        with suppress(Conflict):
            self.stage.run(self.stage.engine.memory.set_predicate(self.admin.who, entry))

    @rule()
    def requeue(self) -> None:
        self.stage.run(self.stage.engine.memory.requeue(self.admin.who, None))

    @invariant()
    def one_live_row_per_key(self) -> None:
        crowded = self._rows(
            """
            SELECT 1 FROM memory.facts WHERE tenant_id = %s AND validity IN ('active', 'fading')
            GROUP BY scope, subject_key, predicate_key, slot HAVING count(*) > 1
            UNION ALL
            SELECT 1 FROM memory.rules WHERE tenant_id = %s AND status IN ('active', 'fading')
              AND maturity <> 'anti_pattern' GROUP BY scope, meaning HAVING count(*) > 1
            """,
            self.tenant,
            self.tenant,
        )
        assert crowded == []

    @invariant()
    def counters_equal_applications(self) -> None:
        wrong = self._rows(
            """
            SELECT r.id FROM memory.rules r LEFT JOIN memory.rule_applications a
              ON (a.tenant_id, a.rule_id) = (r.tenant_id, r.id)
            WHERE r.tenant_id = %s GROUP BY r.tenant_id, r.id
            HAVING r.applied_count <> count(a.id)
                OR r.success_count <> count(a.id) FILTER (WHERE a.outcome = 'helpful')
                OR r.harmful_count <> count(a.id) FILTER (WHERE a.outcome = 'harmful')
            """,
            self.tenant,
        )
        assert wrong == []

    def teardown(self) -> None:
        self._every_step_was_legal()
        self.stage.run(check_ledger(self.stage.urls))
        replayed = self.stage.run(
            self.stage.engine.memory.replay(self.admin.who, verify=True, progress=lambda events: None)
        )
        assert replayed["listed"] == []

    def _every_step_was_legal(self) -> None:
        events = self._rows(
            "SELECT entity_type, entity_id, payload -> 'set' AS set FROM memory.memory_events"
            " WHERE tenant_id = %s ORDER BY entity_id, entity_version",
            self.tenant,
        )
        stands: dict[tuple[Any, str], str] = {}
        for event in events:
            for (kind, column), legal in LEGAL.items():
                after = event["set"].get(column)
                if kind != event["entity_type"] or after is None:
                    continue
                before = stands.get((event["entity_id"], column))
                assert after in BORN[kind, column] if before is None else (before, after) in legal or before == after
                stands[event["entity_id"], column] = after

    def _rows(self, query: str, *params: Any) -> list[dict[str, Any]]:
        return self.stage.run(rows(self.stage.urls, query, *params))


def test_the_laws_of_a_life_hold_in_any_order(template: Template, tmp_path: Path) -> None:
    """A loop of its own: hypothesis is not asynchronous."""
    hands = Hands()
    with asyncio.Runner() as runner:
        urls = runner.run(template.clone())
        opened = bootstrap.open_engine(settings_for(urls, tmp_path), embedder=FakeEmbedder(), clock=hands)
        engine = runner.run(opened.__aenter__())
        try:
            Life.stage = Stage(runner, engine, hands, urls)
            run_state_machine_as_test(  # type: ignore[no-untyped-call]
                Life,
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                ),
            )
        finally:
            runner.run(opened.__aexit__(None, None, None))
            runner.run(template.drop(urls))
