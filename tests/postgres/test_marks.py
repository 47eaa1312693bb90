"""How a rule earns and loses trust by being marked (R2 to R5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from butler_memory.domain.kinds import Role
from butler_memory.domain.maturity import effectiveness
from butler_memory.errors import InvalidInput, NotFound
from butler_memory.postgres.provision import Urls
from caller import Caller, Json, conflict, forbidden
from conftest import Hands, MakePrincipal, OpenEngine, rows

pytestmark = pytest.mark.usefixtures("ledger")


async def helpful(ask: Caller, rule: Json, times: int = 1, **more: Any) -> None:
    for _ in range(times):
        await ask.call("mark_helpful", {"rule_id": rule["id"], **more})


async def harmful(ask: Caller, rule: Json, reason: str | None = None, **more: Any) -> None:
    await ask.call("mark_harmful", {"rule_id": rule["id"], "reason": reason, **more})


async def counters(ask: Caller, rule: Json) -> tuple[int, int, int]:
    row = await ask.row(rule)
    return row["applied_count"], row["success_count"], row["harmful_count"]


async def maturity(ask: Caller, rule: Json) -> str:
    return str((await ask.row(rule))["maturity"])


@pytest.fixture
async def rule(ask: Caller) -> Json:
    return await ask.rule("Always send the report on Fridays")


async def test_r5_each_mark_is_a_row_and_the_counters_equal_the_rows(ask: Caller, rule: Json, urls: Urls) -> None:
    await helpful(ask, rule, 3)
    await harmful(ask, rule, "the report was empty")
    kept = await rows(urls, "SELECT outcome, reason FROM memory.rule_applications ORDER BY applied_at, id")
    assert sorted((row["outcome"], row["reason"]) for row in kept) == [
        ("harmful", "the report was empty"), ("helpful", None), ("helpful", None), ("helpful", None),
    ]  # fmt: skip
    assert await counters(ask, rule) == (4, 3, 1)
    assert (await ask.row(rule))["effectiveness_score"] == pytest.approx(effectiveness(3, 1))


async def test_r5_a_repeat_of_a_request_is_the_same_mark(ask: Caller, rule: Json) -> None:
    lineage = {"request_context": {"request_id": "r1"}}
    await helpful(ask, rule, 3, **lineage)
    await harmful(ask, rule, **lineage)
    assert await counters(ask, rule) == (1, 1, 0)
    await helpful(ask, rule, request_context={"request_id": "r2"})
    assert await counters(ask, rule) == (2, 2, 0)


async def test_r5_marks_at_once_all_count(ask: Caller, rule: Json) -> None:
    await asyncio.gather(*(helpful(ask, rule) for _ in range(12)), *(harmful(ask, rule) for _ in range(2)))
    assert await counters(ask, rule) == (14, 12, 2)


async def test_r5_a_helpful_mark_confirms_and_a_harmful_one_does_not(ask: Caller, rule: Json, hands: Hands) -> None:
    made = (await ask.row(rule))["last_confirmed_at"]
    hands.pass_(days=10)
    await harmful(ask, rule)
    assert (await ask.row(rule))["last_confirmed_at"] == made
    await helpful(ask, rule)
    assert (await ask.row(rule))["last_confirmed_at"] > made


async def test_r3_a_rule_climbs_by_success_and_age(ask: Caller, rule: Json, hands: Hands, urls: Urls) -> None:
    await helpful(ask, rule, 4)
    assert await maturity(ask, rule) == "candidate"
    await helpful(ask, rule)
    assert await maturity(ask, rule) == "established"
    await helpful(ask, rule, 10)
    assert await maturity(ask, rule) == "established", "fifteen successes, but too young"
    hands.pass_(days=30)
    await helpful(ask, rule)
    assert await maturity(ask, rule) == "proven"
    events = await rows(urls, "SELECT event_type FROM memory.memory_events WHERE event_type = 'promoted'")
    assert len(events) == 2


async def test_r3_a_harmful_mark_takes_a_rule_down_at_once(ask: Caller, rule: Json) -> None:
    await helpful(ask, rule, 5)
    await harmful(ask, rule)
    assert await maturity(ask, rule) == "candidate", "5 / (5 + 4) is under .6"


async def test_r4_a_rule_that_goes_on_doing_harm_becomes_a_warning(ask: Caller, rule: Json, hands: Hands) -> None:
    for reason in ("the client was on holiday", "numbers were wrong", "the client was on holiday"):
        await harmful(ask, rule, reason)
        hands.pass_(minutes=1)
    row = await ask.row(rule)
    assert row["maturity"] == "anti_pattern"
    assert row["content"] == (
        "ANTI-PATTERN: Do NOT Always send the report on Fridays. This caused problems because: "
        "the client was on holiday; numbers were wrong"
    )
    assert row["original_content"] == "Always send the report on Fridays"
    assert (row["fades_at"], row["expires_at_conf"]) == (None, None)
    hands.pass_(days=2000)
    made = await ask.call("context", {"trigger_prompt": "send the report on Friday?"})
    assert "ANTI-PATTERN: Do NOT Always send the report" in made["block"], "served as a warning, and it does not decay"
    with conflict("known_anti_pattern"):
        await ask.rule("Always send the report on Fridays")
    assert (await ask.rule("Never send the report on Fridays"))["outcome"] == "created"


async def test_r4_without_reasons_the_warning_counts(ask: Caller, rule: Json) -> None:
    for _ in range(3):
        await harmful(ask, rule)
    assert (await ask.row(rule))["content"].endswith("because: reported harmful 3 times")


async def test_r4_marks_of_a_warning_are_kept_and_it_stays_one_that_does_not_decay(
    ask: Caller, rule: Json, hands: Hands
) -> None:
    for _ in range(3):
        await harmful(ask, rule, "late")
    await helpful(ask, rule, 30)
    assert await maturity(ask, rule) == "anti_pattern"
    assert await counters(ask, rule) == (33, 30, 3)
    await ask.in_session("later").confirm(rule)
    await ask.forget(rule)
    await ask.restore(rule)
    await ask.edit(rule, importance=7)
    hands.pass_(days=2000)
    row = await ask.row(rule)
    assert (row["fades_at"], row["expires_at_conf"], row["effective_confidence"]) == (None, None, row["confidence"])


async def test_l3_reasons_are_free_text_and_stand_in_the_body(ask: Caller, rule: Json, urls: Urls) -> None:
    await harmful(ask, rule, "zanzibar")
    assert "zanzibar" not in str(await rows(urls, "SELECT payload FROM memory.memory_events"))
    assert "zanzibar" in str(await rows(urls, "SELECT body FROM memory.memory_event_bodies"))


async def test_t3_a_foreign_rule_and_a_reader_are_refused(
    ask: Caller, principal: MakePrincipal, rule: Json, urls: Urls
) -> None:
    own = await ask.rule("Be brief in health matters", scope="health")
    with pytest.raises(NotFound):
        await helpful(ask.as_(await principal("travel")), own)
    with forbidden("read_only"):
        await helpful(ask.as_(await principal("auditor", Role.READER)), rule)
    assert await rows(urls, "SELECT 1 FROM memory.rule_applications") == []


async def test_a_rule_that_is_not_live_cannot_be_marked(ask: Caller, rule: Json) -> None:
    await ask.forget(rule)
    with conflict("not_live"):
        await helpful(ask, rule)


@pytest.mark.parametrize(
    "bad",
    [{"rule_id": None}, {"rule_id": "x"}, {"rule_id": 5}, {"reason": " "}, {"reason": "x" * 3000}, {"session": "x"}],
)
async def test_t4_bad_marks_are_refused(ask: Caller, rule: Json, urls: Urls, bad: Json) -> None:
    with pytest.raises(InvalidInput):
        await ask.call("mark_harmful", {"rule_id": rule["id"], **bad})
    assert await rows(urls, "SELECT 1 FROM memory.rule_applications") == []


@pytest.mark.parametrize(
    ("key", "value", "marks", "level"),
    [
        ("PROMOTE_TO_ESTABLISHED__MIN_SUCCESSES", "2", (2, 0), "established"),
        ("PROMOTE_TO_ESTABLISHED__MIN_EFFECTIVENESS", "0.999", (5, 0), "candidate"),
        ("PROMOTE_TO_ESTABLISHED__MIN_AGE_DAYS", "1", (5, 0), "candidate"),
        ("PROMOTE_TO_PROVEN__MIN_SUCCESSES", "16", (15, 0), "established"),
        ("PROMOTE_TO_PROVEN__MIN_EFFECTIVENESS", "0.9999", (15, 0), "established"),
        ("PROMOTE_TO_PROVEN__MIN_AGE_DAYS", "0", (15, 0), "proven"),
        ("HARMFUL_TO_ANTIPATTERN__MIN_HARMFUL", "1", (0, 1), "anti_pattern"),
        ("HARMFUL_TO_ANTIPATTERN__MAX_EFFECTIVENESS", "0.0", (0, 3), "candidate"),
    ],
)
async def test_r3_r4_the_steps_of_the_ladder_are_where_they_are_set(
    open_engine: OpenEngine, key: str, value: str, marks: tuple[int, int], level: str
) -> None:
    settings = {f"BUTLER_MEMORY_RULES__{key}": value}
    if "PROVEN" in key and "AGE" not in key:
        settings["BUTLER_MEMORY_RULES__PROMOTE_TO_PROVEN__MIN_AGE_DAYS"] = "0"
    engine = await open_engine(**settings)
    secret, _ = await engine.access.create_token("home", "health", Role.BUTLER)
    ask = Caller(engine.memory, await engine.access.authenticate(secret))
    made = await ask.rule("Always send the report on Fridays")
    await helpful(ask, made, marks[0])
    for _ in range(marks[1]):
        await harmful(ask, made)
    assert await maturity(ask, made) == level
