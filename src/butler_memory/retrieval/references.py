"""Counts what was read, in batches, off the read's path; never changes the answer being given (S7)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from butler_memory.domain.kinds import MemoryType
from butler_memory.errors import ButlerMemoryError
from butler_memory.postgres import refs
from butler_memory.postgres.database import Database

FLUSH_EVERY_SECONDS = 1.0

log = logging.getLogger(__name__)

Key = tuple[MemoryType, UUID]


class References:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: dict[str, Counter[Key]] = defaultdict(Counter)
        self._last: dict[str, datetime] = {}
        self._timer: asyncio.Task[None] | None = None

    def bump(self, tenant: str, keys: Iterable[Key], now: datetime) -> None:
        self._counts[tenant].update(keys)
        self._last[tenant] = max(now, self._last.get(tenant, now))
        if self._timer is None or self._timer.done():
            self._timer = asyncio.create_task(self._flush_soon())

    async def flush(self) -> None:
        """Writes what has been counted; what cannot be written stays for the next time."""
        waiting, self._counts = self._counts, defaultdict(Counter)
        for tenant, counts in waiting.items():
            if not counts:
                continue
            try:
                await self._write(tenant, counts)
            except ButlerMemoryError as error:
                log.warning("references of a tenant not counted yet (%s)", error.code)
                self._counts[tenant].update(counts)

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._timer
        await self.flush()

    async def _flush_soon(self) -> None:
        await asyncio.sleep(FLUSH_EVERY_SECONDS)
        await self.flush()

    async def _write(self, tenant: str, counts: Counter[Key]) -> None:
        at = self._last[tenant]
        # Sorted, so that two processes that bump the same rows never wait for each other in a circle.
        ordered = sorted(counts.items(), key=lambda item: (item[0][0], item[0][1]))
        await self._database.run(tenant, lambda conn: refs.bump(conn, tenant, ordered, at))
