"""The life of memories over two years, in one story: nothing important is lost, nothing stale is served as sure."""

from __future__ import annotations

import pytest

from caller import Caller
from conftest import Hands, OpenEngine
from reading import Away

pytestmark = pytest.mark.usefixtures("ledger")


async def test_two_years_of_a_memory(ask: Caller, open_engine: OpenEngine, hands: Hands) -> None:
    engine = await open_engine(episode_reader=Away())
    await engine.workers.run_due()
    project = await ask.user_says("the northern garden project", "current_project", permanence="standard")
    allergy = await ask.user_says("penicillin", "allergy", permanence="standard", importance=9)
    for day in range(7):  # consolidation cannot run all week
        await ask.in_session(f"s{day}").episode(f"day {day} in the garden")
        await engine.workers.run_due()
        hands.pass_(days=1)

    hands.pass_(days=203)  # nobody has mentioned the project for 210 days
    await engine.workers.run_due()
    assert (await ask.row(project))["validity"] == "fading"
    found = await ask.call("recall", {"topic": "garden project"})
    assert (found["results"], found["hidden"]["decayed"]) == ([], 1)
    assert "northern garden project" not in (await ask.call("context", {"trigger_prompt": "garden project"}))["block"]

    await ask.in_session("later").confirm(project)
    found = await ask.call("recall", {"topic": "garden project"})
    assert [result["id"] for result in found["results"]] == [project["id"]]
    assert found["results"][0]["effective_confidence"] == 1.0

    stats = await ask.call("stats", {})
    assert stats["facts"]["unconfirmed"] == 1
    assert [fact["id"] for fact in await engine.memory.unconfirmed(ask.who, 10)] == [allergy["id"]]
    hands.pass_(days=500)
    await engine.workers.run_due()
    assert (await ask.row(project))["validity"] == "expired"
    served = (await ask.call("recall", {"topic": "penicillin"}))["results"]
    assert [(result["id"], result["state"]) for result in served] == [(allergy["id"], "fading")]
    assert served[0]["unconfirmed_since"].startswith("2026-03-01")
    assert "unconfirmed since 2026-03" in (await ask.call("context", {"trigger_prompt": "penicillin"}))["block"]
    await ask.in_session("much later").confirm(allergy)
    assert "unconfirmed_since" not in (await ask.call("recall", {"topic": "penicillin"}))["results"][0]
    assert (await ask.call("stats", {}))["facts"]["unconfirmed"] == 0

    await ask.restore(project)
    assert (await ask.row(project))["validity"] == "active"
    episodes = await ask.call("search", {"types": ["episode"], "limit": 50})
    assert len(episodes["results"]) == 7, "a week that nobody could read is still there after two years"
    backlog = (await ask.call("stats", {}))["backlog"]
    assert (backlog["pending"], backlog["kept_past_their_time"]) == (7, 7)
