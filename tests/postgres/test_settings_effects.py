"""Every key of butler.toml and every variable moves something (appendix C): set it, and see what it does."""

from __future__ import annotations

import ast
import json
import math
import subprocess
import sys
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from socket import socket
from typing import Any

import numpy as np
import pytest

from butler_memory import serve, settings
from butler_memory.bootstrap import Engine
from butler_memory.bootstrap import open_engine as open_as_in_production
from butler_memory.domain.kinds import JobName, Role
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.embedding.weights import FILES
from butler_memory.errors import SetupError, Unauthenticated, Unavailable
from butler_memory.mcp_server.tools import TOOLS
from butler_memory.postgres.provision import Urls
from caller import Caller, Json, forbidden
from conftest import Hands, OpenEngine, rows, settings_for
from wire import Wire

pytestmark = pytest.mark.usefixtures("ledger")

TESTS = Path(__file__).parents[1]

LADDER = "postgres/test_marks.py::test_r3_r4_the_steps_of_the_ladder_are_where_they_are_set"

WHEN = "test_j1_each_job_runs_at_the_time_that_is_set"
BACKENDS = "acceptance/test_llm_backends.py"
READING = "postgres/test_consolidation.py"

# Key -> the test that sees its effect; one of another module with its path.
SEEN: dict[str, str] = {
    "butler.port": "test_up_stands_where_its_variables_say",
    "butler.db.name": "test_the_embedded_database_has_the_name_it_was_given",
    "enabled": "test_a_disabled_memory_refuses_every_tool_and_does_not_serve",
    # There is one model so far; naming another stops the start.
    "embedding_model": "unit/test_settings.py::test_a_bad_value_is_refused_with_what_would_be_right",
    "embedding_dimensions": "unit/test_settings.py::test_a_bad_value_is_refused_with_what_would_be_right",
    "episodes.default_ttl_days": "test_e1_e8_the_life_of_an_episode_is_as_long_as_set",
    "episodes.import_ttl_days": "test_e1_e8_the_life_of_an_episode_is_as_long_as_set",
    "episodes.max_entries": "postgres/test_cleanup.py::test_e3_over_capacity_the_oldest_that_were_read_go_first",
    "eden.ttl_hours": "test_e1_e8_the_life_of_an_episode_is_as_long_as_set",
    "eden.max_entries": "postgres/test_cleanup.py::test_e3_over_capacity_the_oldest_that_were_read_go_first",
    "butler.schedule.consolidate.cron": WHEN,
    "butler.schedule.decay_sweep.cron": WHEN,
    "butler.schedule.episode_cleanup.cron": WHEN,
    "schedule.timezone": WHEN,
    "facts.retrieval_confidence_threshold": "test_s5_the_retrieval_threshold_hides_earlier_and_moves_the_fading",
    "facts.expiry_confidence_threshold": "test_j2_the_expiry_threshold_moves_the_expiry",
    "facts.many_valued": "postgres/test_single_valued.py::test_f3_every_predicate_holds_one_value",
    "rules.promote_to_established.min_successes": LADDER,
    "rules.promote_to_established.min_effectiveness": LADDER,
    "rules.promote_to_established.min_age_days": LADDER,
    "rules.promote_to_proven.min_successes": LADDER,
    "rules.promote_to_proven.min_effectiveness": LADDER,
    "rules.promote_to_proven.min_age_days": LADDER,
    "rules.harmful_to_antipattern.min_harmful": LADDER,
    "rules.harmful_to_antipattern.max_effectiveness": LADDER,
    "retrieval.default_limit": "test_s4_the_default_limit_is_how_many_are_given",
    "retrieval.default_mode": "test_s1_the_default_mode_is_how_a_search_without_one_goes",
    "retrieval.score_weights.relevance": "test_s2_the_signal_with_all_the_weight_decides_the_order",
    "retrieval.score_weights.importance": "test_s2_the_signal_with_all_the_weight_decides_the_order",
    "retrieval.score_weights.recency": "test_s2_the_signal_with_all_the_weight_decides_the_order",
    "retrieval.score_weights.confidence": "test_s2_the_signal_with_all_the_weight_decides_the_order",
    "butlers.<name>.score_weights": "test_s2_one_butler_may_have_weights_of_its_own",
    "retrieval.fusion": "test_s1_fusion_by_ranks_gives_scores_of_ranks",
    "retrieval.k": "test_s1_fusion_by_ranks_gives_scores_of_ranks",
    "retrieval.gate": "test_s9_only_what_passes_the_gate_is_weighed",
    "retrieval.floor.relevance": "test_s10_the_floor_is_as_high_as_set",
    "retrieval.floor.of_best": "test_s10_the_floor_is_as_near_to_the_best_as_set",
    "retrieval.text_config": "test_words_are_compared_as_the_text_configuration_says",
    "retrieval.context_token_budget": "postgres/test_context.py::test_c1_the_budget_is_as_large_as_set",
    "retrieval.quotas.facts": "postgres/test_context.py::test_c2_the_quotas_share_the_budget_as_set",
    "retrieval.quotas.rules": "postgres/test_context.py::test_c2_the_quotas_share_the_budget_as_set",
    "retrieval.quotas.episodes": "postgres/test_context.py::test_c2_the_quotas_share_the_budget_as_set",
    "retrieval.core_share": "postgres/test_context.py::test_c9_core_memory_has_the_share_that_is_set",
    "retrieval.tokenizer": "postgres/test_context.py::test_c1_tokens_are_counted_by_the_tokenizer_that_is_named",
    "consolidation.backend": "test_k6_the_backend_that_is_named_reads",
    "consolidation.batch_size": f"{READING}::test_k1_batches_are_bounded_and_in_order",
    "consolidation.quiet_seconds": f"{READING}::test_d7_quiet_seconds_of_zero_leave_the_cron_alone",
    "consolidation.max_retired_share": f"{READING}::test_k5_how_much_one_reading_may_retire_is_set",
    "consolidation.daily_tokens": f"{READING}::test_k7_the_cost_is_kept_and_a_day_has_a_limit",
    "consolidation.model": f"{BACKENDS}::test_the_named_model_is_asked_at_the_named_address_with_the_key",
    "consolidation.base_url": f"{BACKENDS}::test_the_named_model_is_asked_at_the_named_address_with_the_key",
    "consolidation.timeout_seconds": f"{BACKENDS}::test_e2_who_does_not_answer_in_time_is_left",
    "consolidation.max_output_tokens": f"{BACKENDS}::test_the_output_is_as_long_as_set",
    "BUTLER_MEMORY_LLM_API_KEY": f"{BACKENDS}::test_the_named_model_is_asked_at_the_named_address_with_the_key",
    "BUTLER_MEMORY_DATA_DIR": "test_up_stands_where_its_variables_say",
    "BUTLER_MEMORY_HOST": "test_up_stands_where_its_variables_say",
    "BUTLER_MEMORY_ALLOWED_HOSTS": "acceptance/test_starting.py::test_g2_on_every_address_only_named_hosts_are_allowed",
    "BUTLER_MEMORY_MODEL_PATH": "test_the_model_is_taken_from_where_it_lies",
    "BUTLER_MEMORY_MODEL_CACHE": "test_the_model_is_taken_from_where_it_lies",
    "BUTLER_MEMORY_DATABASE_URL": "acceptance/test_cli.py::test_db_provision_prints_settings_that_work",
    "BUTLER_MEMORY_OWNER_URL": "acceptance/test_cli.py::test_db_provision_prints_settings_that_work",
    "BUTLER_MEMORY_WORKER_URL": "acceptance/test_cli.py::test_db_provision_prints_settings_that_work",
    "BUTLER_MEMORY_TOKEN": "test_t3_a_stdio_client_is_whom_its_token_names",
    "BUTLER_MEMORY_PROJECT": "test_a_stdio_client_owns_the_scope_of_its_project",
    "BUTLER_MEMORY_TRIGGER_CLASS": "test_e5_a_maintenance_process_writes_no_episode",
    "BUTLER_MEMORY_CLOCK_OFFSET": "test_the_clock_is_moved_by_its_offset_on_loopback_only",
    "BUTLER_MEMORY_CONFIG": "test_the_named_file_is_the_one_that_is_read",
}

_HOST = "what a butler host shows in its roster; there is no host yet"
NOT_YET: dict[str, str] = {
    "butler.name": _HOST,
    "butler.description": _HOST,
    **{f"butler.schedule.{job}.prompt": _HOST for job in settings.Jobs.model_fields},
}


def every_key() -> set[str]:
    memory = {".".join(path) for path in settings._leaves(settings.MemorySettings)}
    around = {".".join(path) for path in settings._leaves(settings.ButlerSettings) if path[0] != "memory"}
    own = {f"butlers.<name>.{name}" for name in settings.ButlerOverrides.model_fields}
    variables = {settings.PREFIX + name.upper() for name in (*settings.Environment.model_fields, "config")}
    return memory | own | variables | {f"butler.{key}" for key in around}


def test_appendix_c_every_key_has_a_test_that_sees_its_effect() -> None:
    assert SEEN.keys() | NOT_YET.keys() == every_key()
    assert SEEN.keys() & NOT_YET.keys() == set()
    assert all(NOT_YET.values())
    tests = {name: name in globals() if "::" not in name else exists(*name.split("::")) for name in SEEN.values()}
    assert [name for name, there in tests.items() if not there] == []


def exists(file: str, name: str) -> bool:
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse((TESTS / file).read_text())
    return any(isinstance(node, functions) and node.name == name for node in ast.walk(tree))


# --- helpers ---------------------------------------------------------------------------------------------

Given = Callable[..., Awaitable[Caller]]


@pytest.fixture
def given(open_engine: OpenEngine) -> Given:
    """A caller of an engine with these settings; two of them share the test's database."""

    async def make(butler: str = "health", **environ: str) -> Caller:
        return await caller_of(await open_engine(**variables(environ)), butler)

    return make


def variables(environ: dict[str, str]) -> dict[str, str]:
    return {settings.PREFIX + name: text for name, text in environ.items()}


async def caller_of(engine: Engine, butler: str = "health") -> Caller:
    secret, _ = await engine.access.create_token("home", butler, Role.BUTLER)
    return Caller(engine.memory, await engine.access.authenticate(secret))


async def note(ask: Caller, text: str, **more: Any) -> Json:
    return await ask.fact(text, "note", **more)


def contents(answer: Json) -> list[str]:
    return [result["content"] for result in answer["results"]]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


# --- what is stored --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "days", "imported_days"),
    [
        ({}, 7, 90),
        ({"EPISODES__DEFAULT_TTL_DAYS": "2"}, 2, 90),
        ({"EPISODES__IMPORT_TTL_DAYS": "0.5"}, 7, 0.5),
        ({"EDEN__TTL_HOURS": "36"}, 1.5, 90),
    ],
)
async def test_e1_e8_the_life_of_an_episode_is_as_long_as_set(
    given: Given, hands: Hands, environ: dict[str, str], days: float, imported_days: float
) -> None:
    ask = await given(**environ)
    row = await ask.row(await ask.episode("It rained"))
    assert moment(row["expires_at"]) == hands.now + timedelta(days=days)
    row = await ask.row(await ask.episode("It rained in 1987", source_kind="imported"))
    assert moment(row["expires_at"]) == hands.now + timedelta(days=imported_days)


def crossing(hands: Hands, confidence: float, threshold: float) -> datetime:
    """When a memory of standard permanence that was made now comes down to `threshold`."""
    return hands.now + timedelta(days=math.log(confidence / threshold) / 0.008)


async def test_s5_the_retrieval_threshold_hides_earlier_and_moves_the_fading(given: Given, hands: Hands) -> None:
    usual, strict = await given(), await given(FACTS__RETRIEVAL_CONFIDENCE_THRESHOLD="0.9")
    for ask, threshold in ((usual, 0.2), (strict, 0.9)):
        row = await ask.row(await ask.fact(f"umbrella {threshold}", f"umbrella_{threshold}"))
        assert moment(row["fades_at"]) == crossing(hands, 1.0, threshold)
        row = await ask.row(await ask.rule(f"Take umbrella {threshold} along", confidence=0.95))
        assert moment(row["fades_at"]) == crossing(hands, 0.95, threshold)
    hands.pass_(days=20)  # 1.0 has become 0.85, and 0.95 0.81
    for tool, question in (("search", {"query": "umbrella"}), ("recall", {"topic": "umbrella"}), ("search", {})):
        seen = await usual.call(tool, question)
        assert (len(seen["results"]), seen["hidden"]["decayed"]) == (4, 0)
        hidden = await strict.call(tool, question)
        assert (hidden["results"], hidden["hidden"]["decayed"]) == ([], 4)
        assert len((await strict.call(tool, {**question, "min_confidence": 0.82}))["results"]) == 2


async def test_j2_the_expiry_threshold_moves_the_expiry(given: Given, hands: Hands) -> None:
    for text, threshold in (("", 0.05), ("0.19", 0.19)):
        ask = await given(FACTS__EXPIRY_CONFIDENCE_THRESHOLD=text)
        row = await ask.row(await ask.fact("in the hall", f"umbrella_{threshold}"))
        assert moment(row["expires_at_conf"]) == crossing(hands, 1.0, threshold)
        assert moment(row["fades_at"]) == crossing(hands, 1.0, 0.2)


# --- what is found ---------------------------------------------------------------------------------------


async def test_j1_each_job_runs_at_the_time_that_is_set(
    open_engine: OpenEngine, hands: Hands, tmp_path: Path, urls: Urls
) -> None:
    file = tmp_path / "butler.toml"
    file.write_text(
        "\n".join(f'[butler.schedule.{job}]\ncron = "30 {hour} * * *"' for job, hour in HOURS.items())
        + '\n[butler.memory.schedule]\ntimezone = "Asia/Tokyo"\n[butler.memory.consolidation]\nquiet_seconds = 0\n'
    )
    engine = await open_engine(BUTLER_MEMORY_CONFIG=str(file))
    ask = await caller_of(engine)
    hands.now = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)  # nine in the evening in Tokyo
    await engine.workers.run_due()
    await ask.episode("It rained")
    for job, hour in HOURS.items():
        due = datetime(2026, 3, 1, 15 + hour, 30, tzinfo=UTC)  # the day after, there
        hands.now = due - timedelta(minutes=1)
        await engine.workers.run_due()
        assert not await ran(urls, job, due - timedelta(hours=1))
        hands.now = due
        await engine.workers.run_due()
        assert await ran(urls, job, due)


HOURS = {"consolidate": 1, "decay_sweep": 2, "episode_cleanup": 3}


async def ran(urls: Urls, job: str, since: datetime) -> bool:
    found = await rows(urls, "SELECT 1 FROM memory.job_runs WHERE job = %s AND started_at >= %s", job, since)
    return bool(found)


async def test_s4_the_default_limit_is_how_many_are_given(given: Given) -> None:
    usual, short = await given(), await given(RETRIEVAL__DEFAULT_LIMIT="2")
    for number in range(5):
        await note(usual, f"The dentist has {number} chairs")
    for tool, question in (("search", {"query": "dentist"}), ("recall", {"topic": "dentist"}), ("search", {})):
        assert len((await usual.call(tool, question))["results"]) == 5
        assert len((await short.call(tool, question))["results"]) == 2
        assert len((await short.call(tool, {**question, "limit": 4}))["results"]) == 4


@pytest.mark.parametrize("mode", ["hybrid", "semantic", "keyword"])
async def test_s1_the_default_mode_is_how_a_search_without_one_goes(given: Given, mode: str) -> None:
    ask = await given(RETRIEVAL__DEFAULT_MODE=mode)
    for text in ("The dentist moved", "The dentist was here and then the plumber came", "The garage code is 4711"):
        await note(ask, text)

    async def scores(**asked: str) -> list[float]:
        answer = await ask.call("search", {"query": "dentist moved", **asked})
        return [result["score"] for result in answer["results"]]

    by_mode = {named: await scores(mode=named) for named in ("hybrid", "semantic", "keyword")}
    assert await scores() == by_mode.pop(mode)
    assert await scores() not in by_mode.values()


# Each excels in one of the four signals; all of them are about the dentist.
EXCELLING: dict[str, tuple[str, Json]] = {
    "relevance": ("The dentist is on Friday", {}),
    "importance": ("The dentist must know about the new heart medicine", {"importance": 10}),
    "confidence": ("A visit to the dentist in town costs ninety crowns", {"confidence": 1.0}),
    "recency": ("An assistant called Maria works at the dentist in town", {}),
}
NO_FLOOR = {"RETRIEVAL__FLOOR__RELEVANCE": "0", "RETRIEVAL__FLOOR__OF_BEST": "0"}


async def store_excelling(ask: Caller, hands: Hands) -> None:
    for text, more in EXCELLING.values():
        await note(ask, text, **{"importance": 5, "confidence": 0.5, "permanence": "permanent", **more})
        hands.pass_(days=10)


def all_on(signal: str) -> dict[str, str]:
    return {f"RETRIEVAL__SCORE_WEIGHTS__{name.upper()}": str(int(name == signal)) for name in EXCELLING}


@pytest.mark.parametrize("signal", EXCELLING)
async def test_s2_the_signal_with_all_the_weight_decides_the_order(given: Given, hands: Hands, signal: str) -> None:
    ask = await given(**all_on(signal), **NO_FLOOR)
    await store_excelling(ask, hands)
    for tool, question in (
        ("recall", {"topic": "dentist on Friday"}),
        ("search", {"query": "dentist on Friday", "order": "composite"}),
    ):
        found = contents(await ask.call(tool, question))
        assert (found[0], len(found)) == (EXCELLING[signal][0], len(EXCELLING))


async def test_s2_one_butler_may_have_weights_of_its_own(given: Given, hands: Hands, tmp_path: Path) -> None:
    file = tmp_path / "butler.toml"
    file.write_text(
        """
        [butler.memory.retrieval]
        score_weights = { relevance = 1, importance = 0, recency = 0, confidence = 0 }
        [butler.memory.butlers.health]
        score_weights = { relevance = 0, importance = 1, recency = 0, confidence = 0 }
        """
    )
    health, travel = [await given(butler, CONFIG=str(file), **NO_FLOOR) for butler in ("health", "travel")]
    await store_excelling(health, hands)
    for ask, signal in ((health, "importance"), (travel, "relevance")):
        assert contents(await ask.call("recall", {"topic": "dentist on Friday"}))[0] == EXCELLING[signal][0]


async def test_s1_fusion_by_ranks_gives_scores_of_ranks(given: Given) -> None:
    convex = await given()
    ranks = {k: await given(RETRIEVAL__FUSION="rrf", RETRIEVAL__K=str(k)) for k in (60, 1)}
    for text in ("The dentist moved", "The dentist was here", "The garage code is 4711"):
        await note(convex, text)
    question = {"query": "dentist moved"}
    [best, *_] = (await convex.call("search", question))["results"]
    assert best["score"] == pytest.approx(1.0)
    for k, ask in ranks.items():
        first, second, third = (await ask.call("search", question))["results"]
        assert first["content"] == "The dentist moved"
        assert [first["score"], second["score"]] == pytest.approx([2 / (k + 1), 2 / (k + 2)])
        assert third["score"] == pytest.approx(1 / (k + 3)), "the words know nothing of the garage"


async def test_s9_only_what_passes_the_gate_is_weighed(given: Given, hands: Hands) -> None:
    wide = await given(**all_on("importance"), **NO_FLOOR)
    narrow = await given(**all_on("importance"), **NO_FLOOR, RETRIEVAL__GATE="1")
    await store_excelling(wide, hands)
    most_relevant, most_important = EXCELLING["relevance"][0], EXCELLING["importance"][0]
    topic = {"topic": "dentist on Friday"}
    assert contents(await wide.call("recall", topic))[0] == most_important
    assert contents(await narrow.call("recall", topic)) == [most_relevant]
    question = {"query": "dentist on Friday", "order": "composite", "limit": 1}
    assert contents(await wide.call("search", question)) == [most_important]
    assert contents(await narrow.call("search", question)) == [most_relevant]


async def recalled_by_floor(given: Given, floors: list[dict[str, str]]) -> list[tuple[list[str], int]]:
    """For each floor: what comes back of three notes, and how many it held back."""
    found: list[tuple[list[str], int]] = []
    for floor in floors:
        ask = await given(**{f"RETRIEVAL__FLOOR__{name.upper()}": text for name, text in floor.items()})
        if not found:
            for text in ("The dentist moved", "The dentist was here yesterday", "The garage code is 4711"):
                await note(ask, text)
        answer = await ask.call("recall", {"topic": "the dentist moved"})
        found.append((contents(answer), answer["hidden"]["below_floor"]))
    return found


async def test_s10_the_floor_is_as_high_as_set(given: Given) -> None:
    floors = [{"relevance": text, "of_best": "0"} for text in ("0", "0.25", "0.9")]
    found = await recalled_by_floor(given, floors)
    assert [(len(results), below) for results, below in found] == [(3, 0), (2, 1), (1, 2)]


async def test_s10_the_floor_is_as_near_to_the_best_as_set(given: Given) -> None:
    floors = [{"relevance": "0", "of_best": text} for text in ("0", "0.3", "1")]
    found = await recalled_by_floor(given, floors)
    assert [(len(results), below) for results, below in found] == [(3, 0), (2, 1), (1, 2)]
    assert found[-1][0] == ["The dentist moved"]


@pytest.mark.parametrize(
    ("config", "query", "finds"),
    [
        ("english", "runs", True),
        ("simple", "runs", False),
        ("simple", "running", True),
        ("english", "the", False),
        ("simple", "the", True),
        ("german", "Schuh", True),
        ("english", "Schuh", False),
    ],
)
async def test_words_are_compared_as_the_text_configuration_says(
    given: Given, config: str, query: str, finds: bool
) -> None:
    ask = await given(RETRIEVAL__TEXT_CONFIG=config)
    await note(ask, "He goes running in the park with rote Schuhe")
    answer = await ask.call("search", {"query": query, "mode": "keyword"})
    assert bool(answer["results"]) is finds


# --- the whole ------------------------------------------------------------------------------------------


async def test_a_disabled_memory_refuses_every_tool_and_does_not_serve(
    given: Given, urls: Urls, tmp_path: Path
) -> None:
    ask = await given(ENABLED="false")
    for tool in TOOLS:
        with pytest.raises(Unavailable) as caught:
            await tool.call(ask.memory, ask.who, {})
        assert (caught.value.code, caught.value.reason) == ("unavailable", "disabled"), tool.name
    with pytest.raises(Unavailable):
        await ask.episode("It rained")
    assert await rows(urls, "SELECT 1 FROM memory.memory_events") == []
    off = settings_for(urls, tmp_path / "data", BUTLER_MEMORY_ENABLED="false")
    with pytest.raises(SetupError, match="switched off"):
        await serve.serve(off, progress=print, announce=print)
    assert not (tmp_path / "data").exists()


async def test_the_named_file_is_the_one_that_is_read(
    given: Given, hands: Hands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, days in (("butler.toml", 3), ("named.toml", 5)):
        (tmp_path / name).write_text(f"[butler.memory.episodes]\ndefault_ttl_days = {days}\n")
    for file, days in (("", 3), ("named.toml", 5)):
        ask = await given(CONFIG=file)
        row = await ask.row(await ask.episode(f"Read from {file}"))
        assert moment(row["expires_at"]) == hands.now + timedelta(days=days)


# --- the process ----------------------------------------------------------------------------------------


async def stdio(open_engine: OpenEngine, **environ: str) -> Caller:
    """A client on standard input and output, as `butler-memory mcp` sees it."""
    engine = await open_engine(**variables(environ))
    return Caller(engine.memory, await serve._stdio_principal(engine))


async def test_t3_a_stdio_client_is_whom_its_token_names(open_engine: OpenEngine, engine: Engine) -> None:
    secret, token = await engine.access.create_token("next door", "chef", Role.BUTLER)
    anybody = await stdio(open_engine)
    theirs = await anybody.fact("Acme")
    chef = await stdio(open_engine, TOKEN=secret)
    mine = await chef.fact("Globex")
    assert (await anybody.row(theirs))["source_butler"] == serve.FIRST_BUTLER
    row = await chef.row(mine)
    assert (row["source_butler"], row["tenant_id"]) == ("chef", "next door")
    assert contents(await chef.call("search", {})) == ["Globex"]
    await engine.access.revoke(token.id)
    with pytest.raises(Unauthenticated):
        await stdio(open_engine, TOKEN=secret)


async def test_a_stdio_client_owns_the_scope_of_its_project(open_engine: OpenEngine, engine: Engine) -> None:
    secret, _ = await engine.access.create_token("home", "coder", Role.BUTLER)
    for identity in ({}, {"TOKEN": secret}):
        inside = await stdio(open_engine, PROJECT="atlas", **identity)
        await inside.fact(f"ruff {identity != {}}", "linter", "repo", scope="project:atlas")
        outside = await stdio(open_engine, **identity)
        with forbidden("foreign_scope"):
            await outside.fact("flake8", "linter", "repo", scope="project:atlas")
        assert len(contents(await inside.call("search", {}))) == 1
        assert contents(await outside.call("search", {})) == []


async def test_e5_a_maintenance_process_writes_no_episode(open_engine: OpenEngine) -> None:
    session = await stdio(open_engine, TRIGGER_CLASS="session")
    assert (await session.episode("It rained"))["outcome"] == "created"
    maintenance = await stdio(open_engine, TRIGGER_CLASS="maintenance")
    with forbidden("maintenance_session"):
        await maintenance.episode("Swept the memory")
    assert (await maintenance.fact("Acme"))["outcome"] == "created"


async def test_the_clock_is_moved_by_its_offset_on_loopback_only(urls: Urls, tmp_path: Path) -> None:
    moved = {"BUTLER_MEMORY_CLOCK_OFFSET": "+210d"}
    before = datetime.now(UTC)
    async with open_as_in_production(settings_for(urls, tmp_path, **moved), embedder=FakeEmbedder()) as engine:
        ask = await caller_of(engine)
        row = await ask.row(await ask.episode("It will have rained"))
    assert timedelta(0) <= moment(row["created_at"]) - before - timedelta(days=210) < timedelta(hours=1)
    public = settings_for(urls, tmp_path, **moved, BUTLER_MEMORY_HOST="0.0.0.0")
    with pytest.raises(SetupError, match="loopback"):
        async with open_as_in_production(public, embedder=FakeEmbedder()):
            pytest.fail("it must not start")


async def test_the_model_is_taken_from_where_it_lies(urls: Urls, tmp_path: Path, model_at_hand: Path) -> None:
    """From the operator's own directory into the named cache, without any network."""
    published = next(model_at_hand.glob(f"*/{FILES[0].name}")).parent
    cache = tmp_path / "models"
    place = {"BUTLER_MEMORY_MODEL_PATH": str(published), "BUTLER_MEMORY_MODEL_CACHE": str(cache)}
    async with open_as_in_production(settings_for(urls, tmp_path, **place)) as engine:
        [vector] = await engine.embedder.embed(["It rained"])
    assert float(np.linalg.norm(vector)) == pytest.approx(1.0, abs=1e-3)
    assert list(cache.rglob("*.onnx"))
    nothing = {**place, "BUTLER_MEMORY_MODEL_PATH": str(tmp_path)}
    async with open_as_in_production(settings_for(urls, tmp_path, **nothing)) as engine:
        assert (await (await caller_of(engine)).episode("It rained"))["outcome"] == "created"
        with pytest.raises(Unavailable):
            await engine.embedder.embed(["It rained"])


async def test_the_embedded_database_has_the_name_it_was_given(tmp_path: Path) -> None:
    place = {"BUTLER_MEMORY_DATA_DIR": str(tmp_path / "data"), "BUTLER_MEMORY_DB_NAME": "archive_memory"}
    async with open_as_in_production(settings.load(environ=place), embedder=FakeEmbedder()) as engine:
        assert (await rows(engine.urls, "SELECT current_database()"))[0]["current_database"] == "archive_memory"
        assert (await (await caller_of(engine)).episode("It rained"))["outcome"] == "created"


def free_port(host: str) -> int:
    with socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


@contextmanager
def up(environ: dict[str, str], place: Path) -> Iterator[Json]:
    """What `butler-memory up` says of itself once it serves."""
    command = [sys.executable, "-m", "butler_memory.cli", "up", "--json"]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(place), "LC_ALL": "C.UTF-8", **environ}
    with subprocess.Popen(command, env=environ, cwd=place, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        try:
            yield json.loads("".join(lines))
        finally:
            process.terminate()


async def test_up_stands_where_its_variables_say(urls: Urls, tmp_path: Path) -> None:
    host, data_dir = "127.0.0.2", tmp_path / "data"
    port = free_port(host)
    environ = variables(
        {"HOST": host, "PORT": str(port), "DATA_DIR": str(data_dir), "MODEL_PATH": str(tmp_path / "none")}
        | {"DATABASE_URL": urls.app, "WORKER_URL": urls.worker}
    )
    with up(environ, tmp_path) as said:
        assert said["url"] == f"http://{host}:{port}/mcp"
        assert str(tmp_path / "none") in said["degraded"]
        with urllib.request.urlopen(f"http://{host}:{port}/healthz", timeout=5) as answer:
            assert json.load(answer) == {"status": "ok"}
        with pytest.raises(OSError, match="refused"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5)
        assert (data_dir / "butler-token").read_text().strip() == said["butler_token"]
    assert len(await rows(urls, "SELECT 1 FROM memory.tokens")) == 2, "in the database that was named"


async def test_k6_the_backend_that_is_named_reads(
    open_engine: OpenEngine, urls: Urls, hands: Hands, wire: Wire
) -> None:
    wire.otherwise = {"new_facts": []}
    there = {
        "BUTLER_MEMORY_CONSOLIDATION__MODEL": "m",
        "BUTLER_MEMORY_CONSOLIDATION__BASE_URL": wire.url,
        "BUTLER_MEMORY_LLM_API_KEY": "k",
    }
    for backend, asked in (("offline", 0), ("openai", 1), ("anthropic", 2)):
        engine = await open_engine(BUTLER_MEMORY_CONSOLIDATION__BACKEND=backend, **there)
        secret, _ = await engine.access.create_token("home", backend, Role.BUTLER)
        await Caller(engine.memory, await engine.access.authenticate(secret)).episode("hello")
        await engine.workers.run_now(JobName.CONSOLIDATE, "home", backend)
        assert len(wire.requests) == asked
    read_by = await rows(urls, "SELECT butler, backend FROM memory.consolidation_runs ORDER BY 1")
    assert [(row["butler"], row["backend"]) for row in read_by] == [
        ("anthropic", "anthropic:m"), ("offline", "offline"), ("openai", "openai:m"),
    ]  # fmt: skip
