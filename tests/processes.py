"""Other processes: whether one is still there, and waiting for what it does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

PATIENCE_SECONDS = 30

Check = Callable[[], Awaitable[bool]]


async def until(holds: Check, what: str) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not await holds():
        assert time.monotonic() < end, f"never: {what}"
        await asyncio.sleep(0.05)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int) -> bool:
    for _ in range(200):  # an orphan that was killed is buried by init, in its time
        if not alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False
