"""A person's correction by id (F2, F7, R9)."""

from __future__ import annotations

import pytest

from butler_memory.domain.kinds import Role
from butler_memory.postgres.provision import Urls
from caller import Caller, conflict, forbidden, refused
from conftest import Hands, MakePrincipal, rows

pytestmark = pytest.mark.usefixtures("ledger")


async def test_f2_new_words_make_a_new_fact_that_keeps_the_rest(ask: Caller, hands: Hands) -> None:
    old = await ask.fact(
        "Acme", permanence="permanent", importance=8, tags=["work"], confidence=0.4, metadata={"a": 1}, scope="health"
    )
    hands.pass_(days=1)
    new = await ask.edit(old, content="Acme Corp")
    assert (new["outcome"], new["superseded_id"], new["state"]) == ("superseded", old["id"], "active")
    row = await ask.row(new)
    assert (row["content"], row["source_kind"], row["confidence"]) == ("Acme Corp", "corrected", 1.0)
    assert (row["permanence"], row["importance"], row["tags"], row["metadata"]) == ("permanent", 8, ["work"], {"a": 1})
    assert (row["scope"], row["version"], row["supersedes_id"]) == ("health", 1, old["id"])
    assert row["created_at"] == row["last_confirmed_at"] == "2026-03-02T12:00:00Z"
    before = await ask.row(old)
    assert (before["validity"], before["superseded_at"]) == ("superseded", "2026-03-02T12:00:00Z")


async def test_f7_the_corrected_row_names_who_corrected_it(ask: Caller, principal: MakePrincipal) -> None:
    old = await ask.fact("Acme", request_context={"request_id": "r-old", "session_id": "s-old"})
    admin = ask.as_(await principal("desk", Role.ADMIN))
    new = await admin.edit(old, content="Globex", request_context={"request_id": "r-new"})
    row = await ask.row(new)
    assert (row["source_butler"], row["request_id"], row["source_session_id"]) == ("desk", "r-new", None)
    rule = await ask.rule("Be brief", request_context={"request_id": "r-old"})
    row = await ask.row(await admin.edit(rule, content="Be very brief", request_context={"request_id": "r-new"}))
    assert (row["source_butler"], row["request_id"]) == ("desk", "r-new")


@pytest.mark.parametrize("kind", ["fact", "rule"])
async def test_f5_attributes_alone_are_changed_in_place(ask: Caller, urls: Urls, kind: str) -> None:
    old = await getattr(ask, kind)("Always water the plants")
    answer = await ask.edit(old, importance=9, permanence="permanent", tags=["garden"])
    assert (answer["id"], answer["superseded_id"]) == (old["id"], None)
    row = await ask.row(old)
    assert (row["importance"], row["permanence"], row["tags"], row["version"]) == (9, "permanent", ["garden"], 2)
    assert (row["decay_rate"], row["fades_at"], row["expires_at_conf"]) == (0.0, None, None)
    await ask.edit(old, importance=9, content="Always water the plants")
    assert (await ask.row(old))["version"] == 2, "nothing differs: nothing is written"
    found = await rows(urls, "SELECT event_type FROM memory.memory_events ORDER BY id")
    assert [row["event_type"] for row in found] == ["created", "revised"]


@pytest.mark.parametrize(("kind", "state"), [("fact", "validity"), ("rule", "status")])
async def test_f2_r9_a_capital_letter_or_a_full_stop_is_a_correction(ask: Caller, kind: str, state: str) -> None:
    """Statements are compared in normal form (F10), a person's words to the letter."""
    old = await getattr(ask, kind)("never use tabs")
    for words in ("NEVER use tabs", "NEVER use tabs!"):
        new = await ask.edit(old, content=words)
        assert (new["outcome"], new["superseded_id"]) == ("superseded", old["id"])
        assert (await ask.row(new))["content"] == words
        assert (await ask.row(old))[state] == "superseded"
        old = new


async def test_r9_a_rules_new_text_starts_again_as_a_candidate(ask: Caller, urls: Urls) -> None:
    old = await ask.rule("Water the plants daily", confidence=0.9, importance=7, tags=["garden"])
    new = await ask.edit(old, content="Water the plants weekly")
    assert new["superseded_id"] == old["id"]
    row = await ask.row(new)
    assert (row["maturity"], row["status"], row["source_kind"]) == ("candidate", "active", "corrected")
    assert (row["applied_count"], row["success_count"], row["harmful_count"]) == (0, 0, 0)
    assert (row["importance"], row["tags"], row["supersedes_id"]) == (7, ["garden"], old["id"])
    assert (await ask.row(old))["status"] == "superseded"
    assert (await ask.rule("water plants weekly"))["id"] == new["id"]


async def test_f3_a_correction_into_another_live_value_is_a_conflict(ask: Caller) -> None:
    chess, golf = [await ask.fact(content, "hobby") for content in ("chess", "golf")]
    with conflict("key_taken") as caught:
        await ask.edit(golf, content="Chess")
    assert caught.value.data == {"live_id": chess["id"]}
    first, second = await ask.rule("Be brief"), await ask.rule("Be kind")
    with conflict("key_taken") as caught:
        await ask.edit(second, content="be brief!")
    assert caught.value.data == {"live_id": first["id"]}


async def test_f11_a_correction_into_another_value_in_other_words_is_a_conflict(ask: Caller) -> None:
    chess, go = [await ask.user_says(content, "hobby") for content in ("playing chess", "go")]
    with conflict("key_taken") as caught:
        await ask.edit(go, content="Chess playing")
    assert caught.value.data == {"live_id": chess["id"]}
    assert (await ask.edit(chess, content="chess, playing"))["outcome"] == "superseded", "its own words are free"


async def test_f3_a_corrected_value_of_a_many_valued_key_gets_its_own_slot(ask: Caller) -> None:
    golf = await ask.fact("golf", "hobby")
    tennis = await ask.edit(golf, content="tennis")
    assert (await ask.fact("Tennis", "hobby"))["id"] == tennis["id"]
    assert (await ask.fact("golf", "hobby"))["outcome"] == "created"


async def test_f3_a_corrected_date_moves_a_dated_observation(ask: Caller) -> None:
    first = await ask.fact("80 kg", "weight", valid_from="2026-01-01T08:00:00Z")
    await ask.edit(first, valid_from="2026-01-02T08:00:00Z")
    assert (await ask.fact("80 kg", "weight", valid_from="2026-01-02T08:00:00Z"))["id"] == first["id"]
    other = await ask.fact("80 kg", "weight", valid_from="2026-01-01T08:00:00Z")
    assert other["outcome"] == "created"
    with conflict("key_taken"):
        await ask.edit(other, valid_from="2026-01-02T08:00:00Z")


async def test_f2_only_what_is_live_can_be_edited(ask: Caller) -> None:
    old = await ask.fact("Acme")
    await ask.forget(old)
    with conflict("not_live"):
        await ask.edit(old, content="Globex")


async def test_t4_a_range_is_checked_against_what_is_stored(ask: Caller) -> None:
    old = await ask.fact("Acme", valid_from="2026-01-01T00:00:00Z")
    with refused("bad_range"):
        await ask.edit(old, valid_to="2025-01-01T00:00:00Z")
    assert (await ask.row(old))["version"] == 1


async def test_a_reader_cannot_edit(ask: Caller, principal: MakePrincipal) -> None:
    old = await ask.fact("Acme")
    with forbidden("read_only"):
        await ask.as_(await principal("auditor", Role.READER)).edit(old, content="Globex")
