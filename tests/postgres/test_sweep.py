"""What time does: fading, expiry, the queue of what is asked about, rules by age (J2, J3, R3, R4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import JobName, Permanence, RunOutcome, Sensitivity
from butler_memory.domain.predicates import Predicate
from butler_memory.postgres.provision import Urls
from butler_memory.security.principal import Principal
from butler_memory.upkeep import decay_sweep
from caller import Caller, Json
from conftest import Hands, MakePrincipal, OpenEngine, rows

pytestmark = pytest.mark.usefixtures("ledger")


async def swept(engine: Engine) -> Mapping[str, int]:
    ran = await engine.workers.run_now(JobName.DECAY_SWEEP, "home")
    assert ran[0].run is not None
    assert ran[0].run.outcome is RunOutcome.OK
    return {name: count for name, count in ran[0].run.counts.items() if count}


async def events_of(urls: Urls, memory: Json) -> list[str]:
    found = await rows(
        urls, "SELECT event_type FROM memory.memory_events WHERE entity_id = %s ORDER BY entity_version", memory["id"]
    )
    return [row["event_type"] for row in found]


async def state(ask: Caller, memory: Json) -> str:
    row = await ask.row(memory)
    return str(row.get("validity") or row["status"])


async def test_j2_a_fact_fades_is_alerted_and_expires_each_once(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls
) -> None:
    fact = await ask.fact("Acme", "customer", permanence="standard")
    assert await swept(engine) == {}
    hands.pass_(days=202)  # ln(1 / 0.2) / 0.008 = 201.2
    assert await swept(engine) == {"facts_faded": 1}
    assert await state(ask, fact) == "fading"
    assert await events_of(urls, fact) == ["created", "faded", "confidence_alert"]
    assert await swept(engine) == {}
    hands.pass_(days=173)  # ln(1 / 0.05) / 0.008 = 374.5
    assert await swept(engine) == {"facts_expired": 1}
    assert await state(ask, fact) == "expired"
    assert await events_of(urls, fact) == ["created", "faded", "confidence_alert", "expired"]
    assert await swept(engine) == {}


async def test_f2_what_is_past_both_limits_expires_at_once(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls
) -> None:
    fact = await ask.fact("ramen", "recent_meal", permanence="ephemeral")
    hands.pass_(days=40)
    assert await swept(engine) == {"facts_expired": 1}
    assert await events_of(urls, fact) == ["created", "expired"]


async def test_f2_a_fading_fact_that_is_confirmed_is_active_and_begins_anew(
    ask: Caller, engine: Engine, hands: Hands
) -> None:
    fact = await ask.fact("Acme", "customer")
    hands.pass_(days=202)
    await swept(engine)
    await ask.confirm(fact)
    assert await state(ask, fact) == "active"
    hands.pass_(days=200)
    assert await swept(engine) == {}
    hands.pass_(days=2)
    assert await swept(engine) == {"facts_faded": 1}


async def test_lesson_what_is_restored_after_expiry_is_served_again(ask: Caller, engine: Engine, hands: Hands) -> None:
    fact = await ask.fact("Acme", "customer")
    hands.pass_(days=400)
    assert await swept(engine) == {"facts_expired": 1}
    await ask.restore(fact)
    found = await ask.call("recall", {"topic": "customer Acme"})
    assert [result["id"] for result in found["results"]] == [fact["id"]]
    assert await swept(engine) == {}


@pytest.mark.parametrize(
    "more",
    [
        {"predicate": "customer", "importance": 8},
        {"predicate": "allergy", "permanence": "standard"},
        {"predicate": "birthday", "permanence": "stable"},
    ],
    ids=["importance", "sensitivity", "permanence"],
)
async def test_j3_an_important_fact_is_asked_about_and_served_as_unconfirmed_but_does_not_expire(
    ask: Caller, engine: Engine, hands: Hands, more: dict[str, Any]
) -> None:
    fact = await ask.fact("peanuts", **more)
    since = (await ask.row(fact))["last_confirmed_at"]
    hands.pass_(days=2000)
    assert await swept(engine) == {"facts_faded": 1}
    assert await swept(engine) == {}
    found = (await ask.call("recall", {"topic": "peanuts"}))["results"]
    assert [(result["id"], result["state"], result["unconfirmed_since"]) for result in found] == [
        (fact["id"], "fading", since)
    ]
    assert (await ask.call("recall", {"topic": "peanuts", "min_confidence": 0.3}))["results"] == []
    block = (await ask.call("context", {"trigger_prompt": "peanuts"}))["block"]
    assert "unconfirmed since 2026-03" in block
    await ask.confirm(fact)
    found = (await ask.call("recall", {"topic": "peanuts"}))["results"]
    assert "unconfirmed_since" not in found[0]
    assert "confirmed 0m ago" in (await ask.call("context", {"trigger_prompt": "peanuts"}))["block"]


async def test_j3_what_a_tenant_says_of_a_predicate_goes_before_what_we_do(
    ask: Caller, engine: Engine, hands: Hands, admin: Principal
) -> None:
    predicates = {"allergy": Sensitivity.NORMAL, "secret_wish": Sensitivity.SENSITIVE}
    for name, sensitivity in predicates.items():
        entry = Predicate(name, permanence=Permanence.STANDARD, sensitivity=sensitivity, builtin=False)
        await engine.memory.set_predicate(admin, entry)
    allergy = await ask.fact("peanuts", "allergy", permanence="standard")
    wish = await ask.fact("a boat", "secret_wish", permanence="standard")
    hands.pass_(days=2000)
    assert await swept(engine) == {"facts_expired": 1, "facts_faded": 1}
    assert (await state(ask, allergy), await state(ask, wish)) == ("expired", "fading")


async def test_s5_an_ordinary_faded_fact_is_hidden_with_a_count_before_and_after_the_sweep(
    ask: Caller, engine: Engine, hands: Hands
) -> None:
    await ask.fact("Acme", "customer")
    hands.pass_(days=210)
    for _ in range(2):
        found = await ask.call("recall", {"topic": "customer Acme"})
        assert (found["results"], found["hidden"]["decayed"]) == ([], 1)
        await swept(engine)


async def test_j2_rules_fade_and_expire_and_a_warning_does_not(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls
) -> None:
    rule = await ask.rule("Always send the report on Fridays", confidence=1.0)
    warning = await ask.rule("Never ask twice")
    for _ in range(3):
        await ask.call("mark_harmful", {"rule_id": warning["id"]})
    hands.pass_(days=202)
    assert await swept(engine) == {"rules_faded": 1}
    assert await events_of(urls, rule) == ["created", "faded"]
    hands.pass_(days=173)
    assert await swept(engine) == {"rules_expired": 1}
    assert await state(ask, warning) == "active"


async def test_r3_age_passes_without_a_mark(ask: Caller, engine: Engine, hands: Hands) -> None:
    rule = await ask.rule("Always send the report on Fridays")
    for _ in range(15):
        await ask.call("mark_helpful", {"rule_id": rule["id"]})
    assert (await ask.row(rule))["maturity"] == "established"
    hands.pass_(days=29)
    assert await swept(engine) == {}
    hands.pass_(days=1)
    assert await swept(engine) == {"rules_promoted": 1}
    assert (await ask.row(rule))["maturity"] == "proven"
    assert await swept(engine) == {}


async def test_r1_the_sweep_leaves_a_level_that_a_person_set(
    ask: Caller, engine: Engine, hands: Hands, admin: Principal
) -> None:
    rule = await ask.rule("Always send the report on Fridays")
    for _ in range(15):
        await ask.call("mark_helpful", {"rule_id": rule["id"]})
    await ask.as_(admin).call("set_standing", {"rule_id": rule["id"], "standing": "demote"})
    hands.pass_(days=60)
    assert await swept(engine) == {}
    assert (await ask.row(rule))["maturity"] == "candidate"


async def test_r4_limits_that_were_lowered_make_a_warning_in_the_sweep(
    ask: Caller, open_engine: OpenEngine, urls: Urls, hands: Hands
) -> None:
    rule = await ask.rule("Always send the report on Fridays")
    for reason in ("it was empty", "nobody reads it"):
        await ask.call("mark_harmful", {"rule_id": rule["id"], "reason": reason})
        hands.pass_(hours=1)
    stricter = await open_engine(BUTLER_MEMORY_RULES__HARMFUL_TO_ANTIPATTERN__MIN_HARMFUL="2")
    assert await swept(stricter) == {"rules_inverted": 1}
    row = await ask.row(rule)
    assert row["content"] == (
        "ANTI-PATTERN: Do NOT Always send the report on Fridays."
        " This caused problems because: it was empty; nobody reads it"
    )
    assert (await events_of(urls, rule))[-1] == "inverted"


async def test_changed_thresholds_move_the_times_of_what_is_stored(
    ask: Caller, engine: Engine, open_engine: OpenEngine, hands: Hands
) -> None:
    fact = await ask.fact("Acme", "customer")
    rule = await ask.rule("Always send the report on Fridays", confidence=1.0)
    await swept(engine)
    stricter = await open_engine(BUTLER_MEMORY_FACTS__RETRIEVAL_CONFIDENCE_THRESHOLD="0.5")
    hands.pass_(days=90)  # ln 2 / 0.008 = 86.6
    assert await swept(stricter) == {"rescaled": 2, "facts_faded": 1, "rules_faded": 1}
    assert await swept(stricter) == {}
    assert (await state(ask, fact), await state(ask, rule)) == ("fading", "fading")


async def test_l6_a_clock_that_goes_back_changes_nothing(ask: Caller, engine: Engine, hands: Hands) -> None:
    fact = await ask.fact("Acme", "customer")
    hands.pass_(days=-1000)
    assert await swept(engine) == {}
    assert await state(ask, fact) == "active"


async def test_j2_many_batches_are_one_sweep(
    ask: Caller, engine: Engine, hands: Hands, monkeypatch: pytest.MonkeyPatch, urls: Urls
) -> None:
    monkeypatch.setattr(decay_sweep, "BATCH", 3)
    monkeypatch.setattr(decay_sweep, "BATCHES_A_RUN", 2)
    for n in range(10):
        await ask.fact(f"customer {n}", f"customer_{n}")
    hands.pass_(days=202)
    turns = []
    while sum(counts := [(await swept(engine)).get("facts_faded", 0)]):
        turns += counts
    assert turns == [6, 4]
    found = await rows(urls, "SELECT entity_id, event_type FROM memory.memory_events WHERE event_type = 'faded'")
    assert Counter(row["entity_id"] for row in found).most_common(1)[0][1] == 1
    assert len(found) == 10


async def test_g1_the_sweep_of_one_tenant_leaves_the_others(
    ask: Caller, engine: Engine, hands: Hands, principal: MakePrincipal
) -> None:
    other = ask.as_(await principal(tenant="neighbour"))
    fact = await other.fact("Acme", "customer")
    hands.pass_(days=202)
    assert await swept(engine) == {}
    assert await state(other, fact) == "active"
