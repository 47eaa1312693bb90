"""What one reading gets to see: episodes in order, and what is known already (K1, K2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TypeVar
from uuid import UUID

from butler_memory.domain.outcomes import MOST_ATTEMPTS
from butler_memory.domain.records import Episode, Fact, Rule
from butler_memory.domain.schedule import LONGEST_RETRY
from butler_memory.postgres import consolidation as table
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import GLOBAL

T = TypeVar("T", Episode, Fact, Rule)

# What the memory knows is shown to the reader up to so many of each; the latest confirmed first.
MOST_FACTS = 2000
MOST_RULES = 500
# Of episodes, in characters: some 15,000 tokens, which fit most models beside what is known. One alone may be longer.
MOST_CHARS = 60_000


class UnknownHandle(Exception):
    """The reader named something that it was not shown."""


@dataclass(frozen=True)
class Batch:
    """`sessions`: where each episode was told. `served`: what each session was shown; `marked`: what it marked itself.

    Handles are short names for this one reading: a model copies `F7` without a slip, and pays a token for it.
    """

    tenant: str
    butler: str
    episodes: tuple[Episode, ...]
    facts: tuple[Fact, ...]
    rules: tuple[Rule, ...]
    sessions: Mapping[UUID, UUID]
    served: Mapping[UUID, set[UUID]]
    marked: frozenset[tuple[UUID, UUID]]

    @cached_property
    def by_handle(self) -> dict[str, Episode | Fact | Rule]:
        named: dict[str, Episode | Fact | Rule] = {}
        shown: Sequence[tuple[str, Sequence[Episode | Fact | Rule]]] = (
            ("E", self.episodes), ("F", self.facts), ("R", self.rules),
        )  # fmt: skip
        for letter, memories in shown:
            for number, memory in enumerate(memories, 1):
                named[f"{letter}{number}"] = named[str(memory.id)] = memory
        return named

    @cached_property
    def handles(self) -> dict[UUID, str]:
        return {memory.id: handle for handle, memory in self.by_handle.items() if handle != str(memory.id)}

    def episode(self, handle: str) -> Episode:
        return self._named(handle, Episode)

    def fact(self, handle: str) -> Fact:
        return self._named(handle, Fact)

    def rule(self, handle: str) -> Rule:
        return self._named(handle, Rule)

    def memory(self, handle: str) -> Fact | Rule:
        found = self.by_handle.get(handle.strip())
        if not isinstance(found, Fact | Rule):
            raise UnknownHandle
        return found

    def _named(self, handle: str, kind: type[T]) -> T:
        found = self.by_handle.get(handle.strip())
        if not isinstance(found, kind):
            raise UnknownHandle
        return found


async def next_batch(conn: Conn, tenant: str, butler: str, size: int, now: datetime) -> Batch | None:
    """The oldest that wait. None where none does, or where the oldest is not to be tried again yet: order is kept."""
    together = readable(await table.pending(conn, tenant, butler, size), size, now)
    return await batch_of(conn, tenant, butler, together) if together else None


async def batch_of(conn: Conn, tenant: str, butler: str, episodes: Sequence[Episode]) -> Batch:
    ids = [episode.id for episode in episodes]
    sessions = await table.sessions_of(conn, tenant, ids)
    told_in = sorted(set(sessions.values()))
    scopes = [GLOBAL, butler]
    return Batch(
        tenant,
        butler,
        tuple(episodes),
        tuple(await table.live_facts(conn, tenant, scopes, MOST_FACTS)),
        tuple(await table.live_rules(conn, tenant, scopes, MOST_RULES)),
        sessions,
        await table.served(conn, tenant, told_in),
        frozenset(await table.marked(conn, tenant, told_in)),
    )


def readable(waiting: Sequence[Episode], size: int, now: datetime) -> list[Episode]:
    """From the head of the queue, as many as each of them may be read with: one on its last attempt, with no other."""
    together: list[Episode] = []
    most, room = size, MOST_CHARS
    for episode in waiting:
        most = min(most, size_after(episode.consolidation_attempts, size))
        room -= len(episode.content or "")
        is_full = len(together) >= most or (together and room < 0)
        if is_full or not is_due(episode, now):
            break
        together.append(episode)
    return together


def is_due(episode: Episode, now: datetime) -> bool:
    """A time much further away than any wait was set by a clock that has stepped back since (L6)."""
    retry = episode.next_consolidation_retry_at
    return retry is None or retry <= now or retry > now + 2 * LONGEST_RETRY


def size_after(attempts: int, size: int) -> int:
    """Half as many after each failure; at the last attempt an episode is alone, so that it takes no other with it."""
    return 1 if attempts >= MOST_ATTEMPTS - 1 else max(1, size >> attempts)
