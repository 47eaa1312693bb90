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
from urllib.parse import parse_qs
from uuid import NAMESPACE_URL, uuid5

import uvicorn
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from butler_memory.access import Access
from butler_memory.bootstrap import Engine, is_loopback, make_up_for_vectors, open_engine
from butler_memory.domain.kinds import Role, TriggerClass
from butler_memory.domain.requests import SCOPE
from butler_memory.embedding.lazy import LazyEmbedder
from butler_memory.errors import ButlerMemoryError, InvalidInput, SetupError, Unauthenticated
from butler_memory.mcp_server.server import Context, build_server
from butler_memory.security.principal import Principal
from butler_memory.settings import Settings

HOME_TENANT = "home"
FIRST_BUTLER = "claude"
PRINCIPAL = "butler_memory.principal"
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
    if not settings.memory.enabled:
        raise SetupError(
            "The memory is switched off (enabled = false).", recovery="Set enabled = true in [butler.memory]."
        )
    env.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    url = f"http://{env.host}:{settings.butler.port}/mcp"
    with only_one(env.data_dir, url), listening(env.host, settings.butler.port) as listener:
        async with open_engine(settings, progress=progress) as engine:
            degraded = await _warm(engine, progress)
            butler_token = await _kept_token(engine.access, env.data_dir / "butler-token", FIRST_BUTLER, Role.BUTLER)
            admin_file = env.data_dir / "admin-token"
            await _kept_token(engine.access, admin_file, "admin", Role.ADMIN)
            info = ServeInfo(url, butler_token, admin_file, env.clock_offset, degraded, env.data_dir)
            await _run_http(engine, listener, lambda: announce(info))


async def serve_stdio(settings: Settings) -> None:
    """`butler-memory mcp`: one client on standard input and output, beside any running `up`."""
    async with open_engine(settings) as engine, _upkeep(engine):
        server = build_server(engine.memory, lambda _: _stdio_principal(engine))
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())


async def _stdio_principal(engine: Engine) -> Principal:
    """A token if one is given; else whoever may start this process is the home's first butler."""
    env = engine.settings.env
    if env.token:
        return await engine.access.authenticate(env.token, env.project)
    await engine.access.ensure_tenant(HOME_TENANT)
    local = uuid5(NAMESPACE_URL, f"butler-memory:stdio:{os.getppid()}")
    return Principal(HOME_TENANT, FIRST_BUTLER, Role.BUTLER, local, TriggerClass(env.trigger_class), env.project)


def http_app(engine: Engine) -> Starlette:
    """`/mcp` (both protocol eras, POST only: a GET would hang in stateless mode) and `/healthz`."""
    server = build_server(engine.memory, _http_principal)
    sessions = StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, security_settings=_host_rules(engine.settings)
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with sessions.run():
            yield

    async def healthz(_: Request) -> JSONResponse:
        await engine.database.run_as_worker(lambda conn: conn.execute("SELECT 1"))
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/mcp", Authenticated(sessions.handle_request, engine.access), methods=["POST"]),
            Route("/healthz", healthz),
        ],
        exception_handlers={ButlerMemoryError: _unwell},
        lifespan=lifespan,
    )


class Authenticated:
    """Lets a request through with its principal, or answers 401; the tenant comes from here alone (T3)."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope[PRINCIPAL] = await self._access.authenticate(_bearer(scope), _project(scope))
        except ButlerMemoryError as error:
            await _error_response(error)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def _http_principal(context: Context) -> Principal:
    if context.request is None:
        raise Unauthenticated
    principal: Principal = context.request.scope[PRINCIPAL]
    return principal


def _bearer(scope: Scope) -> str:
    header = next((value for name, value in scope["headers"] if name == b"authorization"), b"").decode("latin-1")
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


def _project(scope: Scope) -> str:
    """`?project=<slug>` in the MCP address declares the project whose scope the connection owns."""
    query: str = scope["query_string"].decode("latin-1")
    slug = parse_qs(query).get("project", [""])[0]
    if slug and not SCOPE.match(f"project:{slug}"):
        raise InvalidInput("'project' must be a lower case slug.", field="project", reason="bad_scope")
    return slug


_STATUS = {"unauthenticated": 401, "invalid_input": 400, "unavailable": 503}


def _error_response(error: ButlerMemoryError) -> JSONResponse:
    headers = {"WWW-Authenticate": "Bearer"} if error.code == "unauthenticated" else None
    return JSONResponse(error.as_dict(), status_code=_STATUS.get(error.code, 500), headers=headers)


async def _unwell(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ButlerMemoryError)
    return _error_response(error)


def _host_rules(settings: Settings) -> TransportSecuritySettings:
    """Only names under which this server is reached: a page in a browser cannot rebind its way in (G2)."""
    names = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(settings.env.host) else [settings.env.host]
    hosts = [f"{name}:*" for name in names] + names
    return TransportSecuritySettings(
        allowed_hosts=hosts,
        allowed_origins=[f"http://{host}" for host in hosts] + [f"https://{host}" for host in hosts],
    )


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
    with contextlib.suppress(Unauthenticated):
        kept = _read_secret(file)
        if (await access.authenticate(kept)).role is role:
            return kept
    secret, _ = await access.create_token(HOME_TENANT, butler, role, label="made by 'up'")
    _keep_secret(file, secret)
    return secret


def _read_secret(file: Path) -> str:
    return file.read_text().strip() if file.exists() else ""


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
    for stop in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(stop, server.stop)
    async with _upkeep(engine):
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
async def _upkeep(engine: Engine) -> AsyncIterator[None]:
    """What runs in every process that serves."""
    task = asyncio.create_task(make_up_for_vectors(engine))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@contextmanager
def only_one(data_dir: Path, url: str) -> Iterator[None]:
    """One `up` per data directory; a second one is told about the first."""
    with open(data_dir / "up.lock", "a+") as file:
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
