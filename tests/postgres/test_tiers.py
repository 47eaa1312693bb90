"""Tiers are a view over the types (J4)."""

from __future__ import annotations

from uuid import UUID

import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.requests import StoreFact, parse
from butler_memory.writing import facts
from caller import Caller, Json, refused
from conftest import Hands

pytestmark = pytest.mark.usefixtures("ledger")


async def found_in(ask: Caller, tier: str, **more: object) -> set[str]:
    answer = await ask.call("search", {"tier": tier, "limit": 50, **more})
    assert {result["tier"] for result in answer["results"]} <= {tier}
    return {result["id"] for result in answer["results"]}


@pytest.fixture
async def stored(ask: Caller) -> dict[str, Json]:
    made = {
        "episode": await ask.episode("It rained on the fence"),
        "standard": await ask.fact("Acme", "customer"),
        "ephemeral": await ask.fact("soup", "recent_meal", permanence="ephemeral"),
        "stable": await ask.fact("Bern", "town", permanence="stable"),
        "permanent": await ask.fact("Jo", "name"),
        "candidate": await ask.rule("Be brief"),
        "established": await ask.rule("Send the report on Fridays"),
    }
    for _ in range(5):
        await ask.call("mark_helpful", {"rule_id": made["established"]["id"]})
    return made


async def test_j4_each_memory_is_in_one_tier(ask: Caller, stored: dict[str, Json]) -> None:
    ids = {name: written["id"] for name, written in stored.items()}
    assert await found_in(ask, "eden") == {ids["episode"]}
    assert await found_in(ask, "mid") == {ids["standard"], ids["ephemeral"], ids["candidate"]}
    assert await found_in(ask, "long") == {ids["stable"], ids["permanent"], ids["established"]}
    assert (await ask.call("stats", {}))["tiers"] == {"eden": 1, "mid": 3, "long": 3}
    assert (await ask.row(stored["stable"]))["tier"] == "long"


async def test_j4_the_filter_goes_before_the_limit_and_with_a_question(ask: Caller, stored: dict[str, Json]) -> None:
    assert await found_in(ask, "long", query="report Fridays", limit=1) == {stored["established"]["id"]}
    assert await found_in(ask, "mid", types=["rule"]) == {stored["candidate"]["id"]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"tier": "eden", "types": ["fact"]},
        {"tier": "long", "types": ["episode"]},
        {"tier": "eden", "subject": "user"},
    ],
)
async def test_t4_a_tier_that_cannot_hold_what_is_asked_is_refused(ask: Caller, wrong: Json) -> None:
    with refused("bad_filter"):
        await ask.call("search", wrong)


async def test_t4_an_unknown_tier_is_refused_with_the_known_ones(ask: Caller) -> None:
    with refused("enum") as error:
        await ask.call("store", {"content": "x", "tier": "old"})
    assert "'eden', 'mid' or 'long'" in error.value.message


@pytest.mark.parametrize(
    ("tier", "kind", "permanence"),
    [(None, "episode", None), ("eden", "episode", None), ("mid", "fact", "standard"), ("long", "fact", "stable")],
)
async def test_j4_a_note_becomes_what_its_tier_holds(
    ask: Caller, tier: str | None, kind: str, permanence: str | None
) -> None:
    written = await ask.call("store", {"content": "The gate code changed", "tags": ["gate"], "tier": tier})
    row = await ask.row(written)
    assert (written["type"], row.get("permanence"), row["tags"]) == (kind, permanence, ["gate"])
    assert row["tier"] == (tier or "eden")
    if kind == "fact":
        assert (row["subject"], row["predicate"]) == ("user", "note")
        again = await ask.call("store", {"content": "The fence is red", "tier": tier})
        assert again["outcome"] == "created", "a note does not supersede another"


async def test_j4_the_source_is_a_session_a_promotion_or_a_persons_hand(
    ask: Caller, engine: Engine, hands: Hands
) -> None:
    session = "018f0000-0000-7000-8000-000000000001"
    episode = await ask.in_session(session).episode("User said: my name is Jo")
    request = parse(StoreFact, {"subject": "user", "predicate": "name", "content": "Jo"})
    promoted = await facts.store_fact(engine.desk, ask.who, request, hands.now, evidence=[UUID(episode["id"])])
    by_hand = await ask.fact("Acme", "customer")
    sources = {result["id"]: result["source"] for result in (await ask.call("search", {"limit": 50}))["results"]}
    assert sources == {
        episode["id"]: f"session:{session}",
        str(promoted.id): f"promotion:{episode['id']}",
        by_hand["id"]: "manual",
    }
    assert (await ask.row(by_hand))["source"] == "manual"
