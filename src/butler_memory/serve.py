"""Runs the engine behind its fronts until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import uvicorn

from butler_memory.access import Access
from butler_memory.bootstrap import Engine, make_up_for_vectors, open_engine, require_enabled, restricted
from butler_memory.domain.kinds import Role
from butler_memory.embedding.lazy import LazyEmbedder
from butler_memory.errors import SetupError, Unauthenticated
from butler_memory.mcp_server.http import allowed_hosts, http_app, in_url, is_wildcard
from butler_memory.mcp_server.server import build_server
from butler_memory.mcp_server.stdio import stdio_streams
from butler_memory.postgres.server import disk_problems_explained
from butler_memory.security.principal import Principal
from butler_memory.settings import Environment, Settings

HOME_TENANT = "home"
FIRST_BUTLER = "claude"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Open calls get this long when the server stops.
GRACE_SECONDS = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServeInfo:
    """What a person wants to know when the server is up."""

    url: str
    butler_token: str
    admin_token_file: Path
    clock_offset: timedelta
    degraded: str
    data_dir: Path


async def serve(settings: Settings, *, progress: Callable[[str], None], announce: Callable[[ServeInfo], None]) -> None:
    """`butler-memory up`: everything until Ctrl-C or SIGTERM; nothing is left running."""
    env = settings.env
    require_enabled(settings)
    url = f"http://{_reached_at(env)}:{settings.butler.port}/mcp"
    with disk_problems_explained(env.data_dir):
        env.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with only_one(env.data_dir, url), listening(env.host, settings.butler.port) as listener, cancelled_by_signals():
        async with open_engine(settings, progress=progress) as engine:
            degraded = await _warm(engine, progress)
            butler_token = await _kept_token(engine.access, env.data_dir / "butler-token", FIRST_BUTLER, Role.BUTLER)
            admin_file = env.data_dir / "admin-token"
            await _kept_token(engine.access, admin_file, "admin", Role.ADMIN)
            info = ServeInfo(url, butler_token, admin_file, env.clock_offset, degraded, env.data_dir)
            await _run_http(engine, listener, lambda: announce(info))


async def serve_jobs(
    settings: Settings, *, progress: Callable[[str], None], announce: Callable[[Engine], None]
) -> None:
    """`butler-memory worker`: the jobs alone, beside any other process that runs them."""
    require_enabled(settings)
    with cancelled_by_signals():
        async with open_engine(settings, progress=progress) as engine, upkeep(engine):
            stopped = asyncio.Event()
            for which in STOP_SIGNALS:
                asyncio.get_running_loop().add_signal_handler(which, stopped.set)
            announce(engine)
            await stopped.wait()


async def serve_stdio(settings: Settings) -> None:
    """`butler-memory mcp`: one client on standard input and output, beside any running `up`."""
    with cancelled_by_signals():
        async with open_engine(settings) as engine, upkeep(engine):
            server = build_server(engine.memory, lambda _: _stdio_principal(engine), enabled=settings.memory.enabled)
            async with stdio_streams() as (read, write):
                await server.run(read, write, server.create_initialization_options())


async def _stdio_principal(engine: Engine) -> Principal:
    """A token if one is given; else whoever may start this process is the home's first butler."""
    env = engine.settings.env
    if env.token:
        who = await engine.access.authenticate(env.token, env.project)
    else:
        await engine.access.ensure_tenant(HOME_TENANT)
        local = uuid5(NAMESPACE_URL, f"butler-memory:stdio:{os.getppid()}")
        who = Principal(HOME_TENANT, FIRST_BUTLER, Role.BUTLER, local, project=env.project)
    return restricted(who, engine.settings)


class StoppedEarly(Exception):
    """A signal came before there was anything to serve; all that had been started is stopped."""

    def __init__(self, signal_: signal.Signals) -> None:
        self.signal = signal_
        super().__init__(signal_.name)


@contextmanager
def cancelled_by_signals() -> Iterator[None]:
    """Ctrl-C and SIGTERM cancel what is under way, so that all of it is closed in order."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task
    came: list[signal.Signals] = []

    def stop(which: signal.Signals) -> None:
        came.append(which)
        task.cancel()

    for which in STOP_SIGNALS:
        loop.add_signal_handler(which, stop, which)
    try:
        yield
    # A group: what the MCP SDK's tasks say when they are cancelled while a message passes between them.
    except (asyncio.CancelledError, BaseExceptionGroup):
        if came:
            raise StoppedEarly(came[0]) from None
        raise
    finally:
        for which in STOP_SIGNALS:
            loop.remove_signal_handler(which)


def _reached_at(env: Environment) -> str:
    return in_url(env.host) if not is_wildcard(env.host) else allowed_hosts(env)[0]


async def _warm(engine: Engine, progress: Callable[[str], None]) -> str:
    """Gets the model ready; without one the memory still works, by keywords."""
    if not isinstance(engine.embedder, LazyEmbedder):
        return ""
    try:
        await engine.embedder.warm(progress)
    except SetupError as error:
        return f"{error.message} {error.recovery}"
    return ""


async def _kept_token(access: Access, file: Path, butler: str, role: Role) -> str:
    """The token in `file`, or a new one if there is none that still works."""
    with contextlib.suppress(Unauthenticated), disk_problems_explained(file.parent):
        kept = _read_secret(file)
        if (await access.authenticate(kept)).role is role:
            return kept
    secret, _ = await access.create_token(HOME_TENANT, butler, role, label="made by 'up'")
    with disk_problems_explained(file.parent):
        _keep_secret(file, secret)
    return secret


def _read_secret(file: Path) -> str:
    """Empty where there is none that could be one."""
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        return file.read_text().strip()
    return ""


def _keep_secret(file: Path, secret: str) -> None:
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
        new.write(secret + "\n")


async def _run_http(engine: Engine, listener: socket.socket, ready: Callable[[], None]) -> None:
    config = uvicorn.Config(
        http_app(engine), log_config=None, access_log=False, server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )  # fmt: skip
    server = _Server(config, ready)
    loop = asyncio.get_running_loop()
    for which in STOP_SIGNALS:
        loop.add_signal_handler(which, server.stop)
    async with upkeep(engine):
        await server.serve(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn re-raises the signal that stopped it, which would cut off our own closing down."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    def stop(self) -> None:
        self.force_exit = self.should_exit  # asked twice: do not wait for open calls
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


@asynccontextmanager
async def upkeep(engine: Engine) -> AsyncIterator[None]:
    """What runs in every process that serves."""
    if not engine.settings.memory.enabled:
        yield
        return
    tasks = [asyncio.create_task(make_up_for_vectors(engine)), asyncio.create_task(engine.workers.run_forever())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


@contextmanager
def only_one(data_dir: Path, url: str) -> Iterator[None]:
    """One `up` per data directory; a second one is told about the first."""
    with disk_problems_explained(data_dir):
        file = open(data_dir / "up.lock", "a+")  # noqa: SIM115  closed below
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SetupError(
                f"'butler-memory up' already runs on {data_dir}{_first_one(file)}.",
                recovery="Use the running one, stop it, or choose another --data-dir.",
            ) from None
        file.seek(0)
        file.truncate()
        json.dump({"pid": os.getpid(), "url": url}, file)
        file.flush()
        yield


def _first_one(file: Any) -> str:
    file.seek(0)
    with contextlib.suppress(ValueError, KeyError):
        known = json.load(file)
        return f" (process {known['pid']}, {known['url']})"
    return ""


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """The port, taken before anything slow begins."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named as TCP, or asyncio does not switch off Nagle's delay and every answer waits 40 ms.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise _cannot_listen(host, port, error) from None
        yield listener


def _cannot_listen(host: str, port: int, error: OSError) -> SetupError:
    if error.errno == errno.EADDRINUSE:
        return SetupError(
            f"Port {port} is taken by another program.", recovery="Stop it, or use --port with a free one."
        )
    return SetupError(f"Cannot listen on {host}:{port}: {error.strerror}.", recovery="Choose another --host or --port.")
