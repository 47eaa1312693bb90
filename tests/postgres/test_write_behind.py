"""What reads leave behind is written: late, once, and whatever stood in the way (S7, C7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from butler_memory.bootstrap import Engine, open_engine
from butler_memory.domain.kinds import MemoryType, Role
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.errors import Unavailable
from butler_memory.postgres import refs, served
from butler_memory.postgres.database import Database
from butler_memory.postgres.provision import Urls
from butler_memory.postgres.served import ServedContext
from butler_memory.retrieval import served_log, write_behind
from butler_memory.retrieval.references import References
from butler_memory.retrieval.served_log import Backlog, ServedLog
from caller import Caller
from conftest import Hands, owner_connection, rows, settings_for

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
KEY = (MemoryType.FACT, UUID(int=7))


@asynccontextmanager
async def opened(urls: Urls, tmp_path: Path, hands: Hands) -> AsyncIterator[tuple[Engine, Caller]]:
    settings = settings_for(urls, tmp_path)
    async with open_engine(settings, embedder=FakeEmbedder(), clock=hands) as engine:
        secret, _ = await engine.access.create_token("home", "health", Role.BUTLER)
        yield engine, Caller(engine.memory, await engine.access.authenticate(secret))


async def read_something(ask: Caller) -> None:
    await ask.user_says("dentist on friday", "note")
    await ask.call("search", {"query": "dentist"})
    await ask.call("context", {"trigger_prompt": "dentist on friday"})


async def left_behind(urls: Urls) -> tuple[int, int]:
    return (
        len(await rows(urls, "SELECT 1 FROM memory.refs WHERE reference_count = 1")),
        len(await rows(urls, "SELECT 1 FROM memory.served_contexts")),
    )


async def test_s7_c7_a_clean_close_writes_what_was_read_a_moment_ago(
    urls: Urls, tmp_path: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_behind, "FLUSH_AFTER_SECONDS", 60)
    async with opened(urls, tmp_path, hands) as (_, ask):
        await read_something(ask)
        assert await left_behind(urls) == (0, 0)
    assert await left_behind(urls) == (1, 1)


async def test_s7_c7_a_clean_close_waits_for_a_flush_that_waits_for_a_lock(
    urls: Urls, tmp_path: Path, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_behind, "FLUSH_AFTER_SECONDS", 0.05)
    async with owner_connection(urls) as owner:

        async def let_go() -> None:
            await asyncio.sleep(0.3)
            await owner.execute("ROLLBACK")

        async with opened(urls, tmp_path, hands) as (_, ask):
            await read_something(ask)
            await owner.execute("BEGIN")
            await owner.execute("LOCK TABLE memory.refs, memory.served_contexts IN ACCESS EXCLUSIVE MODE")
            await asyncio.sleep(0.2)
            letting_go = asyncio.create_task(let_go())
        await letting_go
    assert await left_behind(urls) == (1, 1)


# --- a database that a test plays ---


class Played:
    """Runs what the test says, and then the work on a connection that notes what it was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[tuple[str, Any]] = []
        self.before: Callable[[str], Awaitable[None]] = self._nothing

        async def note(_: Any, tenant: str, what: Any, *__: Any) -> None:
            self.written.append((tenant, list(what)))

        monkeypatch.setattr(refs, "bump", note)
        monkeypatch.setattr(served, "add", note)
        monkeypatch.setattr(write_behind, "FLUSH_AFTER_SECONDS", 0.01)
        monkeypatch.setattr(write_behind, "RETRY_AFTER_SECONDS", 0.01)

    async def _nothing(self, _: str) -> None: ...

    async def run(self, tenant: str, work: Callable[[Any], Awaitable[Any]]) -> Any:
        await self.before(tenant)
        return await work(None)

    @property
    def as_database(self) -> Database:
        return cast(Database, self)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    return Played(monkeypatch)


class Stuck:
    """Holds whoever comes until it is opened, and then perhaps fails."""

    def __init__(self, error: Exception | None = None) -> None:
        self.reached, self.gate = asyncio.Event(), asyncio.Event()
        self._error = error

    async def __call__(self, _: str) -> None:
        self.reached.set()
        await self.gate.wait()
        if self._error:
            raise self._error


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(3):
        while not true():
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("a defect")])
async def test_s7_a_failed_flush_is_done_again_by_itself_after_a_pause(played: Played, error: Exception) -> None:
    tries = 0

    async def fails_twice(_: str) -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise error

    played.before = fails_twice
    references = References(played.as_database)
    references.bump("home", [KEY, KEY], NOW)
    await until(lambda: bool(played.written))
    assert played.written == [("home", [(KEY, 2)])]
    await references.close()
    assert len(played.written) == 1


@pytest.mark.parametrize("error", [Unavailable("away"), RuntimeError("a defect")])
async def test_s7_what_fails_for_one_tenant_is_written_for_the_others(played: Played, error: Exception) -> None:
    async def one_fails(tenant: str) -> None:
        if tenant == "a":
            raise error

    played.before = one_fails
    references = References(played.as_database)
    for tenant in "abc":
        references.bump(tenant, [KEY], NOW)
    await references.flush()
    assert [tenant for tenant, _ in played.written] == ["b", "c"]
    played.before = played._nothing
    await references.close()
    assert [tenant for tenant, _ in played.written] == ["b", "c", "a"]


async def test_s7_a_cancelled_flush_puts_everything_back_and_adds_what_came_meanwhile(played: Played) -> None:
    played.before = stuck = Stuck()
    references = References(played.as_database)
    references.bump("a", [KEY], NOW)
    references.bump("b", [KEY], NOW)
    flushing = asyncio.create_task(references.flush())
    await stuck.reached.wait()
    references.bump("a", [KEY], NOW)
    flushing.cancel()
    await asyncio.wait([flushing])
    played.before = played._nothing
    await references.close()
    assert sorted(played.written) == [("a", [(KEY, 2)]), ("b", [(KEY, 1)])]


async def test_c7_a_flush_that_is_asked_for_waits_for_the_one_under_way(played: Played) -> None:
    """'served list' flushes before it looks."""
    played.before = stuck = Stuck()
    log = ServedLog(played.as_database)
    log.add("home", context(1))
    first = asyncio.create_task(log.flush())
    await stuck.reached.wait()
    second = asyncio.create_task(log.flush())
    await asyncio.sleep(0)
    assert not second.done()
    stuck.gate.set()
    await second
    assert len(played.written) == 1
    await first
    await log.close()


async def test_s7_a_close_does_not_wait_for_ever(
    played: Played, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(write_behind, "CLOSE_WITHIN_SECONDS", 0.05)
    played.before = Stuck()
    references = References(played.as_database)
    references.bump("home", [KEY], NOW)
    with caplog.at_level(logging.WARNING):
        await asyncio.wait_for(references.close(), 2)
    assert "are lost" in caplog.text
    assert "home" not in caplog.text


# --- how much of what was served waits for a database that is away ---


def context(number: int, prompt: str = "") -> ServedContext:
    body = {"prompt": prompt, "project": "", "block": ""}
    return ServedContext(UUID(int=number), "health", None, None, NOW, "ok", 1, 1, "o200k_base", [], body)


def numbers(contexts: list[ServedContext]) -> list[int]:
    return [each.id.int for each in contexts]


async def test_c7_the_newest_are_kept_when_a_write_fails(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_log, "MOST_OF_A_TENANT", 10)
    played.before = stuck = Stuck(Unavailable("away"))
    log = ServedLog(played.as_database)
    for number in range(10):
        log.add("home", context(number))
    flushing = asyncio.create_task(log.flush())
    await stuck.reached.wait()
    for number in range(10, 13):
        log.add("home", context(number))
    stuck.gate.set()
    await flushing
    played.before = played._nothing
    await log.close()
    assert [numbers(contexts) for _, contexts in played.written] == [list(range(3, 13))]


def test_c7_what_waits_is_bounded_over_all_tenants_and_who_has_most_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_log, "MOST_OF_ALL", 10)
    backlog = Backlog()
    backlog.add("quiet", [context(1), context(2)])
    for number in range(100):
        backlog.add("busy", [context(number)])
    backlog.add("new", [context(3)])
    assert numbers(backlog.take("quiet")) == [1, 2]
    assert numbers(backlog.take("new")) == [3]
    assert numbers(backlog.take("busy")) == list(range(93, 100))
    assert list(backlog.tenants()) == []


def test_c7_what_waits_is_bounded_by_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_log, "MOST_CHARACTERS", 100_000)
    backlog = Backlog()
    for tenant in range(50):
        for number in range(5):
            backlog.add(str(tenant), [context(number, "x" * 10_000)])
    kept = [context for tenant in list(backlog.tenants()) for context in backlog.take(tenant)]
    assert 5 <= len(kept) <= 10
    backlog.add("after", [context(1, "x" * 10_000)])
    assert numbers(backlog.take("after")) == [1], "what was taken no longer counts"
