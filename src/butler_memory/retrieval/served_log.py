"""Keeps what was served, a moment after it was (C7)."""

from __future__ import annotations

import logging
from collections import defaultdict, deque

from butler_memory.errors import ButlerMemoryError
from butler_memory.postgres import served
from butler_memory.postgres.database import Database
from butler_memory.postgres.served import ServedContext
from butler_memory.retrieval.write_behind import WriteBehind

# While the database is away the newest of each tenant are kept, not all: a log must not eat the memory of the process.
MOST_WAITING = 1000

log = logging.getLogger(__name__)


class ServedLog:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: dict[str, deque[ServedContext]] = self._empty()
        self._behind = WriteBehind(self.flush)

    def add(self, tenant: str, context: ServedContext) -> None:
        self._waiting[tenant].append(context)
        self._behind.soon()

    async def flush(self) -> None:
        waiting, self._waiting = self._waiting, self._empty()
        for tenant, contexts in waiting.items():
            try:
                await self._write(tenant, list(contexts))
            except ButlerMemoryError as error:
                log.warning("what a tenant was served is not logged yet (%s)", error.code)
                self._waiting[tenant].extendleft(reversed(contexts))

    async def close(self) -> None:
        await self._behind.close()

    async def _write(self, tenant: str, contexts: list[ServedContext]) -> None:
        await self._database.run(tenant, lambda conn: served.add(conn, tenant, contexts))

    def _empty(self) -> dict[str, deque[ServedContext]]:
        return defaultdict(lambda: deque(maxlen=MOST_WAITING))
