"""Keeps what was served, a moment after it was (C7)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, KeysView

from butler_memory.postgres import served
from butler_memory.postgres.database import Database
from butler_memory.postgres.served import ServedContext
from butler_memory.retrieval.write_behind import WriteBehind

# While the database is away the newest are kept, not all: a log must not eat the memory of the process.
MOST_OF_A_TENANT = 1000
MOST_OF_ALL = 10_000
MOST_CHARACTERS = 50_000_000
# About what the ids and scores of one line take.
_CHARACTERS_OF_AN_ITEM = 500


class ServedLog:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._backlog = Backlog()
        self._behind = WriteBehind("served contexts", self._backlog.tenants, self._write)

    def add(self, tenant: str, context: ServedContext) -> None:
        self._backlog.add(tenant, [context])
        self._behind.soon()

    async def flush(self) -> None:
        await self._behind.flush()

    async def close(self) -> None:
        await self._behind.close()

    async def _write(self, tenant: str) -> None:
        contexts = self._backlog.take(tenant)
        try:
            await self._database.run(tenant, lambda conn: served.add(conn, tenant, contexts))
        except BaseException:
            self._backlog.add(tenant, [*contexts, *self._backlog.take(tenant)])
            raise


class Backlog:
    """What waits, by tenant, oldest first; when it is too much, the oldest of whoever has most is dropped."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[ServedContext]] = {}
        self._count = 0
        self._characters = 0

    def tenants(self) -> KeysView[str]:
        return self._waiting.keys()

    def add(self, tenant: str, contexts: Iterable[ServedContext]) -> None:
        own = self._waiting.setdefault(tenant, deque())
        for context in contexts:
            own.append(context)
            self._count += 1
            self._characters += _characters(context)
        while len(own) > MOST_OF_A_TENANT:
            self._drop(tenant)
        while self._count > MOST_OF_ALL or self._characters > MOST_CHARACTERS:
            self._drop(max(self._waiting, key=lambda each: len(self._waiting[each])))

    def take(self, tenant: str) -> list[ServedContext]:
        taken = list(self._waiting.pop(tenant, ()))
        self._count -= len(taken)
        self._characters -= sum(map(_characters, taken))
        return taken

    def _drop(self, tenant: str) -> None:
        own = self._waiting[tenant]
        self._count -= 1
        self._characters -= _characters(own.popleft())
        if not own:
            del self._waiting[tenant]


def _characters(context: ServedContext) -> int:
    texts = sum(len(text) for text in (context.body or {}).values() if isinstance(text, str))
    return texts + _CHARACTERS_OF_AN_ITEM * (1 + len(context.items))
