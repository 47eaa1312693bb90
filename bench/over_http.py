"""`butler-memory up` in a process of its own, and clients that speak MCP to it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

START_SECONDS = 60


class Bearer(httpx2.Auth):
    """The token of the next call: one client speaks for many tenants, one after the other."""

    token = ""

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        request.headers["Authorization"] = f"Bearer {self.token}"
        yield request


@dataclass
class Caller:
    client: Client
    bearer: Bearer

    async def call(self, token: str, tool: str, arguments: Mapping[str, Any]) -> Any:
        self.bearer.token = token
        answer = await self.client.call_tool(tool, dict(arguments))
        if answer.is_error:
            raise RuntimeError(f"{tool} failed: {answer.content}")
        return answer


@contextmanager
def up(data_dir: Path) -> Iterator[tuple[str, int]]:
    """The address and the process id of a running server."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BUTLER_MEMORY_")}
    said = data_dir / "bench-up.log"
    with said.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "butler_memory.cli", "up", "--port", str(port)],
            env=kept | {"BUTLER_MEMORY_DATA_DIR": str(data_dir)},
            stdout=output,
            stderr=output,
        )
    try:
        if not _ready(process, port):
            raise RuntimeError(f"'butler-memory up' did not become ready:\n{said.read_text(errors='replace')}")
        yield f"http://127.0.0.1:{port}/mcp", process.pid
    finally:
        process.terminate()
        process.wait(30)


def _ready(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx2.get(f"http://127.0.0.1:{port}/healthz", timeout=2).status_code == 200:
                return True
        except httpx2.TransportError:
            time.sleep(0.05)
    return False


@asynccontextmanager
async def callers(url: str, count: int, token: str) -> AsyncIterator[list[Caller]]:
    """`count` connected clients; `token` is for their first words with the server."""
    async with AsyncExitStack() as stack:
        made = []
        for _ in range(count):
            bearer = Bearer()
            bearer.token = token
            http = await stack.enter_async_context(httpx2.AsyncClient(auth=bearer, timeout=60))
            client = await stack.enter_async_context(Client(streamable_http_client(url, http_client=http)))
            made.append(Caller(client, bearer))
        yield made
