"""Counts what was read, in batches; never changes the answer being given (S7)."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from uuid import UUID

from butler_memory.domain.kinds import MemoryType
from butler_memory.errors import ButlerMemoryError
from butler_memory.postgres import refs
from butler_memory.postgres.database import Database
from butler_memory.retrieval.write_behind import WriteBehind

log = logging.getLogger(__name__)

Key = tuple[MemoryType, UUID]


class References:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._counts: dict[str, Counter[Key]] = defaultdict(Counter)
        self._last: dict[str, datetime] = {}
        self._behind = WriteBehind(self.flush)

    def bump(self, tenant: str, keys: Iterable[Key], now: datetime) -> None:
        self._counts[tenant].update(keys)
        self._last[tenant] = max(now, self._last.get(tenant, now))
        self._behind.soon()

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
        await self._behind.close()

    async def _write(self, tenant: str, counts: Counter[Key]) -> None:
        at = self._last[tenant]
        # Sorted, so that two processes that bump the same rows never wait for each other in a circle.
        ordered = sorted(counts.items(), key=lambda item: (item[0][0], item[0][1]))
        await self._database.run(tenant, lambda conn: refs.bump(conn, tenant, ordered, at))
