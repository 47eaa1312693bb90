"""A pooled connection never carries the last tenant (G1), whatever ended the work; errors are said in our words."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import psycopg
import pytest

from butler_memory.errors import Integrity, SetupError, Unavailable
from butler_memory.postgres import database
from butler_memory.postgres.database import TRIES, Conn, Database
from butler_memory.postgres.provision import Urls
from butler_memory.postgres.seam import Contended
from conftest import rows

Way = Callable[[Database, str, Callable[[Conn], Awaitable[Any]]], Awaitable[Any]]
SECRET = "violet-heron-4711"


@pytest.fixture
async def narrow(urls: Urls, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    """One connection in the pool, so that the next work gets the one that the last work had."""
    monkeypatch.setattr(database, "APP_CONNECTIONS", 1)
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT", "300ms")
    opened = await Database.open(urls)
    yield opened
    await opened.close()


async def left_behind(opened: Database) -> tuple[int, str]:
    """Which backend serves now, and which tenant it has set before we set ours."""
    async with opened._app.connection() as conn:
        found = await conn.execute("SELECT pg_backend_pid() AS pid, current_setting('memory.tenant', true) AS tenant")
        row = await found.fetchone()
    assert row is not None
    return row["pid"], row["tenant"] or ""


async def ends_well(conn: Conn) -> None:
    await conn.execute("SELECT 1")


async def ends_in_a_database_error(conn: Conn) -> None:
    await conn.execute("SELECT 1 / 0")


async def ends_in_an_error_of_ours(conn: Conn) -> None:
    raise RuntimeError("in the middle")


async def takes_too_long(conn: Conn) -> None:
    await conn.execute("SELECT pg_sleep(30)")


both_ways = pytest.mark.parametrize("way", [Database.run, Database.read])


@both_ways
@pytest.mark.parametrize(
    ("work", "error"),
    [
        (ends_well, None),
        (ends_in_a_database_error, Integrity),
        (ends_in_an_error_of_ours, RuntimeError),
        (takes_too_long, Unavailable),
    ],
)
async def test_g1_a_pooled_connection_does_not_carry_the_last_tenant(
    narrow: Database, way: Way, work: Callable[[Conn], Awaitable[None]], error: type[Exception] | None
) -> None:
    before = await left_behind(narrow)
    seen: list[str] = []

    async def watched(conn: Conn) -> None:
        row = await (await conn.execute("SELECT current_setting('memory.tenant') AS tenant")).fetchone()
        seen.append(row["tenant"] if row else "")
        await work(conn)

    if error:
        with pytest.raises(error):
            await way(narrow, "A", watched)
    else:
        await way(narrow, "A", watched)
    assert seen == ["A"]
    assert await left_behind(narrow) == (before[0], ""), "the same backend, and no tenant"


async def sleeping(urls: Urls, pid: int) -> None:
    """Asked as the application: a role sees only its own backends' state."""
    async with await psycopg.AsyncConnection.connect(urls.app, autocommit=True) as conn:
        while True:
            found = await conn.execute("SELECT wait_event FROM pg_stat_activity WHERE pid = %s", [pid])
            if await found.fetchone() == ("PgSleep",):
                return
            await asyncio.sleep(0.01)


@both_ways
async def test_g1_a_cancelled_request_leaves_no_tenant_behind(narrow: Database, urls: Urls, way: Way) -> None:
    before = await left_behind(narrow)
    at_work = asyncio.Event()

    async def work(conn: Conn) -> None:
        await conn.execute("SET LOCAL statement_timeout = 0")
        at_work.set()
        await conn.execute("SELECT pg_sleep(30)")

    task = asyncio.ensure_future(way(narrow, "A", work))
    await at_work.wait()
    await asyncio.wait_for(sleeping(urls, before[0]), 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    pid, tenant = await asyncio.wait_for(left_behind(narrow), 5)
    assert tenant == ""
    assert pid == before[0], "the query was cancelled on the server, the connection lives on"


async def left_while_silent(opened: Database, urls: Urls, pid: int) -> float:
    """A read whose server falls silent; who waited for it leaves. How long that took."""
    at_work = asyncio.Event()

    async def work(conn: Conn) -> None:
        await conn.execute("SET LOCAL statement_timeout = 0")
        at_work.set()
        await conn.execute("SELECT pg_sleep(30)")

    task = asyncio.ensure_future(opened.read("A", work))
    await at_work.wait()
    await asyncio.wait_for(sleeping(urls, pid), 5)
    os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return time.monotonic() - began


async def test_c6_g1_a_read_is_left_at_once_though_the_server_is_silent_and_leaves_no_tenant_behind(
    narrow: Database, urls: Urls
) -> None:
    before = await left_behind(narrow)
    try:
        assert await left_while_silent(narrow, urls, before[0]) < 0.5
        assert narrow._app.get_stats()["pool_available"] == 0, "the connection is not handed out as it is"
        waiting = asyncio.create_task(left_behind(narrow))
        await asyncio.sleep(0.2)
        assert not waiting.done()
    finally:
        os.kill(before[0], signal.SIGCONT)
    assert (await asyncio.wait_for(waiting, 5))[1] == ""
    assert not narrow._left


async def test_c6_g1_a_connection_whose_server_stays_silent_is_replaced(narrow: Database, urls: Urls) -> None:
    before = await left_behind(narrow)
    try:
        await left_while_silent(narrow, urls, before[0])
        for task in list(narrow._left):
            task.cancel()  # as if the driver had waited to its end
        pid, tenant = await asyncio.wait_for(left_behind(narrow), 5)
        assert (pid != before[0], tenant) == (True, "")
    finally:
        os.kill(before[0], signal.SIGCONT)


async def test_a_close_does_not_wait_for_a_server_that_is_silent(narrow: Database, urls: Urls) -> None:
    pid, _ = await left_behind(narrow)
    try:
        await left_while_silent(narrow, urls, pid)
        await asyncio.wait_for(narrow.close(), 4)
        assert not narrow._left
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_g1_a_cancelled_request_wrote_nothing(narrow: Database, urls: Urls) -> None:
    written = asyncio.Event()

    async def work(conn: Conn) -> None:
        await conn.execute(
            "INSERT INTO memory.idempotency_keys (tenant_id, key, type, id, created_at)"
            " VALUES ('A', 'k', 'fact', gen_random_uuid(), now())"
        )
        written.set()
        await asyncio.sleep(30)

    task = asyncio.create_task(narrow.run("A", work))
    await written.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await rows(urls, "SELECT 1 FROM memory.idempotency_keys") == []


async def test_g1_a_tenant_set_for_the_session_by_mistake_does_not_stay(narrow: Database) -> None:
    """Every transaction sets its own: even a forgotten `false` gives the next work its own tenant."""

    async def mistake(conn: Conn) -> None:
        await conn.execute("SELECT set_config('memory.tenant', 'A', false)")

    async def next_one(conn: Conn) -> str:
        row = await (await conn.execute("SELECT current_setting('memory.tenant') AS tenant")).fetchone()
        return row["tenant"] if row else ""

    await narrow.run("A", mistake)
    assert await narrow.run("B", next_one) == "B"


async def test_a_statement_that_takes_too_long_is_unavailable(narrow: Database) -> None:
    with pytest.raises(Unavailable, check=lambda error: error.reason == "timeout"):
        await narrow.run("A", takes_too_long)


async def test_a_busy_pool_is_unavailable_and_not_a_hang(narrow: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "WAIT_FOR_CONNECTION_SECONDS", 0.05)
    holding, free = asyncio.Event(), asyncio.Event()

    async def hold(conn: Conn) -> None:
        holding.set()
        await free.wait()

    first = asyncio.create_task(narrow.run("A", hold))
    await holding.wait()
    with pytest.raises(Unavailable, check=lambda error: error.reason == "no_connection"):
        await narrow.run("A", ends_well)
    free.set()
    await first


async def test_who_is_cancelled_in_the_moment_in_which_a_connection_comes_stops(narrow: Database) -> None:
    """At every step of the loop between the giving back and the getting: one of them is that moment."""
    for steps in range(20):
        release, never = asyncio.Event(), asyncio.Event()

        async def holds(_: Conn, release: asyncio.Event = release) -> None:
            await release.wait()

        async def waits(_: Conn, never: asyncio.Event = never) -> None:
            await never.wait()

        holder = asyncio.create_task(narrow.run("home", holds))
        await asyncio.sleep(0.02)
        next_one = asyncio.create_task(narrow.run("home", waits))
        await asyncio.sleep(0.02)
        release.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        next_one.cancel()
        await asyncio.wait([next_one], timeout=5)
        assert next_one.cancelled(), f"after {steps} steps"
        await holder


async def test_work_is_done_again_when_another_was_in_its_way(narrow: Database) -> None:
    tries = 0

    async def work(conn: Conn) -> str:
        nonlocal tries
        tries += 1
        if tries < TRIES:
            raise [Contended(), psycopg.errors.DeadlockDetected(), psycopg.errors.UniqueViolation()][tries % 3]
        return "done"

    assert await narrow.run("A", work) == "done"
    assert tries == TRIES


async def test_work_that_is_always_in_somebodys_way_ends(narrow: Database) -> None:
    async def work(conn: Conn) -> None:
        raise Contended

    with pytest.raises(Unavailable, check=lambda error: error.reason == "contended"):
        await narrow.run("A", work)


STATEMENTS: list[tuple[str, type[Exception], str]] = [
    (f"SELECT '{SECRET}'::int", Integrity, "22P02"),
    (f"INSERT INTO memory.predicates VALUES ('A', '{SECRET}', 'x', true, 'stable', 'high', '[]', now())",
     Integrity, "cardinality_known"),
    (f"INSERT INTO memory.predicates VALUES ('B', '{SECRET}', 'one', true, 'stable', 'high', '[]', now())",
     Integrity, "insufficient_privilege"),
    (f"DELETE FROM memory.memory_events WHERE actor = '{SECRET}'", Integrity, "insufficient_privilege"),
    ("SELECT nothing FROM memory.facts", SetupError, ""),
    ("SELECT pg_terminate_backend(pg_backend_pid())", Unavailable, "connection_lost"),
]  # fmt: skip


@pytest.mark.parametrize(("statement", "error", "reason"), STATEMENTS)
async def test_g7_the_databases_errors_become_ours_without_its_words(
    narrow: Database, caplog: pytest.LogCaptureFixture, statement: str, error: type[Exception], reason: str
) -> None:
    caplog.set_level(logging.DEBUG)

    async def work(conn: Conn) -> None:
        await conn.execute(statement)  # type: ignore[arg-type]

    with pytest.raises(error) as caught:
        await narrow.run("A", work)
    assert getattr(caught.value, "reason", None) == reason
    assert SECRET not in str(caught.value)
    assert SECRET not in str(vars(caught.value))
    assert caught.value.__cause__ is None, "a traceback would print the database's words"
    assert caught.value.__suppress_context__
    assert SECRET not in caplog.text
    assert await narrow.run("A", ends_well_with(7)) == 7, "and the next work goes on"


def ends_well_with(number: int) -> Callable[[Conn], Awaitable[Any]]:
    async def work(conn: Conn) -> Any:
        row = await (await conn.execute("SELECT %s::int AS n", [number])).fetchone()
        return row["n"] if row else None

    return work


async def test_connections_resolve_no_name_by_the_search_path(narrow: Database) -> None:
    async def work(conn: Conn) -> str:
        row = await (await conn.execute("SHOW search_path")).fetchone()
        return row["search_path"] if row else ""

    assert await narrow.run("A", work) == "pg_catalog, public", "public only because pgvector lives there"
