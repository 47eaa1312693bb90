"""What every job of the engine looks like from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from butler_memory.domain.kinds import JobName
from butler_memory.postgres.changes import Author
from butler_memory.postgres.leases import Lease


@dataclass(frozen=True)
class Done:
    """What a run did. `more`: it stopped before the end, so that others get their turn, and goes on soon."""

    counts: Mapping[str, int] = field(default_factory=dict)
    more: bool = False
    memo: Mapping[str, Any] | None = None  # kept for the next run; None leaves what is there
    again_at: datetime | None = None  # when what had to be left can be done, where that is known

    @property
    def caught_up(self) -> bool:
        """Nothing that was there is left to do."""
        return not self.more and self.again_at is None


Handler = Callable[[Lease, datetime], Awaitable[Done]]


@dataclass(frozen=True)
class Job:
    """`at_once`: how many shards of it one process runs at the same time; more than one where most of it is waiting."""

    name: JobName
    run: Handler
    at_once: int = 1


def author_of_job(lease: Lease, now: datetime) -> Author:
    """A run is nobody's session: what it does says nothing twice."""
    return Author(
        lease.tenant, f"job:{lease.job}", now, uuid5(NAMESPACE_URL, f"butler-memory:{lease.job}:{lease.token}")
    )
