"""L4: a memory's whole life can be read, by whoever may see the memory."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import EventType, MemoryType
from butler_memory.errors import NotFound
from butler_memory.postgres.changes import Author, Change, apply
from butler_memory.postgres.database import Conn
from butler_memory.postgres.provision import Urls
from butler_memory.security.principal import Principal
from caller import Caller, named
from conftest import Hands, MakePrincipal, owner_connection

Json = dict[str, Any]
pytestmark = pytest.mark.usefixtures("ledger")


async def life_of(caller: Caller, written: Json) -> list[str]:
    return [chapter["told"] for chapter in (await caller.call("history", named(written)))["history"]]


async def happens(engine: Engine, hands: Hands, change: Change) -> None:
    """What a job does."""

    async def work(conn: Conn) -> None:
        await apply(conn, Author("home", "job:sweep", hands.now, uuid4()), [change])

    await engine.database.run("home", work)


async def test_a_fact_that_was_superseded_names_who_came_before_and_after(ask: Caller, hands: Hands) -> None:
    first = await ask.in_session("monday").user_says("Acme")
    hands.pass_(days=3)
    await ask.in_session("thursday").user_says("Acme", importance=8, tags=["work"])
    second = await ask.fact("Globex")
    third = await ask.edit(second, content="Initech")
    assert await life_of(ask, first) == [
        "stored by butler health in session monday as the user said it: User's employer is Acme",
        "said again by butler health in session thursday: importance from 5 to 8; tags from none to work",
        f"superseded by fact {second['id']} (User's employer is Globex)",
    ]
    assert await life_of(ask, second) == [
        f"stored by butler health as an agent understood it: User's employer is Globex;"
        f" in place of fact {first['id']} (User's employer is Acme)",
        f"superseded by fact {third['id']} (User's employer is Initech)",
    ]


async def test_a_fact_that_was_superseded_twice_names_each_successor_at_its_time(ask: Caller, hands: Hands) -> None:
    fact = await ask.fact("Acme")
    hands.pass_(days=1)
    second = await ask.fact("Globex")
    hands.pass_(days=1)
    await ask.restore(fact, replace=True)
    hands.pass_(days=1)
    third = await ask.fact("Initech")
    assert (await life_of(ask, fact))[1:] == [
        f"superseded by fact {second['id']} (User's employer is Globex)",
        f"restored by butler health: in place of fact {second['id']} (User's employer is Globex)",
        f"superseded by fact {third['id']} (User's employer is Initech)",
    ]


async def test_a_history_has_its_shape(ask: Caller) -> None:
    old = await ask.fact("Acme")
    new = await ask.call(
        "store_fact",
        {"subject": "user", "predicate": "employer", "content": "Globex", "request_context": {"request_id": "r-1"}},
    )
    answer = await ask.call("history", {**named(new), "request_context": {"segment_id": "s"}})
    link = {"way": "out", "relation": "supersedes", "type": "fact", "id": old["id"], "line": "User's employer is Acme"}
    [chapter] = answer["history"]
    assert answer == {
        "type": "fact",
        "id": new["id"],
        "history": [chapter],
        "links": [link | {"created_at": "2026-03-01T12:00:00Z"}],
        "request_context": {"segment_id": "s"},
    }
    assert chapter == {
        "version": 1,
        "event_type": "created",
        "occurred_at": "2026-03-01T12:00:00Z",
        "actor": "butler:health",
        "request_id": "r-1",
        "told": chapter["told"],
        "links": [link],
    }


async def test_a_fact_that_fades_comes_back_and_is_forgotten(ask: Caller, engine: Engine, hands: Hands) -> None:
    fact = await ask.fact("Acme")
    hands.pass_(days=201)
    fact_id = UUID(fact["id"])
    await happens(engine, hands, Change(MemoryType.FACT, fact_id, 2, EventType.FADED, {"validity": "fading"}))
    await happens(engine, hands, Change(MemoryType.FACT, fact_id, 3, EventType.CONFIDENCE_ALERT, {}))
    await ask.confirm(fact)
    hands.pass_(days=1)
    await happens(engine, hands, Change(MemoryType.FACT, fact_id, 5, EventType.EXPIRED, {"validity": "expired"}))
    await ask.restore(fact)
    await ask.forget(fact)
    assert (await life_of(ask, fact))[1:] == [
        "faded after 201 days without confirmation",
        "asked to be confirmed, as it fades away",
        "confirmed by butler health: no longer fading",
        "expired after 1 day without confirmation",
        "restored by butler health",
        "forgotten by butler health",
    ]


async def test_a_rule_rises_falls_and_becomes_a_warning(ask: Caller, admin: Principal) -> None:
    rule = await ask.rule("Be brief")
    await ask.in_session("later").rule("be brief!")
    for _ in range(5):
        await ask.call("mark_helpful", {"rule_id": rule["id"]})
    await ask.call("mark_harmful", {"rule_id": rule["id"], "reason": "It was rude"})
    for standing in ("promote", "disable", "enable"):
        await ask.as_(admin).call("set_standing", {"rule_id": rule["id"], "standing": standing})
    told = await life_of(ask, rule)
    assert told[:1] == ["stored by butler health as an agent understood it: Be brief"]
    assert told[1] == "said again by butler health in session later"
    assert told[2:7] == ["marked helpful by butler health"] * 5
    assert told[7:] == [
        "promoted to established after 5 helpful marks",
        "marked harmful by butler health: It was rude",
        "demoted to candidate after 1 harmful mark",
        "promoted to established by admin desk, and held there",
        "disabled by admin desk",
        "enabled by admin desk",
    ]


async def test_r4_a_warning_tells_what_it_says_and_its_successor(ask: Caller, admin: Principal) -> None:
    rule = await ask.rule("Be brief")
    for _ in range(3):
        await ask.call("mark_harmful", {"rule_id": rule["id"], "reason": "It was rude"})
    back = await ask.as_(admin).call("set_standing", {"rule_id": rule["id"], "standing": "undo"})
    assert (await life_of(ask, rule))[-2:] == [
        "became a warning after 3 harmful marks: ANTI-PATTERN: Do NOT Be brief. This caused problems because:"
        " It was rude",
        f"superseded by rule {back['id']} (Be brief)",
    ]


async def test_late_evidence_and_evidence_of_episodes_are_told(ask: Caller) -> None:
    newer = await ask.fact("Globex", valid_from="2026-02-01T00:00:00Z")
    older = await ask.fact("Acme", valid_from="2025-02-01T00:00:00Z")
    [stored] = await life_of(ask, older)
    assert "when something newer was known already; User's employer is Acme" in stored
    assert (await life_of(ask, newer))[1] == f"linked: in place of fact {older['id']} (User's employer is Acme)"
    [link] = (await ask.call("history", named(older)))["links"]
    assert (link["way"], link["relation"], link["id"]) == ("in", "supersedes", newer["id"])


class TestEpisodes:
    async def test_consolidation_is_told(self, ask: Caller, engine: Engine, hands: Hands) -> None:
        episode = await ask.episode("It rained", session_id="s")
        for version, event, values in (
            (2, EventType.CONSOLIDATION_FAILED,
             {"consolidation_status": "pending", "last_consolidation_error": "no JSON"}),
            (3, EventType.CONSOLIDATION_FAILED,
             {"consolidation_status": "dead_letter", "last_consolidation_error": "no JSON"}),
            (4, EventType.REQUEUED, {"consolidation_status": "pending", "last_consolidation_error": None}),
            (5, EventType.CONSOLIDATED, {"consolidation_status": "consolidated"}),
        ):  # fmt: skip
            await happens(engine, hands, Change(MemoryType.EPISODE, UUID(episode["id"]), version, event, values))
        told = await life_of(ask, episode)
        assert told[0].startswith("stored by butler health in session ")
        assert told[1:] == [
            "could not be consolidated yet and will be tried again: no JSON",
            "could not be consolidated; all attempts are used up: no JSON",
            "queued for consolidation again by job sweep",
            "consolidated",
        ]

    async def test_e4_what_remains_of_a_deleted_one_is_told_to_whom_it_was_shown(
        self, ask: Caller, engine: Engine, urls: Urls, hands: Hands, principal: MakePrincipal, admin: Principal
    ) -> None:
        episode = await ask.episode("It rained")
        change = Change(MemoryType.EPISODE, UUID(episode["id"]), 2, EventType.DELETED, {}, noted={"reason": "expired"})
        await happens(engine, hands, change)
        async with owner_connection(urls) as conn:
            await conn.execute(
                "INSERT INTO memory.episode_tombstones SELECT tenant_id, id, butler, session_id, occurred_at,"
                " created_at, %s, 'expired', 'digest' FROM memory.episodes", [hands.now],
            )  # fmt: skip
            await conn.execute("DELETE FROM memory.episodes")
            await conn.execute("DELETE FROM memory.memory_event_bodies")
        remains = [
            "stored by butler health as an agent understood it (its text is gone)", "deleted: its time was over",
        ]  # fmt: skip
        assert await life_of(ask, episode) == remains
        assert await life_of(ask.as_(admin), episode) == remains
        with pytest.raises(NotFound):
            await life_of(ask.as_(await principal("chef")), episode)
        feed = await ask.call("activity_stream", {})
        assert [event["summary"] for event in feed["events"]] == [
            "episode stored (its text is gone)", "episode deleted: its time was over",
        ]  # fmt: skip
        assert (await ask.as_(await principal("chef")).call("activity_stream", {}))["events"] == []


async def test_t3_a_foreign_scopes_id_is_not_found_and_its_words_are_not_told(
    ask: Caller, principal: MakePrincipal, admin: Principal
) -> None:
    chef = ask.as_(await principal("chef"))
    for own in (await chef.fact("secret", scope="chef"), await chef.rule("Whisk", scope="chef"),
                await chef.episode("It boiled")):  # fmt: skip
        answers = []
        for memory_id in (own["id"], str(uuid4())):
            with pytest.raises(NotFound) as refused:
                await ask.call("history", {"type": own["type"], "id": memory_id})
            answers.append(refused.value.as_dict())
        assert answers[0] == answers[1]
        assert await life_of(ask.as_(admin), own)


async def test_the_line_of_a_memory_in_a_foreign_scope_is_left_out(
    ask: Caller, principal: MakePrincipal, engine: Engine, hands: Hands
) -> None:
    from butler_memory.domain.kinds import Relation
    from butler_memory.postgres.changes import Link

    chef = ask.as_(await principal("chef"))
    secret = await chef.fact("secret", scope="chef")
    mine = await ask.rule("Be brief")
    link = Link(Relation.CONTRADICTS, MemoryType.FACT, UUID(secret["id"]))
    await happens(engine, hands, Change(MemoryType.RULE, UUID(mine["id"]), 2, EventType.LINKED, {}, links=(link,)))
    assert (await life_of(ask, mine))[1] == f"linked: contradicts fact {secret['id']}"
