"""What a person decides about a rule (R1, R4, R9)."""

from __future__ import annotations

from typing import Any

import pytest

from butler_memory.errors import InvalidInput, NotFound
from butler_memory.postgres.provision import Urls
from butler_memory.security.principal import Principal
from caller import Caller, Json, conflict, forbidden
from conftest import rows

pytestmark = pytest.mark.usefixtures("ledger")


@pytest.fixture
def person(ask: Caller, admin: Principal) -> Caller:
    return ask.as_(admin)


@pytest.fixture
async def rule(ask: Caller) -> Json:
    return await ask.rule("Always send the report on Fridays")


async def decide(person: Caller, standing: str, rule: Json) -> Json:
    return await person.call("set_standing", {"rule_id": rule["id"], "standing": standing})


async def mark(ask: Caller, rule: Json, outcome: str, times: int = 1) -> None:
    for _ in range(times):
        await ask.call(f"mark_{outcome}", {"rule_id": rule["id"]})


async def level(ask: Caller, rule: Json) -> tuple[str, bool]:
    row = await ask.row(rule)
    return row["maturity"], row["pinned"]


async def test_r1_a_level_goes_up_and_down_by_hand_and_is_pinned(person: Caller, rule: Json, urls: Urls) -> None:
    seen: list[Any] = []
    for step in ("promote", "promote", "promote", "demote", "demote", "demote"):
        await decide(person, step, rule)
        seen.append((await level(person, rule))[0])
    assert seen == ["established", "proven", "proven", "established", "candidate", "candidate"]
    assert (await level(person, rule))[1]
    kinds = "'promoted', 'demoted'"
    assert len(await rows(urls, f"SELECT 1 FROM memory.memory_events WHERE event_type IN ({kinds})")) == 4


async def test_r1_a_pinned_level_holds_until_somebody_is_harmed(ask: Caller, person: Caller, rule: Json) -> None:
    await decide(person, "promote", rule)
    await decide(person, "demote", rule)
    await mark(ask, rule, "helpful", 20)
    assert await level(ask, rule) == ("candidate", True)
    await mark(ask, rule, "harmful")
    assert await level(ask, rule) == ("candidate", False)
    await mark(ask, rule, "helpful")
    assert (await level(ask, rule))[0] == "established"


async def test_r1_a_disabled_rule_is_not_served_and_not_learned_again(ask: Caller, person: Caller, rule: Json) -> None:
    assert (await decide(person, "disable", rule))["state"] == "disabled"
    assert (await ask.call("recall", {"topic": "send the report on Fridays"}))["results"] == []
    with conflict("disabled_rule"):
        await ask.rule("Always send the report on Fridays")
    assert (await decide(person, "enable", rule))["state"] == "active"
    assert len((await ask.call("recall", {"topic": "send the report on Fridays"}))["results"]) == 1


async def test_e7_a_repeated_decision_changes_nothing(person: Caller, rule: Json) -> None:
    for standing in ("disable", "enable"):
        await decide(person, standing, rule)
        version = (await person.row(rule))["version"]
        await decide(person, standing, rule)
        assert (await person.row(rule))["version"] == version


async def test_r9_the_undo_of_a_warning_is_a_new_candidate_and_the_marks_stay(
    ask: Caller, person: Caller, rule: Json, urls: Urls
) -> None:
    await mark(ask, rule, "harmful", 3)
    undone = await decide(person, "undo", rule)
    assert (undone["outcome"], undone["superseded_id"]) == ("superseded", rule["id"])
    old, new = await person.row(rule), await person.row(undone)
    assert (old["status"], old["maturity"], old["harmful_count"]) == ("superseded", "anti_pattern", 3)
    assert (new["content"], new["maturity"]) == ("Always send the report on Fridays", "candidate")
    assert (new["applied_count"], new["harmful_count"], new["original_content"]) == (0, 0, None)
    assert new["fades_at"] is not None, "a rule decays again"
    assert len(await rows(urls, "SELECT 1 FROM memory.rule_applications")) == 3
    assert (await ask.in_session("later").rule("Always send the report on Fridays"))["outcome"] == "confirmed"


async def test_a_decision_that_does_not_fit_is_a_conflict(ask: Caller, person: Caller, rule: Json) -> None:
    with conflict("no_warning"):
        await decide(person, "undo", rule)
    await mark(ask, rule, "harmful", 3)
    with conflict("no_level"):
        await decide(person, "promote", rule)
    await ask.forget(rule)
    with conflict("not_live"):
        await decide(person, "disable", rule)
    with conflict("not_disabled"):
        await decide(person, "enable", rule)


async def test_only_a_person_decides(ask: Caller, person: Caller, rule: Json) -> None:
    for standing in ("promote", "demote", "disable", "enable", "undo"):
        with forbidden("needs_admin"):
            await decide(ask, standing, rule)
    with pytest.raises(InvalidInput):
        await decide(person, "delete", rule)
    with pytest.raises(NotFound):
        await decide(person, "undo", {"id": "018f0000-0000-7000-8000-000000000000"})
