"""Confirm, forget, restore: the steps of F2 and E7, and repeats that change nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from butler_memory.postgres.provision import Urls
from caller import Caller, conflict, named, refused
from conftest import Hands, rows

pytestmark = pytest.mark.usefixtures("ledger")

KINDS = ("fact", "rule", "episode")


async def stored(ask: Caller, kind: str) -> dict[str, Any]:
    written: dict[str, Any] = await getattr(ask, kind)("Always water the plants")
    return written


async def events(urls: Urls) -> list[str]:
    found = await rows(urls, "SELECT event_type FROM memory.memory_events ORDER BY id")
    return [row["event_type"] for row in found]


@pytest.mark.parametrize("kind", KINDS)
async def test_e7_forget_and_restore_are_evented_and_their_repeats_are_not(ask: Caller, urls: Urls, kind: str) -> None:
    written = await stored(ask, kind)
    for _ in range(2):
        answer = await ask.forget(written)
        assert (answer["id"], answer["state"]) == (written["id"], "retracted")
    assert await events(urls) == ["created", "retracted"]
    for _ in range(2):
        answer = await ask.restore(written)
        assert (answer["id"], answer["state"]) == (written["id"], "active")
    assert await events(urls) == ["created", "retracted", "restored"]
    assert (await ask.row(written))["version"] == 3


@pytest.mark.parametrize("kind", ["fact", "rule"])
async def test_f9_confirm_moves_the_time_once_a_session(ask: Caller, hands: Hands, urls: Urls, kind: str) -> None:
    written = await stored(ask, kind)
    before = await ask.row(written)
    hands.pass_(days=3)
    for _ in range(2):
        answer = await ask.confirm(written)
        assert (answer["outcome"], answer["state"]) == ("confirmed", "active")
    row = await ask.row(written)
    assert row["last_confirmed_at"] == "2026-03-04T12:00:00Z"
    assert row["fades_at"] > before["fades_at"]
    assert row["confidence"] == before["confidence"]
    assert await events(urls) == ["created", "confirmed"]
    await ask.in_session("another").confirm(written)
    assert await events(urls) == ["created", "confirmed", "confirmed"]


async def test_f9_reading_never_confirms(ask: Caller, hands: Hands, urls: Urls) -> None:
    written = await stored(ask, "fact")
    hands.pass_(days=3)
    assert (await ask.row(written))["last_confirmed_at"] == "2026-03-01T12:00:00Z"
    assert await events(urls) == ["created"]


@pytest.mark.parametrize("kind", ["fact", "rule"])
async def test_f9_what_is_not_live_is_not_confirmed_but_restored(ask: Caller, urls: Urls, kind: str) -> None:
    written = await stored(ask, kind)
    await ask.forget(written)
    with conflict("not_live") as caught:
        await ask.confirm(written)
    assert "memory_restore" in caught.value.recovery
    assert await events(urls) == ["created", "retracted"]


async def test_f9_a_superseded_fact_is_not_confirmed(ask: Caller) -> None:
    old = await ask.fact("Acme")
    await ask.fact("Globex")
    with conflict("not_live"):
        await ask.confirm(old)


async def test_t4_an_episode_cannot_be_confirmed(ask: Caller) -> None:
    with refused("bad_type"):
        await ask.confirm(await ask.episode("It rained"))


async def test_l6_a_clock_that_steps_back_makes_nothing_older(ask: Caller, hands: Hands) -> None:
    written = await stored(ask, "fact")
    hands.pass_(days=-2)
    await ask.confirm(written)
    row = await ask.row(written)
    assert (row["last_confirmed_at"], row["effective_confidence"]) == ("2026-03-01T12:00:00Z", 1.0)


async def test_e7_a_forgotten_episode_is_not_consolidated_until_it_is_restored(ask: Caller) -> None:
    written = await ask.episode("It rained")
    await ask.forget(written)
    row = await ask.row(written)
    assert (row["consolidation_status"], row["last_consolidation_error"]) == ("failed", "forgotten")
    await ask.restore(written)
    row = await ask.row(written)
    assert (row["consolidation_status"], row["last_consolidation_error"]) == ("pending", None)


async def test_f2_any_state_but_retracted_can_be_forgotten(ask: Caller, urls: Urls) -> None:
    old = await ask.fact("Acme")
    await ask.fact("Globex")
    await ask.forget(old)
    assert (await ask.row(old))["validity"] == "retracted"
    assert (await events(urls))[-1] == "retracted"


async def test_f2_restore_is_refused_where_a_live_fact_holds_the_key(ask: Caller, hands: Hands, urls: Urls) -> None:
    old = await ask.fact("Acme")
    new = await ask.fact("Globex")
    hands.pass_(days=2)
    with conflict("key_taken") as caught:
        await ask.restore(old)
    assert caught.value.data == {"live_id": new["id"]}
    assert "replace=true" in caught.value.recovery
    back = await ask.restore(old, replace=True)
    assert (back["state"], back["superseded_id"]) == ("active", new["id"])
    row = await ask.row(old)
    assert (row["validity"], row["superseded_at"]) == ("active", None)
    assert row["last_confirmed_at"] == "2026-03-03T12:00:00Z"
    assert (await ask.row(new))["validity"] == "superseded"
    assert [(x["relation"], x["id"]) for x in (await ask.shape(new))["links"]["in"]] == [("supersedes", old["id"])]
    assert await events(urls) == ["created", "superseded", "created", "superseded", "restored"]
    # And back again: the link is there already, the steps are evented all the same.
    await ask.restore(new, replace=True)
    assert (await ask.row(old))["validity"] == "superseded"


async def test_f3_another_value_of_a_many_valued_key_is_not_in_the_way(ask: Caller) -> None:
    chess = await ask.fact("chess", "hobby")
    await ask.forget(chess)
    await ask.fact("golf", "hobby")
    assert (await ask.restore(chess))["state"] == "active"


async def test_f2_restore_of_a_rule_is_refused_where_a_live_one_says_the_same(ask: Caller) -> None:
    old = await ask.rule("Be brief")
    await ask.forget(old)
    new = await ask.rule("Be brief!")
    assert new["outcome"] == "created", "a forgotten rule does not stand in the way"
    with conflict("key_taken") as caught:
        await ask.restore(old)
    assert caught.value.data == {"live_id": new["id"]}


async def test_f2_r1_restore_of_a_rule_may_replace_the_live_one_that_says_the_same(ask: Caller, urls: Urls) -> None:
    old = await ask.rule("Be brief")
    await ask.forget(old)
    new = await ask.rule("Be brief!")
    with conflict("key_taken") as caught:
        await ask.restore(old)
    assert "replace=true" in caught.value.recovery
    back = await ask.restore(old, replace=True)
    assert (back["state"], back["superseded_id"]) == ("active", new["id"])
    assert back["links"] == [{"relation": "supersedes", "type": "rule", "id": new["id"]}]
    row = await ask.row(new)
    assert (row["status"], row["superseded_at"]) == ("superseded", "2026-03-01T12:00:00Z")
    assert (await ask.row(old))["status"] == "active"
    assert await events(urls) == ["created", "retracted", "created", "superseded", "restored"]


async def test_f2_a_global_rule_is_not_replaced_for_the_sake_of_one_scope(ask: Caller, urls: Urls) -> None:
    mine = await ask.rule("Be brief", scope="health")
    await ask.forget(mine)
    everyones = await ask.rule("Be brief")
    with conflict("key_taken") as caught:
        await ask.restore(mine, replace=True)
    assert caught.value.data == {"live_id": everyones["id"]}
    assert "replace" not in caught.value.recovery
    assert (await ask.row(everyones))["status"] == "active"


async def test_f2_of_many_restores_of_one_rule_at_once_one_wins(ask: Caller, urls: Urls) -> None:
    gone = []
    for _ in range(6):
        gone.append(await ask.rule("Be brief"))
        await ask.forget(gone[-1])
    answers = await asyncio.gather(*(ask.restore(rule) for rule in gone), return_exceptions=True)
    reasons = [getattr(answer, "reason", "") for answer in answers]
    assert sorted(reasons) == ["", *["key_taken"] * 5]
    await asyncio.gather(*(ask.restore(rule, replace=True) for rule in gone))
    assert len(await rows(urls, "SELECT 1 FROM memory.rules WHERE status = 'active'")) == 1


async def test_f5_a_forgotten_fact_is_not_confirmed_by_its_words(ask: Caller, urls: Urls) -> None:
    old = await ask.user_says("Acme")
    await ask.forget(old)
    new = await ask.in_session("later").user_says("Acme")
    assert (new["outcome"], new["id"] != old["id"]) == ("created", True)
    assert (await ask.row(old))["validity"] == "retracted"


@pytest.mark.parametrize("method", ["get", "confirm", "forget", "restore"])
async def test_t2_every_answer_returns_the_request_context(ask: Caller, urls: Urls, method: str) -> None:
    written = await stored(ask, "fact")
    if method == "restore":
        await ask.forget(written)
    context = {"request_id": "r-9", "segment_id": "seg"}
    answer = await ask.call(method, {**named(written), "request_context": context})
    assert answer["request_context"] == context
    last = (await rows(urls, "SELECT request_id, payload FROM memory.memory_events ORDER BY id"))[-1]
    if method != "get":
        assert (last["request_id"], last["payload"]["lineage"]) == ("r-9", {"segment_id": "seg"})
