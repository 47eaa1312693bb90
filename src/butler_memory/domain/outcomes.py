"""What became of each thing that a reading proposed, and of the episodes it read (K3, E2)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from butler_memory.domain.schedule import retry_after

# After so many tries of its content an episode is given up, and a person may look at it (E2).
MOST_ATTEMPTS = 5
# However little a memory holds, a reading may put so many facts in the place of others (K5).
FEWEST_RETIRED = 10


class What(StrEnum):
    CREATED = "created"
    SUPERSEDED = "superseded"  # something new in the place of something known
    CONFIRMED = "confirmed"
    KNOWN = "known"  # said before, and nothing new about it
    CONTESTED = "contested"  # inferred, against what the user stated: a person decides
    LATE = "late"  # older than what is known: kept, and superseded already
    LINKED = "linked"
    MARKED = "marked"
    REFUSED = "refused"


@dataclass(frozen=True)
class Item:
    """One thing that was proposed, as a person reads it. `retired`: how many facts it put out of use."""

    what: What
    kind: str
    line: str
    id: UUID | None = None
    before: str | None = None
    reason: str | None = None
    evidence: tuple[UUID, ...] = ()
    retired: int = 0


@dataclass(frozen=True)
class Applied:
    """What one reading did. `left_out`: episodes that were forgotten, or read by another, while it was under way."""

    items: tuple[Item, ...] = ()
    read: tuple[UUID, ...] = ()
    left_out: tuple[UUID, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        return {"episodes": len(self.read), **Counter(f"{item.kind}s_{item.what}" for item in self.items)}


class TooMuch(Exception):
    """The proposal would retire more than one reading may (K5): nothing of it is written."""


def most_retired(seen: int, share: float) -> int:
    return max(FEWEST_RETIRED, int(seen * share))


@dataclass(frozen=True)
class Retry:
    """What a failure of its content does to an episode."""

    attempts: int
    gives_up: bool
    again_at: datetime | None = field(default=None)


def after_bad_output(attempts: int, now: datetime) -> Retry:
    tried = attempts + 1
    if tried >= MOST_ATTEMPTS:
        return Retry(tried, gives_up=True)
    return Retry(tried, gives_up=False, again_at=now + retry_after(tried))
