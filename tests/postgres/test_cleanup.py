"""Episodes leave when their time is over, never before they could be read, and never without a trace (E3, E4, E8)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import JobName, RunOutcome
from butler_memory.errors import NotFound
from butler_memory.llm.ports import Bad, BadOutput
from butler_memory.postgres import leases
from butler_memory.postgres.leases import Run
from butler_memory.postgres.provision import Urls
from butler_memory.security.principal import Principal
from butler_memory.upkeep import cleanup
from caller import Caller, Json
from conftest import Hands, MakePrincipal, OpenEngine, owner_connection, rows
from reading import Away, scripted

pytestmark = pytest.mark.usefixtures("ledger")


async def cleaned(engine: Engine) -> Mapping[str, int]:
    ran = await engine.workers.run_now(JobName.EPISODE_CLEANUP, "home")
    assert ran[0].run is not None
    assert ran[0].run.outcome is RunOutcome.OK
    return {name: count for name, count in ran[0].run.counts.items() if count}


async def read_well(engine: Engine, hands: Hands, butler: str = "health") -> None:
    """Consolidation ran and got to the end, whatever it made of what it read."""
    lease = await engine.database.run_as_worker(
        lambda conn: leases.claim_named(
            conn, JobName.CONSOLIDATE, "home", butler, hands.now, hands.now + timedelta(hours=6), 60
        )
    )
    assert lease
    run = Run(RunOutcome.OK, hands.now, hands.now, {}, caught_up=True)
    await engine.database.run_as_worker(lambda conn: leases.finish(conn, lease, run))


async def set_status(urls: Urls, status: str, *episodes: Json) -> None:
    """As consolidation would leave them, with the event that says so."""
    async with owner_connection(urls) as conn:
        for episode in episodes:
            await conn.execute(
                """
                WITH changed AS (UPDATE memory.episodes SET consolidation_status = %(status)s, version = version + 1
                                 WHERE id = %(id)s RETURNING *)
                INSERT INTO memory.memory_events (tenant_id, event_type, entity_type, entity_id, entity_version,
                                                  occurred_at, actor, payload)
                SELECT tenant_id, 'consolidated', 'episode', id, version, created_at, 'test',
                       jsonb_build_object('set', jsonb_build_object('consolidation_status', %(status)s::text))
                FROM changed
                """,
                {"status": status, "id": episode["id"]},
            )


async def left(urls: Urls) -> set[str]:
    return {row["content"] for row in await rows(urls, "SELECT content FROM memory.episodes")}


async def test_e3_a_week_of_broken_consolidation_loses_no_episode(
    ask: Caller, open_engine: OpenEngine, hands: Hands, urls: Urls, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await open_engine(episode_reader=Away())
    for day in range(7):
        await ask.episode(f"day {day}")
        hands.pass_(minutes=2)
        await engine.workers.run_due()  # and fails each time
        hands.pass_(days=1)
    hands.pass_(days=30)
    assert await cleaned(engine) == {"kept_past_their_time": 7}
    assert "7 episodes are kept past their time" in caplog.text
    assert len(await left(urls)) == 7
    stats = await ask.call("stats", {})
    assert stats["backlog"]["kept_past_their_time"] == 7
    assert stats["backlog"]["consolidation_could_not_run"] == {"health": 7}
    assert stats["jobs"]["consolidate"]["late"] is True
    assert stats["jobs"]["consolidate"]["last_run"]["outcome"] == "failed"
    await read_well(engine, hands)
    assert (await cleaned(engine))["episodes_expired"] == 7
    assert (await ask.call("stats", {}))["backlog"]["kept_past_their_time"] == 0


async def test_stats_name_whose_episodes_wait_because_consolidation_could_not_run(
    ask: Caller, open_engine: OpenEngine, hands: Hands, principal: MakePrincipal
) -> None:
    async def waiting() -> Json:
        backlog: Json = (await ask.call("stats", {}))["backlog"]["consolidation_could_not_run"]
        return backlog

    engine = await open_engine(episode_reader=Away())
    await ask.episode("It rained")
    assert await waiting() == {}, "it was not yet time"
    hands.pass_(minutes=2)
    await engine.workers.run_due()
    assert await waiting() == {"health": 1}
    chef = await principal("chef")
    await ask.as_(chef).episode("It snowed")
    assert (await ask.as_(chef).call("stats", {}))["backlog"]["consolidation_could_not_run"] == {}
    hands.pass_(days=2)  # in which nobody ran anything
    assert (await ask.as_(chef).call("stats", {}))["backlog"]["consolidation_could_not_run"] == {"chef": 1}
    await read_well(engine, hands)
    assert await waiting() == {}


async def test_e3_what_came_after_the_last_good_run_still_waits(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls
) -> None:
    await ask.episode("before")
    await read_well(engine, hands)
    hands.pass_(minutes=1)
    await ask.episode("after")
    hands.pass_(days=8)
    assert await cleaned(engine) == {"episodes_expired": 1, "kept_past_their_time": 1}
    assert await left(urls) == {"after"}


async def test_e3_what_waits_behind_one_that_is_tried_again_later_has_not_been_read(
    ask: Caller, open_engine: OpenEngine, hands: Hands, urls: Urls
) -> None:
    reader, _ = scripted(BadOutput(Bad.NOT_JSON))
    engine = await open_engine(episode_reader=reader)
    await ask.episode("bad")
    await engine.workers.run_now(JobName.CONSOLIDATE, "home", "health")  # an attempt; another in a minute
    hands.pass_(seconds=10)
    await ask.episode("behind it")
    [ran] = await engine.workers.run_now(JobName.CONSOLIDATE, "home", "health")
    assert ran.run is not None
    assert ran.run.outcome is RunOutcome.OK, "there was nothing that it could have read"
    hands.pass_(days=30)  # in which nothing ran
    assert "episodes_expired" not in await cleaned(engine)
    assert await left(urls) == {"bad", "behind it"}


async def test_e3_an_episode_of_a_process_whose_clock_is_behind_has_not_been_read_either(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls
) -> None:
    await ask.episode("before")
    await read_well(engine, hands)
    hands.pass_(minutes=-1)
    await ask.episode("after")
    hands.pass_(days=8)
    await cleaned(engine)
    assert "after" in await left(urls)


async def test_e3_what_a_person_brought_back_waits_from_then_on(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls, admin: Principal
) -> None:
    restored, requeued, forgotten = [await ask.episode(text) for text in ("restored", "requeued", "forgotten")]
    for episode in (restored, forgotten):
        await ask.forget(episode)
    await set_status(urls, "dead_letter", requeued)
    await read_well(engine, hands)
    hands.pass_(days=6)
    await ask.restore(restored)
    await engine.memory.requeue(admin, [UUID(requeued["id"])])
    hands.pass_(days=100)
    assert await cleaned(engine) == {"episodes_expired": 1, "job_runs": 1, "kept_past_their_time": 2}
    assert await left(urls) == {"restored", "requeued"}
    await read_well(engine, hands)
    assert await cleaned(engine) == {"episodes_expired": 2}


async def test_e3_one_butlers_reading_says_nothing_of_anothers(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls, principal: MakePrincipal
) -> None:
    await ask.episode("health's")
    await ask.as_(await principal("chef")).episode("chef's")
    await read_well(engine, hands, "chef")
    hands.pass_(days=8)
    await cleaned(engine)
    assert await left(urls) == {"health's"}


async def test_e3_an_unexpired_pending_episode_is_never_deleted(
    ask: Caller, open_engine: OpenEngine, hands: Hands, urls: Urls
) -> None:
    engine = await open_engine(BUTLER_MEMORY_EPISODES__MAX_ENTRIES="3")
    for n in range(5):
        await ask.episode(f"{n}")
    await read_well(engine, hands)
    assert await cleaned(engine) == {"still_over_capacity": 2}
    assert len(await left(urls)) == 5


@pytest.mark.parametrize("setting", ["EPISODES__MAX_ENTRIES", "EDEN__MAX_ENTRIES"])
async def test_e3_over_capacity_the_oldest_that_were_read_go_first(
    ask: Caller, open_engine: OpenEngine, hands: Hands, urls: Urls, setting: str
) -> None:
    engine = await open_engine(**{f"BUTLER_MEMORY_{setting}": "3"})
    made = []
    for n in range(6):
        made.append(await ask.episode(f"{n}"))
        hands.pass_(minutes=1)
    await set_status(urls, "consolidated", *made[1:5])
    assert await cleaned(engine) == {"episodes_over_capacity": 3}
    assert await left(urls) == {"0", "4", "5"}
    assert await cleaned(engine) == {}


async def test_e3_an_episode_that_is_being_read_is_left(ask: Caller, engine: Engine, hands: Hands, urls: Urls) -> None:
    episode = await ask.episode("It rained")
    await read_well(engine, hands)
    await set_status(urls, "consolidated", episode)
    hands.pass_(days=8)
    fire = hands.now + timedelta(hours=6)
    lease = await engine.database.run_as_worker(
        lambda conn: leases.claim_named(conn, JobName.CONSOLIDATE, "home", "health", hands.now, fire, 0.5)
    )
    assert lease
    assert await cleaned(engine) == {}
    await asyncio.sleep(0.6)
    assert await cleaned(engine) == {"episodes_expired": 1}


async def test_e2_what_failed_is_kept_ninety_days_for_a_person(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls
) -> None:
    hands.pass_(days=3)
    await ask.forget(await ask.episode("It rained"))
    await read_well(engine, hands)
    hands.pass_(days=89)
    assert await cleaned(engine) == {}
    hands.pass_(days=1)
    assert await cleaned(engine) == {"episodes_expired": 1}


async def test_e8_an_import_lives_longer_and_stays_until_it_has_been_read(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls
) -> None:
    old = "2019-05-05T10:00:00Z"
    made = [await ask.episode(text, source_kind="imported", occurred_at=old) for text in ("read", "unread")]
    await read_well(engine, hands)
    await set_status(urls, "consolidated", made[0])
    hands.pass_(days=89)
    assert await cleaned(engine) == {}
    hands.pass_(days=2)
    assert (await cleaned(engine))["episodes_expired"] == 1
    assert await left(urls) == {"unread"}
    hands.pass_(days=1000)
    assert "episodes_expired" not in await cleaned(engine)


@pytest.mark.parametrize("status", ["failed", "dead_letter"])
async def test_e8_an_import_that_could_not_be_read_stays_unless_it_is_forgotten(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls, status: str
) -> None:
    unread, forgotten, ordinary = (
        await ask.episode("unread", source_kind="imported"),
        await ask.episode("forgotten", source_kind="imported"),
        await ask.episode("ordinary"),
    )
    await set_status(urls, status, unread, ordinary)
    await ask.forget(forgotten)
    await read_well(engine, hands)
    hands.pass_(days=1000)
    assert (await cleaned(engine))["episodes_expired"] == 2
    assert await left(urls) == {"unread"}


async def gone(ask: Caller, engine: Engine, hands: Hands, urls: Urls, text: str, **more: Any) -> Json:
    """An episode that was read, and whose time is over."""
    episode = await ask.episode(text, **more)
    await read_well(engine, hands)
    await set_status(urls, "consolidated", episode)
    hands.pass_(days=8)
    assert (await cleaned(engine))["episodes_expired"] == 1
    return episode


async def test_e4_a_tombstone_without_content_is_left(ask: Caller, engine: Engine, hands: Hands, urls: Urls) -> None:
    episode = await gone(ask, engine, hands, urls, "zanzibar", session_id="s1", tags=["zanzibar"])
    [tombstone] = await rows(urls, "SELECT *, to_jsonb(t)::text AS all FROM memory.episode_tombstones t")
    assert (str(tombstone["id"]), tombstone["butler"], tombstone["reason"]) == (episode["id"], "health", "expired")
    assert tombstone["session_id"] is not None
    for table in ("episode_tombstones", "memory_events", "memory_event_bodies", "episodes", "refs", "job_runs"):
        kept = await rows(urls, f"SELECT to_jsonb(t)::text AS row FROM memory.{table} t")
        assert not any("zanzibar" in row["row"] for row in kept), table
    with pytest.raises(NotFound):
        await ask.row(episode)
    events = await rows(urls, "SELECT event_type FROM memory.memory_events ORDER BY id")
    assert [event["event_type"] for event in events] == ["created", "consolidated", "deleted"]


async def test_e4_links_to_it_still_resolve_and_say_what_became_of_it(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls
) -> None:
    from butler_memory.domain.requests import StoreFact, parse
    from butler_memory.writing import facts

    episode = await ask.episode("User said: my name is Jo")
    request = parse(StoreFact, {"subject": "user", "predicate": "name", "content": "Jo"})
    written = await facts.store_fact(engine.desk, ask.who, request, hands.now, evidence=[UUID(episode["id"])])
    fact = {"type": "fact", "id": str(written.id)}
    assert (await ask.shape(fact))["provenance"] == [{"type": "episode", "id": episode["id"], "status": "available"}]
    await ask.forget(episode)
    assert (await ask.shape(fact))["provenance"][0]["status"] == "forgotten"
    hands.pass_(days=91)
    await cleaned(engine)
    assert (await ask.shape(fact))["provenance"][0]["status"] == "forgotten"
    assert await left(urls) == set()


async def test_e6_a_retry_after_the_episode_is_gone_is_still_the_same_episode(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls
) -> None:
    episode = await gone(ask, engine, hands, urls, "It rained", idempotency_key="k")
    again = await ask.episode("It rained", idempotency_key="k")
    assert (again["id"], again["outcome"], again["state"]) == (episode["id"], "duplicate", "expired")


async def test_records_go_after_their_time(ask: Caller, engine: Engine, hands: Hands, urls: Urls) -> None:
    await ask.episode("It rained", idempotency_key="k")
    await ask.call("context", {"trigger_prompt": "rain"})
    await engine.reader.served.flush()
    await engine.workers.run_now(JobName.DECAY_SWEEP, "home")
    hands.pass_(days=29)
    unread = {"kept_past_their_time": 1}
    assert await cleaned(engine) == unread
    hands.pass_(days=2)
    assert await cleaned(engine) == unread | {"idempotency_keys": 1, "served_contexts": 1}
    hands.pass_(days=60)
    assert await cleaned(engine) == unread | {"job_runs": 1}


async def test_k7_runs_of_consolidation_and_what_was_decided_go_after_ninety_days_and_what_is_open_stays(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls, admin: Principal
) -> None:
    """Both quote what episodes said: a trace of a forgotten week must not stay for ever."""
    async with owner_connection(urls) as conn:
        for state in ("open", "rejected"):
            await conn.execute(
                """
                WITH run AS (
                    INSERT INTO memory.consolidation_runs (tenant_id, id, butler, backend, started_at, finished_at,
                                                           outcome, counts, tokens_in, tokens_out)
                    VALUES ('home', gen_random_uuid(), 'health', 'offline', %(now)s, %(now)s, 'refused', '{}', 0, 0)
                    RETURNING id)
                INSERT INTO memory.reviews (tenant_id, id, kind, run_id, state, created_at, closed_at)
                SELECT 'home', gen_random_uuid(), 'proposal', id, %(state)s, %(now)s,
                       CASE WHEN %(state)s::text <> 'open' THEN %(now)s::timestamptz END
                FROM run
                """,
                {"state": state, "now": hands.now},
            )
    hands.pass_(days=89)
    assert await cleaned(engine) == {}
    hands.pass_(days=2)
    assert await cleaned(engine) == {"reviews": 1, "consolidation_runs": 1}
    [kept] = await rows(urls, "SELECT run_id FROM memory.reviews")
    assert await rows(urls, "SELECT id AS run_id FROM memory.consolidation_runs") == [kept]


async def test_cleanup_goes_in_bounded_batches(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup, "BATCH", 2)
    monkeypatch.setattr(cleanup, "BATCHES_A_RUN", 2)
    for n in range(7):
        await ask.episode(f"{n}")
    await read_well(engine, hands)
    hands.pass_(days=8)
    assert [await cleaned(engine) for _ in range(3)] == [{"episodes_expired": 4}, {"episodes_expired": 3}, {}]


async def test_g1_the_cleanup_of_one_tenant_leaves_the_others(
    ask: Caller, engine: Engine, hands: Hands, urls: Urls, principal: MakePrincipal
) -> None:
    await ask.as_(await principal(tenant="neighbour")).episode("theirs")
    await ask.episode("ours")
    await read_well(engine, hands)
    hands.pass_(days=8)
    await cleaned(engine)
    assert await left(urls) == {"theirs"}
