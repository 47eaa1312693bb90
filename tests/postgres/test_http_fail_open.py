"""Over HTTP a session gets its (empty) context also when nobody can say who it is (C6); others get our error."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import Role
from butler_memory.mcp_server import http
from butler_memory.postgres.provision import Urls
from conftest import owner_connection, rows

URL = "http://127.0.0.1:8150/mcp"
Json = dict[str, Any]


@pytest.fixture
async def app(engine: Engine) -> Starlette:
    return http.http_app(engine)


@pytest.fixture
async def token(engine: Engine) -> str:
    return (await engine.access.create_token("home", "health", Role.BUTLER))[0]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE_SECONDS", 0.2)


@asynccontextmanager
async def connection(app: Starlette, token: str) -> AsyncIterator[httpx2.AsyncClient]:
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    transport = httpx2.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, headers=headers, timeout=30) as client,
    ):
        yield client


async def tool(client: httpx2.AsyncClient, name: str, **arguments: Any) -> Json:
    async with asyncio.timeout(5):  # a server that is silent would keep the test for ever
        answer = await client.post(URL, json=request("tools/call", name=name, arguments=arguments))
    assert answer.status_code == 200
    body: Json = answer.json()
    assert body["id"] == 7
    result: Json = body["result"]
    return result


def request(method: str, **params: Any) -> Json:
    return {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}


async def away(engine: Engine) -> None:
    await engine.database._app.close()
    await engine.database._worker.close()


@asynccontextmanager
async def locked(urls: Urls, table: str) -> AsyncIterator[None]:
    async with owner_connection(urls) as owner:
        await owner.execute("BEGIN")
        await owner.execute(f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")
        yield
        await owner.execute("ROLLBACK")


@asynccontextmanager
async def silent(urls: Urls) -> AsyncIterator[None]:
    """Every backend that serves now is stopped, and answers nothing, not even that it was asked to stop."""
    backends = await rows(
        urls, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    for row in backends:
        os.kill(row["pid"], signal.SIGSTOP)
    try:
        yield
    finally:
        for row in backends:
            os.kill(row["pid"], signal.SIGCONT)


EMPTY = {"status": "degraded", "tokens": 0, "tokenizer": "o200k_base", "served_id": None}


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_c6_without_a_database_a_session_gets_an_empty_context(
    app: Starlette, token: str, engine: Engine, mode: Any
) -> None:
    async with (
        connection(app, token) as http_client,
        Client(streamable_http_client(URL, http_client=http_client), mode=mode) as client,
    ):
        await client.list_tools()  # as sessions do; the client asks again for what it has not listed
        await away(engine)
        answer = await client.call_tool(
            "memory_context", {"trigger_prompt": "dinner", "request_context": {"request_id": "r-1"}}
        )
    assert not answer.is_error
    assert [block.text for block in answer.content] == [""]  # type: ignore[union-attr]
    assert answer.meta is not None
    assert {**EMPTY, "degraded": ["connection_lost"], "request_context": {"request_id": "r-1"}}.items() <= (
        answer.meta.items()
    )


async def test_c6_c8_without_a_database_each_of_a_batch_gets_an_empty_context(
    app: Starlette, token: str, engine: Engine
) -> None:
    items: list[Any] = [
        {"trigger_prompt": "dinner"},
        {"request_context": {"request_id": "own"}},
        {"token_budget": "many"},
        "no",
    ]
    async with connection(app, token) as client:
        await away(engine)
        answer = await tool(client, "memory_context_batch", requests=items, request_context={"request_id": "all"})
    made = answer["structuredContent"]
    assert made["request_context"] == {"request_id": "all"}
    first, second, third, fourth = made["results"]
    assert first == {
        "block": "", **EMPTY, "degraded": ["connection_lost"], "request_context": {"request_id": "all"},
    }  # fmt: skip
    assert second["request_context"] == {"request_id": "own"}
    assert [each["error"] for each in (third, fourth)] == ["invalid_input", "invalid_input"]


async def test_t4_without_a_database_other_calls_get_our_error_under_their_id(
    app: Starlette, token: str, engine: Engine
) -> None:
    async with connection(app, token) as client:
        await away(engine)
        refused = await tool(client, "memory_recall", topic="dinner", request_context={"request_id": "r-1"})
        listed = await client.post(URL, json=request("tools/list"))
        noted = await client.post(URL, json={"jsonrpc": "2.0", "method": "notifications/initialized"})
        wrong = await tool(client, "memory_context", token_budget="many")
    assert refused["isError"]
    shape = refused["structuredContent"]
    assert (shape["error"], shape["request_context"]) == ("unavailable", {"request_id": "r-1"})
    assert (listed.status_code, listed.json()["id"]) == (200, 7)
    assert listed.json()["error"]["data"]["error"] == "unavailable"
    assert (noted.status_code, noted.json()["error"]) == (503, "unavailable")
    assert wrong["structuredContent"]["field"] == "token_budget"


async def test_g2_an_unknown_token_stays_unauthenticated(app: Starlette, token: str) -> None:
    async with connection(app, token) as client:
        for wrong in ("", "Bearer bm_unknown"):
            answer = await client.post(
                URL, json=request("tools/call", name="memory_context"), headers={"Authorization": wrong}
            )
            assert (answer.status_code, answer.json()["error"]) == (401, "unauthenticated")


@pytest.mark.usefixtures("impatient")
async def test_c6_a_session_does_not_wait_for_a_lookup_of_its_token_that_takes_long(
    app: Starlette, token: str, urls: Urls
) -> None:
    async with connection(app, token) as client:
        async with locked(urls, "memory.tokens"):
            began = time.monotonic()
            answer = await tool(client, "memory_context", trigger_prompt="dinner")
            assert time.monotonic() - began < 1.5
            assert answer["_meta"]["degraded"] == ["timeout"]
        assert (await tool(client, "memory_context", trigger_prompt="dinner"))["_meta"]["status"] == "empty"


@pytest.mark.usefixtures("impatient")
async def test_c6_a_session_does_not_wait_for_a_server_that_is_silent(app: Starlette, token: str, urls: Urls) -> None:
    async with connection(app, token) as client:
        assert (await tool(client, "memory_context", trigger_prompt="dinner"))["_meta"]["status"] == "empty"
        async with silent(urls):
            began = time.monotonic()
            answer = await tool(client, "memory_context", trigger_prompt="dinner")
            assert time.monotonic() - began < 1.5
        assert answer["_meta"]["degraded"] == ["timeout"]
        assert (await tool(client, "memory_context", trigger_prompt="dinner"))["_meta"]["status"] == "empty"


@pytest.mark.usefixtures("impatient")
async def test_s12_other_calls_wait_for_the_lookup_and_are_done(app: Starlette, token: str, urls: Urls) -> None:
    lock: AbstractAsyncContextManager[None] = locked(urls, "memory.tokens")
    async with connection(app, token) as client:
        async with lock:
            storing = asyncio.create_task(tool(client, "memory_store_episode", content="Dinner with Maria"))
            await asyncio.sleep(0.5)
            assert not storing.done()
        assert (await storing)["structuredContent"]["outcome"] == "created"


@pytest.mark.parametrize("half", [rb"\ud83d", b"\xf0\x9f", rb"\u0000"])
async def test_c6_half_a_character_in_a_prompt_is_answered(app: Starlette, token: str, half: bytes) -> None:
    """A client that cuts a text by UTF-16 units sends one."""
    one = b'{"name":"memory_context","arguments":{"trigger_prompt":"cut %b"}}' % half
    many = b'{"name":"memory_context_batch","arguments":{"requests":[{"trigger_prompt":"cut %b"}]}}' % half
    async with connection(app, token) as client:
        for call in (one, many):
            body = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":%b}' % call
            answer = await client.post(URL, content=body, headers={"Content-Type": "application/json"})
            result = answer.json()["result"]
            made = result["_meta"] if "_meta" in result else result["structuredContent"]["results"][0]
            assert (made["status"], made["degraded"]) == ("empty", [])
