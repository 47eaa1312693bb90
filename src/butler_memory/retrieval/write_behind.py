"""What reads leave behind (references, what was served) is written a moment later, off the read's path (S7, C7)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

# A crash loses no more than this; a clean close loses nothing.
FLUSH_AFTER_SECONDS = 1.0


class WriteBehind:
    """Calls `flush` once, a moment after the first `soon`, and again on close."""

    def __init__(self, flush: Callable[[], Awaitable[None]]) -> None:
        self._flush = flush
        self._timer: asyncio.Task[None] | None = None

    def soon(self) -> None:
        if self._timer is None or self._timer.done():
            self._timer = asyncio.create_task(self._later())

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._timer
        await self._flush()

    async def _later(self) -> None:
        await asyncio.sleep(FLUSH_AFTER_SECONDS)
        await self._flush()
