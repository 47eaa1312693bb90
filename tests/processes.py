"""Whether a process is still there."""

from __future__ import annotations

import asyncio
from pathlib import Path


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
