"""Standard input and output as MCP's streams, where also what cannot be read is answered."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage

from butler_memory.mcp_server.fail_open import mended
from butler_memory.mcp_server.framing import refusal

_LINES_AHEAD = 8


@asynccontextmanager
async def stdio_streams() -> AsyncIterator[tuple[Any, Any]]:
    async def readable() -> AsyncIterator[str]:
        async for given in _standard_input():
            line = given if refusal(given) is None else mended(given)
            answer = refusal(line)
            if answer is None:
                yield line.decode()
            else:
                await write.send(SessionMessage(answer))

    # The SDK only iterates over it.
    async with stdio_server(stdin=cast(Any, readable())) as (read, write):
        yield read, write


async def _standard_input() -> AsyncIterator[bytes]:
    """Line by line, from a thread that no exit waits for: a client that is silent must not keep us from ending."""
    loop = asyncio.get_running_loop()
    lines: asyncio.Queue[bytes] = asyncio.Queue(_LINES_AHEAD)
    # A file of its own: the interpreter's would be locked by the thread when the interpreter wants to close it.
    source = os.fdopen(os.dup(0), "rb")

    def read() -> None:
        with suppress(RuntimeError, OSError):  # the loop is closed: nobody listens any more
            while line := source.readline():
                asyncio.run_coroutine_threadsafe(lines.put(line), loop).result()
            asyncio.run_coroutine_threadsafe(lines.put(b""), loop).result()

    threading.Thread(target=read, name="stdin", daemon=True).start()
    while line := await lines.get():
        if line.strip():
            yield line
