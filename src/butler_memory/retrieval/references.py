"""Counts what was read, in batches; never changes the answer being given (S7)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

from butler_memory.domain.kinds import MemoryType
from butler_memory.postgres import refs
from butler_memory.postgres.database import Database
from butler_memory.retrieval.write_behind import WriteBehind

Key = tuple[MemoryType, UUID]


@dataclass
class _Read:
    """What was read of one tenant, how often, and when last."""

    last: datetime
    counts: Counter[Key] = field(default_factory=Counter)

    def add(self, counts: Iterable[Key] | Counter[Key], at: datetime) -> None:
        self.counts.update(counts)
        self.last = max(self.last, at)


class References:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[str, _Read] = {}
        self._behind = WriteBehind("references", lambda: self._waiting.keys(), self._write)

    def bump(self, tenant: str, keys: Iterable[Key], now: datetime) -> None:
        counts = Counter(keys)
        if counts:
            self._put(tenant, counts, now)
            self._behind.soon()

    async def flush(self) -> None:
        """Writes what has been counted; what cannot be written stays for the next time."""
        await self._behind.flush()

    async def close(self) -> None:
        await self._behind.close()

    def _put(self, tenant: str, counts: Counter[Key], at: datetime) -> None:
        self._waiting.setdefault(tenant, _Read(at)).add(counts, at)

    async def _write(self, tenant: str) -> None:
        read = self._waiting.pop(tenant)
        # Sorted, so that two processes that bump the same rows never wait for each other in a circle.
        ordered = sorted(read.counts.items(), key=lambda item: (item[0][0], item[0][1]))
        try:
            await self._database.run(tenant, lambda conn: refs.bump(conn, tenant, ordered, read.last))
        except BaseException:
            self._put(tenant, read.counts, read.last)
            raise
