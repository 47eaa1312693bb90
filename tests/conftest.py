"""One embedded server per run, a migrated template, and a clone of it per test."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from butler_memory import bootstrap
from butler_memory.bootstrap import Engine
from butler_memory.consolidation.readers import EpisodeReader
from butler_memory.domain.kinds import Role, TriggerClass
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.embedding.model_store import prepare
from butler_memory.embedding.ports import Embedder
from butler_memory.postgres.migrate import migrate
from butler_memory.postgres.provision import Urls, new_passwords, provision
from butler_memory.postgres.server import EmbeddedServer, ensure_running_now
from butler_memory.security.principal import Principal
from butler_memory.settings import Settings, load
from caller import Caller
from ledger import check_ledger
from wire import Wire, wire_server

# A shell that runs the suite in the background makes all its children deaf to Ctrl-C, which some tests send to theirs.
signal.signal(signal.SIGINT, signal.default_int_handler)

FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off", "max_connections": "300"}


@dataclass
class Hands:
    """A clock that a test moves."""

    now: datetime = field(default_factory=lambda: datetime(2026, 3, 1, 12, 0, tzinfo=UTC))

    def __call__(self) -> datetime:
        return self.now

    def pass_(self, **span: float) -> None:
        self.now += timedelta(**span)


@dataclass(frozen=True)
class Template:
    server: EmbeddedServer
    name: str
    urls: Urls

    async def clone(self) -> Urls:
        name = f"t_{uuid4().hex}"
        await self._admin(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(self.name)
            )
        )
        return Urls(*(make_conninfo(url, dbname=name) for url in (self.urls.owner, self.urls.app, self.urls.worker)))

    async def drop(self, urls: Urls) -> None:
        name = psycopg.conninfo.conninfo_to_dict(urls.app)["dbname"]
        await self._admin(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(str(name))))

    async def _admin(self, statement: sql.Composed) -> None:
        async with await psycopg.AsyncConnection.connect(self.server.admin_url(), autocommit=True) as conn:
            await conn.execute(statement)


@pytest.fixture(scope="session")
def model_at_hand() -> Path:
    """The real model's cache. On a fresh machine this fetches it, so that no test depends on which ran before."""
    cache = load(environ={}).env.model_cache
    prepare(cache, None, print)
    return cache


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Shared by all xdist workers of a run: they join the same data directory."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    running = ensure_running_now(shared / "server", lambda _: None, FAST)
    yield running
    running.release_now()


@pytest.fixture(scope="session")
async def template(server: EmbeddedServer) -> Template:
    name = f"template_{os.environ.get('PYTEST_XDIST_WORKER', 'only')}"
    urls = await provision(server.admin_url(), name, new_passwords())
    await migrate(urls)
    return Template(server, name, urls)


@pytest.fixture
async def urls(template: Template) -> AsyncIterator[Urls]:
    """An empty migrated database of one's own."""
    fresh = await template.clone()
    yield fresh
    await template.drop(fresh)


@pytest.fixture
async def ledger(urls: Urls) -> AsyncIterator[None]:
    """After the test, its events must fold into exactly its tables (L2). Modules that write use it for all tests."""
    yield
    await check_ledger(urls)


@pytest.fixture
def hands() -> Hands:
    return Hands()


def settings_for(urls: Urls, data_dir: Path, **environ: str) -> Settings:
    return load(
        environ={
            "BUTLER_MEMORY_DATABASE_URL": urls.app,
            "BUTLER_MEMORY_WORKER_URL": urls.worker,
            "BUTLER_MEMORY_DATA_DIR": str(data_dir),
            **environ,
        }
    )


@pytest.fixture
def environ(urls: Urls, hands: Hands, tmp_path: Path) -> Callable[[], dict[str, str]]:
    """What a worker process needs to stand in the same place and time as the test."""

    def make() -> dict[str, str]:
        offset = hands.now - datetime.now(UTC)
        return {
            "BUTLER_MEMORY_DATABASE_URL": urls.app,
            "BUTLER_MEMORY_WORKER_URL": urls.worker,
            "BUTLER_MEMORY_DATA_DIR": str(tmp_path),
            "BUTLER_MEMORY_CLOCK_OFFSET": f"{offset.total_seconds():+.0f}s",
        }

    return make


OpenEngine = Callable[..., Any]


@pytest.fixture
async def open_engine(urls: Urls, tmp_path: Path, hands: Hands) -> AsyncIterator[OpenEngine]:
    """Opens engines on the test's database; closes them all after the test."""
    async with AsyncExitStack() as stack:

        async def make(
            embedder: Embedder | None = None,
            *,
            older: Sequence[Embedder] = (),
            episode_reader: EpisodeReader | None = None,
            **environ: str,
        ) -> Engine:
            settings = settings_for(urls, tmp_path, **environ)
            return await stack.enter_async_context(
                bootstrap.open_engine(
                    settings,
                    embedder=embedder or FakeEmbedder(),
                    older=older,
                    clock=hands,
                    episode_reader=episode_reader,
                )
            )

        yield make


@pytest.fixture
async def engine(open_engine: OpenEngine) -> Engine:
    made: Engine = await open_engine()
    return made


MakePrincipal = Callable[..., Awaitable[Principal]]


@pytest.fixture
def principal(engine: Engine) -> MakePrincipal:
    async def make(
        butler: str = "health",
        role: Role = Role.BUTLER,
        tenant: str = "home",
        project: str = "",
        trigger_class: TriggerClass = TriggerClass.SESSION,
    ) -> Principal:
        secret, _ = await engine.access.create_token(tenant, butler, role, trigger_class=trigger_class)
        return await engine.access.authenticate(secret, project)

    return make


@pytest.fixture
async def who(principal: MakePrincipal) -> Principal:
    return await principal()


@pytest.fixture
def ask(engine: Engine, who: Principal) -> Caller:
    return Caller(engine.memory, who)


@pytest.fixture
async def admin(principal: MakePrincipal) -> Principal:
    return await principal("desk", Role.ADMIN)


@asynccontextmanager
async def owner_connection(urls: Urls) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Sees all tenants: for looking at what a test left in the tables."""
    async with await psycopg.AsyncConnection.connect(
        urls.owner, autocommit=True, row_factory=psycopg.rows.dict_row
    ) as conn:
        yield conn


async def rows(urls: Urls, query: str, *params: Any) -> list[dict[str, Any]]:
    async with owner_connection(urls) as conn:
        found = await conn.execute(query, params)
        return await found.fetchall()


@pytest.fixture
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test can reach a real host; one that tried fails, even where the attempt was taken for an outage."""
    tried: list[Any] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] != "127.0.0.1":
            tried.append(address)
            raise OSError("not in a test")
        connect(self, address)

    def guarded_look_up(host: Any, *rest: Any, **more: Any) -> Any:
        if host in ("127.0.0.1", b"127.0.0.1"):
            return look_up(host, *rest, **more)
        if b".invalid" not in (host if isinstance(host, bytes) else str(host).encode()):
            tried.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "not in a test")

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    yield
    assert tried == []


@pytest.fixture
def wire() -> Iterator[Wire]:
    with wire_server() as wire:
        yield wire
