"""Runs `butler-memory up` as a user does, and talks to it with the official client."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

START_SECONDS = 60  # without fetching the model, which conftest has done


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Up:
    """One running `up`."""

    data_dir: Path
    port: int
    process: subprocess.Popen[str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def token(self, name: str = "butler") -> str:
        return (self.data_dir / f"{name}-token").read_text().strip()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, f"up ended: {self.output()}"
            try:
                if httpx2.get(f"http://127.0.0.1:{self.port}/healthz", timeout=2).status_code == 200:
                    return
            except httpx2.TransportError:
                time.sleep(0.05)
        raise AssertionError("up did not become ready")

    def stop(self, how: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(how)
        return self.process.wait(30)

    def output(self) -> str:
        return self.process.communicate()[0]

    @asynccontextmanager
    async def client(self, token: str | None = None, query: str = "", **options: Any) -> AsyncIterator[Client]:
        headers = {"Authorization": f"Bearer {token or self.token()}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=30) as http,
            Client(streamable_http_client(self.url + query, http_client=http), **options) as client,
        ):
            yield client


def environment(data_dir: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BUTLER_MEMORY_")}
    return {**kept, "BUTLER_MEMORY_DATA_DIR": str(data_dir), "PYTHONUNBUFFERED": "1"}


def start_up(data_dir: Path, port: int | None = None, **environ: str) -> Up:
    port = port or free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "butler_memory.cli", "up", "--port", str(port)],
        env=environment(data_dir) | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Up(data_dir, port, process)
