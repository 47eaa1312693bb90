"""A vector for what is being stored: waited for briefly, made up for later (S12)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.predicates import other_words
from butler_memory.domain.records import AnyMemory, Fact
from butler_memory.embedding.models import Models
from butler_memory.embedding.ports import Embedder, Vector
from butler_memory.errors import ButlerMemoryError, Unavailable
from butler_memory.postgres import embeddings
from butler_memory.postgres.changes import Indexed
from butler_memory.postgres.database import Database

# A writer waits this long; a loaded model answers in 3 ms, a busy one a little later.
PATIENCE_SECONDS = 0.15
# A vector that must be there (it replaces something) is worth a longer wait, but not a hung caller.
LONGEST_WAIT_SECONDS = 30.0

log = logging.getLogger(__name__)


class NeedsVector(Exception):
    """This write replaces something or could be a duplicate: it must not go without its vector."""


@dataclass
class Ticket:
    """A text on its way to its vector. `went_without`: the row was last written before the vector was there."""

    text: str
    version: str
    task: asyncio.Task[Vector]
    went_without: bool = False

    @property
    def vector(self) -> Vector | None:
        done = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return self.task.result() if done else None

    @property
    def hopeless(self) -> bool:
        """There is no model: waiting longer would not help."""
        return self.task.done() and self.vector is None

    def require(self) -> None:
        if self.vector is None and not self.hopeless:
            raise NeedsVector


class Vectors:
    """Hands out tickets, and writes late vectors when they come."""

    def __init__(self, models: Models, database: Database, text_config: str) -> None:
        self._models = models
        self._database = database
        self._text_config = text_config
        self._late: set[asyncio.Task[Any]] = set()

    async def soon(self, tenant: str, text: str) -> Ticket:
        model = self._models.for_writing(tenant)
        ticket = Ticket(text, model.version, self._start(_one(model, text)))
        await asyncio.wait([ticket.task], timeout=PATIENCE_SECONDS)
        return ticket

    async def wait(self, ticket: Ticket) -> None:
        await asyncio.wait([ticket.task], timeout=LONGEST_WAIT_SECONDS)
        if not ticket.task.done():
            raise Unavailable("The embedding model is too busy.", reason="embedding_timeout")

    def indexed(self, ticket: Ticket, tags: Sequence[str], predicate_key: str = "") -> Indexed:
        vector = ticket.vector
        ticket.went_without = vector is None  # asking again later would be too late: it may come meanwhile
        return Indexed(_searched(ticket.text, tags, predicate_key), vector, ticket.version, self._text_config)

    def retagged(self, memory: AnyMemory, tags: Sequence[str]) -> Indexed:
        """New tags for the same text."""
        predicate_key = memory.predicate_key if isinstance(memory, Fact) else ""
        text = _searched(memory.line, tags, predicate_key)
        return Indexed(text, None, "", self._text_config, keeps_vector=True)

    def reworded(self, line: str, tags: Sequence[str]) -> Indexed:
        """Other words for what stays near the same questions."""
        return Indexed(_searched(line, tags, ""), None, "", self._text_config, keeps_vector=True)

    def catch_up(self, tenant: str, kind: MemoryType, memory_id: UUID, ticket: Ticket) -> None:
        """After a write that went without: store the vector as soon as it is there."""
        if ticket.went_without and not ticket.hopeless:
            self._start(self._store_late(tenant, kind, memory_id, ticket))

    async def close(self) -> None:
        """Lets late vectors land; what does not make it is found again at the next start."""
        if self._late:
            await asyncio.wait(self._late, timeout=2)
        for task in self._late:
            task.cancel()

    async def _store_late(self, tenant: str, kind: MemoryType, memory_id: UUID, ticket: Ticket) -> None:
        try:
            vector = await ticket.task
            await self._database.run(
                tenant, lambda conn: embeddings.put(conn, tenant, kind, [memory_id], [vector], ticket.version)
            )
        except ButlerMemoryError as error:
            log.warning("a late vector was not stored (%s); it is made up for later", error.code)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._late.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._late.discard(task)
        if not task.cancelled() and task.exception() is not None and not isinstance(task.exception(), Unavailable):
            log.error("embedding failed: %s", type(task.exception()).__name__)


async def _one(model: Embedder, text: str) -> Vector:
    return (await model.embed([text]))[0]


def _searched(line: str, tags: Sequence[str], predicate_key: str) -> str:
    """A memory is found by its tags too, and by other words for its predicate: "where do I work" asks for an employer.

    Only the line itself has a vector and is printed.
    """
    words = [*tags, *other_words(predicate_key)]
    return " ".join([line, *(word.replace("_", " ").replace("-", " ") for word in words)])
