"""`butler-memory mcp` as a client sees it: every line is answered, and it ends when it is told to."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from butler_memory.postgres.provision import Urls
from serving import environment

Json = dict[str, Any]
MARKER = "zanzibar-marker"
MCP = ["-m", "butler_memory.cli", "mcp"]
INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


def place(urls: Urls, data_dir: Path) -> dict[str, str]:
    named = {"BUTLER_MEMORY_DATABASE_URL": urls.app, "BUTLER_MEMORY_WORKER_URL": urls.worker}
    return environment(data_dir) | named | {"BUTLER_MEMORY_MODEL_CACHE": "/proc/nope"}


class Wire:
    """Lines in, lines out."""

    def __init__(self, environ: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, *MCP], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def send(self, line: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def receive(self) -> Json:
        assert self.process.stdout
        answer: Json = json.loads(self.process.stdout.readline())
        return answer

    def request(self, line: bytes) -> Json:
        self.send(line)
        return self.receive()


@pytest.fixture
def wire(urls: Urls, tmp_path: Path) -> Iterator[Wire]:
    opened = Wire(place(urls, tmp_path))
    opened.request(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE}).encode())
    opened.send(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
    yield opened
    opened.process.kill()
    opened.process.communicate()


def storing(content: bytes) -> bytes:
    arguments = b'{"subject":"user","predicate":"a","content":"' + content + b'","request_context":{"request_id":"r"}}'
    call = b'{"name":"memory_store_fact","arguments":' + arguments + b"}"
    return b'{"jsonrpc":"2.0","id":4,"method":"tools/call","params":' + call + b"}"


def test_c6_over_stdio_half_a_character_in_a_prompt_is_mended(wire: Wire) -> None:
    call = b'{"name":"memory_context","arguments":{"trigger_prompt":"cut emoji \\ud83d"}}'
    answer = wire.request(b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":' + call + b"}")
    assert answer["result"]["_meta"]["status"] in ("ok", "empty", "degraded")
    assert answer["result"]["isError"] is False


def test_t4_over_stdio_every_line_is_answered_in_our_shape_under_its_id(wire: Wire) -> None:
    for half in (rb"cut emoji \ud83d", b"cut emoji \xf0\x9f"):
        answer = wire.request(storing(half))
        shape = answer["result"]["structuredContent"]
        assert (answer["id"], answer["result"]["isError"]) == (4, True)
        assert (shape["error"], shape["reason"], shape["field"]) == ("invalid_input", "bad_text", "content")
        assert shape["request_context"] == {"request_id": "r"}
    for line, request_id in [
        (b"{", None),
        (b"[" * 100_000, None),
        (f'["{MARKER}"]'.encode(), None),
        (f'{{"jsonrpc":"2.0","id":7,"x":"{MARKER}"}}'.encode(), 7),
        (f'{{"jsonrpc":"2.0","id":"i","method":"{MARKER}"}}'.encode(), "i"),
        (f'{{"jsonrpc":"2.0","id":8,"method":"{MARKER}\\ud83d"}}'.encode(), 8),
        (f'{{"jsonrpc":"2.0","id":9,"method":"tools/call","params":"{MARKER}"}}'.encode(), 9),
        (b'{"jsonrpc":"2.0","id":10,"method":"tools/call","params":{"name":"memory_get","arguments":"x"}}', 10),
    ]:
        answer = wire.request(line)
        assert answer["id"] == request_id
        assert set(answer["error"]["data"]) >= {"error", "reason", "message", "recovery", "field", "request_context"}
        assert MARKER not in str(answer)
    assert wire.request(storing(b"whole"))["result"]["structuredContent"]["outcome"] == "created"


@pytest.mark.parametrize(("way", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_though_the_client_is_silent(wire: Wire, way: signal.Signals, code: int) -> None:
    began = time.monotonic()
    wire.process.send_signal(way)
    assert wire.process.wait(20) == code
    assert time.monotonic() - began < 10
    assert wire.process.stderr
    assert b"Traceback" not in wire.process.stderr.read()


def test_the_end_of_input_ends_it(wire: Wire) -> None:
    wire.request(storing(b"whole"))
    assert wire.process.stdin
    wire.process.stdin.close()
    wire.process.stdin = None
    assert wire.process.wait(20) == 0
    assert wire.process.stderr
    assert b"Traceback" not in wire.process.stderr.read()


async def test_appendix_c_a_disabled_memory_has_no_tools_over_stdio(urls: Urls, tmp_path: Path) -> None:
    off = place(urls, tmp_path) | {"BUTLER_MEMORY_ENABLED": "false"}
    async with Client(stdio_client(StdioServerParameters(command=sys.executable, args=MCP, env=off))) as client:
        assert (await client.list_tools()).tools == []
        answer = await client.call_tool("memory_stats", {"request_context": {"request_id": "r"}})
    assert answer.is_error
    shape = answer.structured_content
    assert (shape["error"], shape["reason"], shape["request_context"]) == (
        "unavailable",
        "disabled",
        {"request_id": "r"},
    )
