"""The memory over HTTP: who may come in, and how a request is answered that is none."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import parse_qs

from mcp import types
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import (
    DEFAULT_MAX_REQUEST_BODY_SIZE,
    RequestBodyLimitMiddleware,
    TransportSecuritySettings,
)
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from butler_memory.access import Access
from butler_memory.bootstrap import Engine, is_loopback
from butler_memory.domain.requests import SCOPE
from butler_memory.errors import ButlerMemoryError, InvalidInput, SetupError, Unauthenticated, Unavailable
from butler_memory.mcp_server.fail_open import fails_open, mended, unanswered
from butler_memory.mcp_server.framing import failure, refusal
from butler_memory.mcp_server.server import Context, build_server
from butler_memory.retrieval.context import PATIENCE_SECONDS, TIMEOUT
from butler_memory.security.principal import Principal
from butler_memory.settings import Environment

PRINCIPAL = "butler_memory.principal"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}")


def http_app(engine: Engine) -> Starlette:
    """`/mcp` (both protocol eras, POST only: a GET would hang in stateless mode) and `/healthz`."""
    server = build_server(engine.memory, _http_principal)
    sessions = StreamableHTTPSessionManager(
        server, json_response=True, stateless=True, security_settings=_host_rules(engine.settings.env)
    )
    authenticated = Authenticated(
        _limited(Readable(sessions.handle_request)), engine.access, engine.reader.counter.name
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
            Route("/mcp", authenticated, methods=["POST"]),
            Route("/healthz", healthz),
        ],
        exception_handlers={ButlerMemoryError: _unwell},
        lifespan=lifespan,
    )


def allowed_hosts(env: Environment) -> list[str]:
    """The names under which this server is reached; SetupError where only the operator knows them (G2)."""
    named = list(env.allowed_hosts)
    if is_wildcard(env.host):
        if not named:
            raise SetupError(
                f"Listening on {env.host}, the server must know the names under which it is reached.",
                recovery="Set BUTLER_MEMORY_ALLOWED_HOSTS=memory.lan,192.168.0.7 (names or addresses), "
                "or use --host with one address.",
            )
        return [*named, *LOOPBACK_NAMES]
    own = LOOPBACK_NAMES if is_loopback(env.host) else ()
    return [*dict.fromkeys([in_url(env.host), *own, *named])]


def is_wildcard(host: str) -> bool:
    return _address(host) in (ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::"))


def in_url(host: str) -> str:
    """As it stands in an URL: an IPv6 address in its shortest form, in brackets."""
    address = _address(host)
    if address is None:
        return host
    return f"[{address}]" if address.version == 6 else str(address)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


class Authenticated:
    """Lets a request through with its principal, or answers 401; the tenant comes from here alone (T3).

    Where nobody can say who it is, a session that waits for its context gets an empty one (C6), others our error.
    """

    def __init__(self, app: ASGIApp, access: Access, tokenizer: str) -> None:
        self._app = app
        self._access = access
        self._tokenizer = tokenizer
        self._left: set[asyncio.Task[Principal]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asking = asyncio.create_task(self._principal(scope))
        try:
            await asyncio.wait([asking], timeout=PATIENCE_SECONDS)
            app = self._known(asking) if asking.done() else _limited(self._late(asking))
            await app(scope, receive, send)
        finally:
            self._leave(asking)

    async def _principal(self, scope: Scope) -> Principal:
        return await self._access.authenticate(_bearer(scope), _project(scope))

    def _known(self, asking: asyncio.Task[Principal]) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            try:
                scope[PRINCIPAL] = await asking
            except Unavailable as error:
                await _limited(Readable(self._without(error)))(scope, receive, send)
            except ButlerMemoryError as error:
                await _error_response(error)(scope, receive, send)
            else:
                await self._app(scope, receive, send)

        return app

    def _late(self, asking: asyncio.Task[Principal]) -> ASGIApp:
        """A session does not wait longer for its context; others wait for as long as the database may take."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            body = await Request(scope, receive).body()
            if not fails_open(body):
                await asyncio.wait([asking])
            slow = Unavailable("The database took too long.", reason=TIMEOUT)
            answer = self._known(asking) if asking.done() else Readable(self._without(slow))
            await answer(scope, _replayed(body, receive), send)

        return app

    def _without(self, error: Unavailable) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            answer = unanswered(await Request(scope, receive).body(), error, self._tokenizer)
            response = _error_response(error) if answer is None else JSONResponse(answer)
            await response(scope, receive, send)

        return app

    def _leave(self, asking: asyncio.Task[Principal]) -> None:
        """Nobody waits for what the driver does to end the query of a server that is silent."""
        if not asking.done():
            self._left.add(asking)
            asking.add_done_callback(self._left.discard)
            asking.cancel()


def _limited(app: ASGIApp) -> ASGIApp:
    return RequestBodyLimitMiddleware(app, DEFAULT_MAX_REQUEST_BODY_SIZE)


class Readable:
    """Lets through what the SDK can read: its own refusals would quote the rest (G7)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await Request(scope, receive).body()
        version = Headers(scope=scope).get("mcp-protocol-version")
        answer = refusal(body)
        if answer is not None:
            body = mended(body)
            answer = refusal(body)
        if answer is None and version is not None and not _VERSION.fullmatch(version):
            answer = failure(None, types.INVALID_REQUEST)
        if answer is None:
            await self._app(scope, _replayed(body, receive), send)
        else:
            status = 200 if isinstance(answer, types.JSONRPCResponse) else 400
            shape = answer.model_dump(by_alias=True, mode="json")
            await JSONResponse(shape, status_code=status)(scope, receive, send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return waiting.pop() if waiting else await receive()

    return replay


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


def _host_rules(env: Environment) -> TransportSecuritySettings:
    """Only names under which this server is reached: a page in a browser cannot rebind its way in (G2)."""
    names = [*dict.fromkeys(form for name in allowed_hosts(env) for form in (name, name.lower()))]
    hosts = [f"{name}:*" for name in names] + names
    return TransportSecuritySettings(
        allowed_hosts=hosts,
        allowed_origins=[f"http://{host}" for host in hosts] + [f"https://{host}" for host in hosts],
    )
