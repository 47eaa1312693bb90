"""What reads leave behind (references, what was served) is written a moment later, off the read's path (S7, C7)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection

from butler_memory.errors import ButlerMemoryError

# A crash loses no more than this; a clean close loses nothing.
FLUSH_AFTER_SECONDS = 1.0
# What could not be written is tried again after this.
RETRY_AFTER_SECONDS = 5.0
# A close waits this long for a database that does not answer, and then gives up what is left.
CLOSE_WITHIN_SECONDS = 10.0

log = logging.getLogger(__name__)


class WriteBehind:
    """Writes what waits, tenant by tenant, a moment after the first `soon`, until nothing is left; and on close.

    `write` takes what waits for one tenant, and puts it back when it raises, whatever it raises.
    """

    def __init__(
        self, what: str, waiting: Callable[[], Collection[str]], write: Callable[[str], Awaitable[None]]
    ) -> None:
        self._what = what
        self._waiting = waiting
        self._write = write
        self._one_at_a_time = asyncio.Lock()
        self._closing = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def soon(self) -> None:
        if self._running is None or self._running.done():
            self._running = asyncio.create_task(self._until_nothing_waits())

    async def flush(self) -> bool:
        """Writes all that waits, after a flush that is under way; true where nothing had to be left."""
        async with self._one_at_a_time:
            tenants = list(self._waiting())
            return all([await self._written(tenant) for tenant in tenants if tenant in self._waiting()])

    async def close(self) -> None:
        """Ends the pause, but never a flush that is under way."""
        self._closing.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_WITHIN_SECONDS):
                if self._running is not None:
                    await self._running
                await self.flush()
        if self._waiting():
            log.warning("%s of %d tenants are lost: the database did not take them", self._what, len(self._waiting()))

    async def _until_nothing_waits(self) -> None:
        pause = FLUSH_AFTER_SECONDS
        while self._waiting() and not await self._closes_within(pause):
            pause = FLUSH_AFTER_SECONDS if await self.flush() else RETRY_AFTER_SECONDS

    async def _closes_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)
        return self._closing.is_set()

    async def _written(self, tenant: str) -> bool:
        try:
            await self._write(tenant)
        except ButlerMemoryError as error:
            log.warning("%s of a tenant not written yet (%s)", self._what, error.code)
        except Exception as error:  # noqa: BLE001  the other tenants' must still be written
            log.error("%s of a tenant not written yet (%s)", self._what, type(error).__name__)
        else:
            return True
        return False
