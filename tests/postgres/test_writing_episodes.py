"""Storing episodes against a real database (E1, E5 to E8), one by one and in batches."""

from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import Role, TriggerClass
from butler_memory.domain.requests import BATCH_ITEMS, session_uuid
from butler_memory.errors import TooLarge, Unavailable
from butler_memory.postgres.provision import Urls
from caller import Caller, forbidden, refused
from conftest import Hands, MakePrincipal, OpenEngine, rows

pytestmark = pytest.mark.usefixtures("ledger")


async def test_e1_a_new_episode_has_the_defaults_and_the_engines_time(ask: Caller) -> None:
    written = await ask.episode("We talked about the garden")
    assert (written["type"], written["outcome"], written["state"]) == ("episode", "created", "active")
    row = await ask.row(written)
    assert (row["importance"], row["consolidation_status"], row["consolidation_attempts"]) == (5.0, "pending", 0)
    assert (row["consolidated"], row["state"], row["butler"]) == (False, "active", "health")
    assert (row["session_id"], row["source_kind"], row["tags"], row["metadata"]) == (None, "agent_inferred", [], {})
    assert row["created_at"] == row["occurred_at"] == "2026-03-01T12:00:00Z"
    assert row["expires_at"] == "2026-03-08T12:00:00Z"


async def test_e1_when_it_happened_is_not_when_it_was_stored(ask: Caller) -> None:
    row = await ask.row(await ask.episode("We met", occurred_at="2025-12-24T20:00:00+01:00"))
    assert (row["occurred_at"], row["created_at"]) == ("2025-12-24T19:00:00Z", "2026-03-01T12:00:00Z")
    assert row["expires_at"] == "2026-03-08T12:00:00Z", "the time to live counts from created_at (E8)"


async def test_e8_imported_history_lives_longer(ask: Caller) -> None:
    row = await ask.row(await ask.episode("Old mail", source_kind="imported", occurred_at="2019-01-01T00:00:00Z"))
    assert row["expires_at"] == "2026-05-30T12:00:00Z"


async def test_e5_a_maintenance_session_never_becomes_an_episode(
    ask: Caller, principal: MakePrincipal, urls: Urls
) -> None:
    caller = ask.as_(await principal("sweeper", trigger_class=TriggerClass.MAINTENANCE))
    with forbidden("maintenance_session"):
        await caller.episode("I consolidated three episodes")
    batch = await caller.call("ingest_batch", {"episodes": [{"content": "I consolidated"}]})
    assert [result["reason"] for result in batch["results"]] == ["maintenance_session"]
    assert await rows(urls, "SELECT 1 FROM memory.episodes") == []
    assert (await caller.fact("Acme"))["outcome"] == "created", "what it learned is another matter"


async def test_e6_within_a_session_the_content_is_the_key(ask: Caller, urls: Urls) -> None:
    session = str(uuid4())
    first = await ask.episode("It rained", session_id=session)
    again = await ask.episode("It rained", session_id=session)
    assert (again["id"], again["outcome"]) == (first["id"], "duplicate")
    by_context = await ask.in_session(session).episode("It rained")
    assert by_context["id"] == first["id"], "request_context names the same session"
    assert (await ask.episode("It rained!", session_id=session))["outcome"] == "created"
    assert (await ask.episode("It rained", session_id=str(uuid4())))["outcome"] == "created"
    assert len(await rows(urls, "SELECT 1 FROM memory.episodes")) == 3


async def test_e6_without_a_session_nothing_is_taken_for_a_repeat(ask: Caller) -> None:
    first, second = await ask.episode("It rained"), await ask.episode("It rained")
    assert (second["outcome"], second["id"] != first["id"]) == ("created", True)


async def test_e6_sixteen_retries_at_once_in_one_session_are_one_episode(ask: Caller, urls: Urls) -> None:
    answers = await asyncio.gather(*(ask.episode("It rained", session_id="s") for _ in range(16)))
    assert len({answer["id"] for answer in answers}) == 1
    assert len(await rows(urls, "SELECT 1 FROM memory.episodes")) == 1


async def test_e6_where_a_session_ends_and_its_content_begins_is_part_of_the_key(ask: Caller) -> None:
    first = await ask.episode("y\x1fz", session_id="x")
    second = await ask.episode("z", session_id="x\x1fy")
    assert (second["outcome"], second["id"] != first["id"]) == ("created", True)


async def test_e6_an_explicit_key_outlives_the_words(ask: Caller) -> None:
    first = await ask.episode("It rained", session_id="s", idempotency_key="k")
    again = await ask.episode("It rained a lot", session_id="s", idempotency_key="k")
    assert (again["id"], again["outcome"]) == (first["id"], "duplicate")
    other = await ask.episode("It rained", session_id="s", idempotency_key="k2")
    assert other["outcome"] == "created"


async def test_e6_the_content_of_a_key_is_not_stored_with_it(ask: Caller, urls: Urls) -> None:
    await ask.episode("It rained", session_id="s")
    await ask.fact("Acme", idempotency_key="secret-name")
    found = {row["key"] for row in await rows(urls, "SELECT key FROM memory.idempotency_keys")}
    assert len(found) == 2
    assert all(len(key) == 32 and int(key, 16) for key in found), "keyed digests only"


async def test_appendix_a_a_session_that_is_no_uuid_gets_one_and_keeps_its_name(ask: Caller) -> None:
    row = await ask.row(await ask.episode("It rained", session_id="telegram/42", metadata={"mood": "wet"}))
    assert row["session_id"] == str(session_uuid("telegram/42"))
    assert UUID(row["session_id"]).version == 5
    assert row["metadata"] == {"mood": "wet", "session_ref": "telegram/42"}
    proper = str(uuid4())
    row = await ask.row(await ask.episode("It rained", session_id=proper))
    assert (row["session_id"], row["metadata"]) == (proper, {})


async def test_t3_the_butler_comes_from_the_token_unless_an_admin_names_one(
    ask: Caller, principal: MakePrincipal
) -> None:
    assert (await ask.row(await ask.episode("a", butler="health")))["butler"] == "health"
    with forbidden("foreign_butler"):
        await ask.episode("b", butler="finance")
    admin = ask.as_(await principal("desk", Role.ADMIN))
    assert (await admin.row(await admin.episode("c", butler="finance")))["butler"] == "finance"
    for no_butler in ("global", "project:atlas"):
        with forbidden("foreign_butler"):
            await admin.episode("d", butler=no_butler)


async def test_appendix_b_a_batch_answers_item_by_item(ask: Caller, urls: Urls) -> None:
    given = [
        {"content": "It rained"},
        {"content": "  "},
        "not an object",
        {"content": "It snowed", "importance": 11},
        {"content": "It rained", "session_id": "s"},
        {"content": "It rained", "session_id": "s"},
        {"content": "x" * 40_000},
        {"content": "It hailed", "butler": "finance"},
        None,
    ]
    context = {"request_id": "batch-1"}
    answer = await ask.call("ingest_batch", {"episodes": given, "request_context": context})
    assert answer["request_context"] == context
    results = answer["results"]
    assert [result.get("outcome") or result["error"] for result in results] == [
        *("created", "invalid_input", "invalid_input", "invalid_input"),
        *(results[4]["outcome"], results[5]["outcome"]),
        *("too_large", "forbidden", "invalid_input"),
    ]
    assert {result["outcome"] for result in results[4:6]} == {"created", "duplicate"}
    assert results[4]["id"] == results[5]["id"]
    assert all(result["request_context"] == context for result in results)
    assert [row["request_id"] for row in await rows(urls, "SELECT request_id FROM memory.episodes")] == ["batch-1"] * 2


async def test_t2_an_item_of_a_batch_keeps_its_own_context_and_else_has_the_batchs(ask: Caller, urls: Urls) -> None:
    batch, own = {"request_id": "batch"}, {"request_id": "own", "session_id": "s"}
    given = [
        {"content": "a", "request_context": None},
        {"content": "b", "request_context": own},
        {"content": "c"},
        {"content": " ", "request_context": own},
        {"content": " ", "request_context": {"request_id": "own", "tenant": "B"}},
        {"content": " "},
    ]
    results = (await ask.call("ingest_batch", {"episodes": given, "request_context": batch}))["results"]
    assert [result["request_context"] for result in results] == [batch, own, batch, own, batch, batch]
    found = await rows(urls, "SELECT content, request_id FROM memory.episodes ORDER BY content")
    assert [(row["content"], row["request_id"]) for row in found] == [("a", "batch"), ("b", "own"), ("c", "batch")]


async def test_t4_a_batch_is_bounded_and_not_empty(ask: Caller) -> None:
    with refused("blank"):
        await ask.call("ingest_batch", {"episodes": []})
    with pytest.raises(TooLarge):
        await ask.call("ingest_batch", {"episodes": [{"content": "x"}] * (BATCH_ITEMS + 1)})


async def test_appendix_b_a_full_batch_is_stored_whole(ask: Caller, urls: Urls) -> None:
    given = [{"content": f"episode number {n}"} for n in range(BATCH_ITEMS)]
    results = (await ask.call("ingest_batch", {"episodes": given}))["results"]
    assert [result["outcome"] for result in results] == ["created"] * BATCH_ITEMS
    stored = {row["id"]: row["content"] for row in await rows(urls, "SELECT id::text, content FROM memory.episodes")}
    assert [stored[result["id"]] for result in results] == [item["content"] for item in given]


async def test_appendix_b_stats_count_what_the_caller_may_see(
    ask: Caller, engine: Engine, hands: Hands, principal: MakePrincipal
) -> None:
    other = ask.as_(await principal("finance"))
    reader = ask.as_(await principal("auditor", Role.READER))
    await ask.episode("mine")
    hands.pass_(hours=3)
    await ask.forget(await ask.episode("forgotten"))
    await other.episode("theirs")
    await ask.fact("Acme", permanence="stable")
    await ask.fact("Globex")
    await other.fact("secret", scope="finance")
    await ask.rule("Always water the plants")
    mine = await ask.call("stats", {})
    assert mine["episodes"] == {
        "by_state": {"active": 1, "retracted": 1},
        "by_consolidation_status": {"pending": 1, "failed": 1},
    }
    assert mine["facts"] == {
        "by_state": {"active": 1, "superseded": 1},
        "by_permanence": {"stable": 1},
        "by_confidence": {"high": 1},
        "unconfirmed": 0,
    }
    assert mine["rules"] == {
        "by_state": {"active": 1},
        "by_maturity": {"candidate": 1},
        "by_confidence": {"medium": 1},
    }
    assert mine["tiers"] == {"eden": 1, "mid": 1, "long": 1}
    assert mine["backlog"] == {
        "pending": 1,
        "oldest_age_hours": 3.0,
        "consolidation_could_not_run": {},
        "kept_past_their_time": 0,
    }
    assert mine["without_vector"] == 0
    everything = await reader.call("stats", {})
    assert everything["facts"]["by_state"] == {"active": 2, "superseded": 1}
    assert everything["backlog"]["pending"] == 2
    with forbidden("foreign_scope"):
        await ask.call("stats", {"scope": "finance"})
    with forbidden("foreign_scope"):
        await ask.call("stats", {"scope": "*"})


async def test_appendix_c_a_disabled_memory_takes_and_gives_nothing(open_engine: OpenEngine, who: object) -> None:
    engine = await open_engine(BUTLER_MEMORY_ENABLED="false")
    with pytest.raises(Unavailable, check=lambda error: error.reason == "disabled"):
        await engine.memory.store_episode(who, {"content": "It rained"})
