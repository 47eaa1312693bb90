"""T1: the feed. Whoever polls it gets every event, in order, once, however late its transaction commits."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.clock import new_id
from butler_memory.domain.kinds import EventType, MemoryType, Role
from butler_memory.errors import InvalidInput
from butler_memory.postgres import events
from butler_memory.postgres.changes import Author, Change, apply
from butler_memory.postgres.provision import Urls
from butler_memory.retrieval import activity
from butler_memory.security.principal import Principal
from caller import Caller, forbidden
from conftest import Hands, MakePrincipal, rows

Json = dict[str, Any]
pytestmark = pytest.mark.usefixtures("ledger")


@pytest.fixture
def admins(ask: Caller, admin: Principal) -> Caller:
    return ask.as_(admin)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "PATIENCE_SECONDS", 0.05)


async def feed(caller: Caller, since: str | int | None = None, **more: Any) -> Json:
    return await caller.call("activity_stream", {"since": since, "scope": "*", **more})


async def summaries(caller: Caller, since: str | None = None, **more: Any) -> list[str]:
    return [event["summary"] for event in (await caller.call("activity_stream", {"since": since, **more}))["events"]]


async def all_ids(urls: Urls) -> list[int]:
    return [row["id"] for row in await rows(urls, "SELECT id FROM memory.memory_events ORDER BY id")]


@asynccontextmanager
async def writer(urls: Urls) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A transaction of the application that is committed by hand."""
    async with await psycopg.AsyncConnection.connect(urls.app, row_factory=psycopg.rows.dict_row) as conn:
        await conn.execute("SELECT set_config('memory.tenant', 'home', true)")
        yield conn


async def begin_row(conn: psycopg.AsyncConnection[Any]) -> None:
    """From here on the transaction has its id: it has written something."""
    await conn.execute("INSERT INTO memory.refs VALUES ('home', 'fact', %s, 1, now())", [uuid4()])


async def write_event(conn: psycopg.AsyncConnection[Any], hands: Hands, scope: str = "health") -> None:
    author = Author("home", "butler:health", hands.now, uuid4())
    values = {
        "state": "active", "butler": scope, "session_id": None, "content": "It rained", "content_status": "plain",
        "importance": 5.0, "consolidation_status": "pending", "consolidation_attempts": 0,
        "last_consolidation_error": None, "next_consolidation_retry_at": None, "occurred_at": hands.now,
        "created_at": hands.now, "expires_at": hands.now, "request_id": None, "source_kind": "imported",
        "tags": [], "metadata": {},
    }  # fmt: skip
    await apply(conn, author, [Change(MemoryType.EPISODE, new_id(hands.now), 1, EventType.CREATED, values)])


async def test_an_event_that_commits_late_is_waited_for(
    admins: Caller, urls: Urls, hands: Hands, impatient: None
) -> None:
    start = (await feed(admins))["next"]
    async with writer(urls) as late, writer(urls) as early:
        await write_event(late, hands)
        await write_event(early, hands)
        await early.commit()
        held = await feed(admins, start)
        assert (held["events"], held["next"]) == ([], start), "the second is there, but the first may still come"
        assert (await feed(admins))["next"] is None, "nothing is certain yet, and it says so"
        await late.commit()
    got = await feed(admins, start)
    assert [event["id"] for event in got["events"]] == await all_ids(urls)
    assert (await feed(admins, got["next"]))["events"] == []


async def test_who_began_earlier_may_take_its_event_later_and_nothing_is_skipped(
    admins: Caller, urls: Urls, hands: Hands, impatient: None
) -> None:
    """The order of transactions says nothing about the order of events: the older one commits first, with the later id.

    Holding back what is written by transactions that are not over (`xid >= xmin`) would let its event pass.
    """
    start = (await feed(admins))["next"]
    async with writer(urls) as older, writer(urls) as younger:
        await begin_row(older)
        await begin_row(younger)
        await write_event(younger, hands)
        await write_event(older, hands)
        await older.commit()
        assert (await feed(admins, start))["events"] == []
        await younger.commit()
    assert [event["id"] for event in (await feed(admins, start))["events"]] == await all_ids(urls)


async def test_an_event_that_is_never_committed_holds_nothing_up(admins: Caller, urls: Urls, hands: Hands) -> None:
    async with writer(urls) as undone, writer(urls) as done:
        await write_event(undone, hands)
        await write_event(done, hands)
        await done.commit()
        reading = asyncio.create_task(feed(admins, 0))
        await asyncio.sleep(0.05)
        assert not reading.done()
        await undone.rollback()
    assert [event["id"] for event in (await reading)["events"]] == await all_ids(urls)


async def test_every_writer_of_events_locks_the_table_before_it_takes_an_id(
    engine: Engine, urls: Urls, hands: Hands
) -> None:
    """What the feed rests on; and a transaction that only reads is not waited for."""
    look = engine.database.read
    async with writer(urls) as conn:
        await conn.execute("SELECT 1 FROM memory.memory_events")
        await begin_row(conn)
        assert await look("home", events.writers) == frozenset()
        await write_event(conn, hands)
        assert len(await look("home", events.writers)) == 1
        await conn.commit()
        assert await look("home", events.writers) == frozenset()


async def test_a_storm_of_writers_is_read_completely_in_order_and_once(
    admins: Caller, urls: Urls, hands: Hands
) -> None:
    dice = random.Random(1)

    async def storm() -> None:
        async with await psycopg.AsyncConnection.connect(urls.app, row_factory=psycopg.rows.dict_row) as conn:
            for _ in range(15):
                await conn.execute("SELECT set_config('memory.tenant', 'home', true)")
                for _ in range(dice.randint(1, 3)):
                    await asyncio.sleep(dice.random() * 0.01)
                    await write_event(conn, hands)
                await asyncio.sleep(dice.random() * 0.03)
                await (conn.rollback() if dice.random() < 0.2 else conn.commit())

    got: list[int] = []
    since = "0"
    writing = asyncio.gather(*(storm() for _ in range(8)))
    over = False
    while not over:
        over = writing.done()
        answer = await feed(admins, since, limit=20)
        got += [event["id"] for event in answer["events"]]
        over = over and not answer["events"]
        since = answer["next"]
    await writing
    assert got == await all_ids(urls)
    assert len(got) > 100


async def test_without_a_cursor_the_latest_come_oldest_first(admins: Caller, ask: Caller, urls: Urls) -> None:
    empty = await feed(admins)
    assert (empty["events"], empty["next"]) == ([], "0")
    for number in range(5):
        await ask.rule(f"Rule number {number}")
    ids = await all_ids(urls)
    latest = await feed(admins, limit=2)
    assert [event["id"] for event in latest["events"]] == ids[-2:]
    assert (await feed(admins, latest["next"]))["events"] == []
    page = await feed(admins, "0", limit=2)
    assert ([event["id"] for event in page["events"]], page["next"]) == (ids[:2], str(ids[1]))
    assert [event["id"] for event in (await feed(admins, page["next"]))["events"]] == ids[2:]


async def test_a_butler_in_a_busy_tenant_neither_loops_nor_misses(
    ask: Caller, principal: MakePrincipal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call looks at a bounded number of events, and the cursor moves on by what it looked at."""
    monkeypatch.setattr(activity, "WINDOW", 3)
    chef = ask.as_(await principal("chef"))
    await chef.episode("It was mine")
    for number in range(7):
        await ask.episode(f"Not for the chef {number}")
    await chef.episode("It was mine again")
    since, said, calls = "0", [], 0
    while calls < 5:
        answer = await chef.call("activity_stream", {"since": since})
        said += [event["summary"] for event in answer["events"]]
        since, calls = answer["next"], calls + 1
    assert said == ["episode stored: It was mine", "episode stored: It was mine again"]
    assert [each.split()[-1] for each in await summaries(chef)] == ["again"], "of the latest it looks at as many"


async def test_s4_a_butler_sees_its_own_scopes_and_a_foreign_one_is_forbidden(
    ask: Caller, admins: Caller, principal: MakePrincipal
) -> None:
    chef = ask.as_(await principal("chef"))
    reader = ask.as_(await principal("auditor", Role.READER))
    await chef.fact("secret sauce", "recipe", scope="chef")
    await chef.rule("Whisk gently", scope="chef")
    await chef.episode("It boiled over")
    await ask.fact("Acme")
    own = ["fact stored: User's employer is Acme"]
    assert await summaries(ask) == own
    assert await summaries(ask, "0", scope="health") == own
    assert len(await summaries(chef)) == 4
    assert len(await summaries(admins)) == 1, "what is not asked for is one's own"
    for caller in (admins, reader):
        assert await summaries(caller, scope="*") == [*(await summaries(chef))[:3], *own]
    for scope in ("chef", "*", "project:atlas"):
        with forbidden("foreign_scope"):
            await summaries(ask, scope=scope)


@pytest.mark.parametrize("since", ["-1", "x", "", "1.5", "9" * 19, "٣", 1.5, True, [1], {}])
async def test_t4_a_cursor_of_nobodys_making_is_refused(ask: Caller, since: Any) -> None:
    with pytest.raises(InvalidInput, check=lambda error: error.field == "since"):
        await ask.call("activity_stream", {"since": since})


async def test_t1_an_event_has_its_shape_and_t2_the_lineage_comes_back(ask: Caller, urls: Urls) -> None:
    fact = await ask.fact("Acme")
    answer = await ask.call("activity_stream", {"since": 0, "request_context": {"request_id": "r"}})
    [event_id] = await all_ids(urls)
    assert answer == {
        "events": [
            {
                "id": event_id, "event_type": "created", "type": "fact", "entity_id": fact["id"],
                "occurred_at": "2026-03-01T12:00:00Z", "actor": "butler:health",
                "summary": "fact stored: User's employer is Acme",
            }
        ],
        "next": str(event_id),
        "request_context": {"request_id": "r"},
    }  # fmt: skip


async def test_what_happened_is_told_in_words(ask: Caller, admins: Caller, hands: Hands) -> None:
    fact = await ask.fact("Acme")
    await ask.confirm(fact)
    await ask.forget(fact)
    await ask.restore(fact)
    await ask.edit(fact, importance=9)
    await ask.edit(fact, content="Globex")
    rule = await ask.rule("Be brief")
    for _ in range(5):
        await ask.call("mark_helpful", {"rule_id": rule["id"]})
    assert await summaries(ask) == [
        "fact stored: User's employer is Acme",
        "fact confirmed: User's employer is Acme",
        "fact forgotten: User's employer is Acme",
        "fact restored: User's employer is Acme",
        "fact changed: User's employer is Acme",
        "fact superseded: User's employer is Acme",
        "fact stored: User's employer is Globex",
        "rule stored: Be brief",
        *["rule marked helpful: Be brief"] * 5,
        "rule promoted to established: Be brief",
    ]
