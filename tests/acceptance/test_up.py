"""What a new user gets from one command."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from tokenizers import Tokenizer

from butler_memory.mcp_server.tools import TOOLS
from serving import Up, environment, start_up

pytestmark = pytest.mark.usefixtures("model_at_hand")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, model_at_hand: Path) -> Iterator[Up]:
    running = start_up(tmp_path_factory.mktemp("up"))
    running.wait_until_ready()
    yield running
    running.process.kill()
    running.process.communicate()


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    answer = await client.call_tool(tool, arguments)
    assert not answer.is_error, answer.structured_content
    assert isinstance(answer.structured_content, dict)
    return answer.structured_content


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_t1_a_fact_stored_over_mcp_is_read_back_in_both_protocol_eras(up: Up, mode: str) -> None:
    async with up.client(mode=mode) as client:
        written = await call(
            client, "memory_store_fact", subject="user", predicate=f"pet_{mode}", content="a cat named Ada"
        )
        read = await call(client, "memory_get", type="fact", id=written["id"])
        assert read["memory"]["content"] == "a cat named Ada"
        assert read["memory"]["source_butler"] == "claude"


async def test_t2_the_request_context_comes_back_on_success_and_on_error(up: Up) -> None:
    lineage = {"request_id": "r-1", "session_id": "s-1"}
    async with up.client() as client:
        good = await call(client, "memory_stats", request_context=lineage)
        assert good["request_context"] == lineage
        bad = await client.call_tool("memory_store_rule", {"request_context": lineage})
        assert bad.is_error
        assert bad.structured_content["request_context"] == lineage
        assert bad.structured_content["error"] == "invalid_input"


async def test_t4_errors_of_the_framework_have_our_shape_and_no_content(up: Up) -> None:
    marker = "zanzibar-marker"
    async with up.client() as client:
        for tool, arguments in [
            ("memory_store_fact", {"subject": marker, "predicate": {"x": marker}, "content": 5}),
            ("memory_store_fact", {"subject": "user", "predicate": "name", "content": "x", marker: 1}),
            ("memory_no_such_tool", {"content": marker}),
            ("memory_get", {"type": "fact", "id": marker}),
        ]:
            answer = await client.call_tool(tool, arguments)
            assert answer.is_error
            assert set(answer.structured_content) >= {"error", "reason", "message", "recovery", "field"}
            assert marker not in str(answer)


async def test_t5_the_whole_tool_list_is_short_enough_for_a_prompt(up: Up, tokenizer: Tokenizer) -> None:
    async with up.client() as client:
        listed = (await client.list_tools()).tools
        text = "".join(tool.model_dump_json(by_alias=True, exclude_none=True) for tool in listed)
        assert {tool.name for tool in listed} == {tool.name for tool in TOOLS}
        assert len(tokenizer.encode(text).ids) <= 3000


@pytest.fixture(scope="module")
def tokenizer(model_at_hand: Path) -> Tokenizer:
    """The embedding model's WordPiece: it splits JSON finer than a chat model's tokenizer, so it is a safe bound."""
    return Tokenizer.from_file(str(next(model_at_hand.glob("*/tokenizer.json"))))


def test_g2_without_a_valid_token_nothing_is_served(up: Up) -> None:
    for headers in ({}, {"Authorization": "Bearer bm_wrong"}, {"Authorization": "Basic abc"}):
        answer = httpx2.post(up.url, json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, headers=headers)
        assert answer.status_code == 401
        assert answer.json()["error"] == "unauthenticated"


def test_g2_a_foreign_host_or_origin_is_refused(up: Up) -> None:
    base = {"Authorization": f"Bearer {up.token()}", "Accept": "application/json, text/event-stream"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for bad in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
        assert httpx2.post(up.url, json=body, headers=base | bad).status_code in (403, 421)


def test_a_get_does_not_hang(up: Up) -> None:
    assert httpx2.get(up.url, headers={"Authorization": f"Bearer {up.token()}"}, timeout=5).status_code == 405


def test_bodies_that_are_no_json_or_no_utf8_are_answered(up: Up) -> None:
    headers = {"Authorization": f"Bearer {up.token()}", "Content-Type": "application/json",
               "Accept": "application/json, text/event-stream"}  # fmt: skip
    for body in (b"", b"{", b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}'):
        answer = httpx2.post(up.url, content=body, headers=headers)
        assert 400 <= answer.status_code < 500


def test_g7_no_refusal_of_the_protocol_repeats_what_was_sent(up: Up) -> None:
    marker = "zanzibar-marker"
    headers = {"Authorization": f"Bearer {up.token()}", "Accept": "application/json, text/event-stream"}
    bodies: list[tuple[Any, Any]] = [
        ({"jsonrpc": "2.0", "id": 7, "x": marker}, 7),
        ({"id": 7, "method": marker}, 7),
        ([marker], None),
        (marker, None),
        ({"jsonrpc": "2.0", "id": 8, "method": marker}, 8),
        ({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": {"name": "memory_get", "arguments": marker}}, 9),
        ({"jsonrpc": "2.0", "id": 9, "method": "tools/call", "params": [marker]}, 9),
    ]
    for body, request_id in bodies:
        answer = httpx2.post(up.url, json=body, headers=headers)
        assert marker not in answer.text
        assert answer.json()["id"] == request_id
        shape = answer.json()["error"]["data"]
        assert set(shape) >= {"error", "reason", "message", "recovery", "field", "request_context"}
    for version in ("2026-07-28", marker):
        for body, _ in bodies:
            answer = httpx2.post(up.url, json=body, headers=headers | {"MCP-Protocol-Version": version})
            assert 400 <= answer.status_code < 500
            assert marker not in answer.text


def test_t4_half_a_character_is_answered_in_our_shape_under_the_requests_id(up: Up) -> None:
    headers = {"Authorization": f"Bearer {up.token()}", "Accept": "application/json, text/event-stream",
               "Content-Type": "application/json"}  # fmt: skip
    for half in (rb"\ud83d", b"\xf0\x9f"):
        call = b'{"name":"memory_store_rule","arguments":{"content":"Cut emoji ' + half + b'"}}'
        body = b'{"jsonrpc":"2.0","id":4,"method":"tools/call","params":' + call + b"}"
        answer = httpx2.post(up.url, content=body, headers=headers).json()
        shape = answer["result"]["structuredContent"]
        assert (answer["id"], answer["result"]["isError"]) == (4, True)
        assert (shape["error"], shape["reason"], shape["field"]) == ("invalid_input", "bad_text", "content")


async def test_two_megabytes_of_text_are_too_large_in_our_shape(up: Up) -> None:
    async with up.client() as client:
        answer = await client.call_tool("memory_store_episode", {"content": "x" * 2_000_000})
        assert answer.structured_content["error"] == "too_large"


async def test_the_project_of_the_address_is_an_own_scope(up: Up) -> None:
    async with up.client(query="?project=alpha") as client:
        written = await call(
            client, "memory_store_fact", subject="repo", predicate="linter", content="ruff", scope="project:alpha"
        )
        read = await call(client, "memory_get", type="fact", id=written["id"])
        assert read["memory"]["scope"] == "project:alpha"
    async with up.client() as client:
        answer = await client.call_tool("memory_get", {"type": "fact", "id": written["id"]})
        assert answer.structured_content["error"] == "not_found"


async def test_stdio_shares_the_memory_of_a_running_up(up: Up) -> None:
    process = StdioServerParameters(
        command=sys.executable, args=["-m", "butler_memory.cli", "mcp"], env=environment(up.data_dir)
    )
    async with Client(stdio_client(process)) as client:
        written = await call(client, "memory_store_fact", subject="user", predicate="shoe_size", content="43")
    async with up.client() as client:
        read = await call(client, "memory_get", type="fact", id=written["id"])
        assert read["memory"]["content"] == "43"


def test_a_second_up_on_the_same_data_and_a_taken_port_say_so(up: Up, tmp_path: Path) -> None:
    second = start_up(up.data_dir)
    assert "already runs" in second.output()
    assert second.process.returncode == 5
    other = start_up(tmp_path / "other", port=up.port)
    assert f"Port {up.port} is taken" in other.output()
    assert other.process.returncode == 5


def test_ctrl_c_stops_everything_and_the_second_start_is_quick(tmp_path: Path) -> None:
    first = start_up(tmp_path / "data")
    first.wait_until_ready()
    token = first.token()
    assert first.stop(signal.SIGINT) == 0
    assert f"Bearer {token}" in first.output()
    assert _servers_on(tmp_path) == []
    second = start_up(tmp_path / "data")
    second.wait_until_ready()
    assert second.token() == token
    assert second.stop(signal.SIGTERM) == 0
    second.output()
    assert _servers_on(tmp_path) == []


def _servers_on(directory: Path) -> list[str]:
    listed = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(directory) in line]


async def test_every_acknowledged_write_survives_sigkill_exactly_once(tmp_path: Path) -> None:
    """Killed in the middle of 200 writes; started again, each write that was answered is there with its event."""
    running = start_up(tmp_path / "data")
    running.wait_until_ready()
    acknowledged: dict[str, str] = {}

    async def write(client: Client, number: int) -> None:
        written = await call(client, "memory_store_episode", content=f"episode {number}", idempotency_key=f"k{number}")
        acknowledged[f"episode {number}"] = written["id"]
        if len(acknowledged) == 100:
            running.process.kill()

    with pytest.raises(BaseExceptionGroup):  # the server dies under the writers, which is the point
        await _write_all(running, write)
    running.output()
    assert 100 <= len(acknowledged) < 200
    again = start_up(tmp_path / "data")
    again.wait_until_ready()
    url = subprocess.run(
        [sys.executable, "-m", "butler_memory.cli", "db", "url"],
        env=environment(tmp_path / "data"), capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.execute("SELECT set_config('memory.tenant', 'home', true)")
        found = await conn.execute("SELECT content, id::text FROM memory.episodes")
        stored = await found.fetchall()
        found = await conn.execute(
            "SELECT entity_id::text, count(*) FROM memory.memory_events WHERE event_type = 'created' GROUP BY 1"
        )
        events = dict(await found.fetchall())
    assert len({content for content, _ in stored}) == len(stored)
    assert acknowledged.items() <= dict(stored).items()
    assert events == {identity: 1 for _, identity in stored}
    async with again.client() as client:
        for number in range(200):  # the caller retries everything it is not sure of
            await call(client, "memory_store_episode", content=f"episode {number}", idempotency_key=f"k{number}")
        stats = await call(client, "memory_stats")
    assert stats["episodes"]["by_state"] == {"active": 200}
    assert again.stop() == 0
    again.output()


async def _write_all(running: Up, write: Any) -> None:
    async with running.client() as client:
        gate = asyncio.Semaphore(8)

        async def one(number: int) -> None:
            async with gate:
                await write(client, number)

        async with asyncio.TaskGroup() as tasks:
            for number in range(200):
                tasks.create_task(one(number))
