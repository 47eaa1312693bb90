"""What every use case works with, and the shape it answers in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID, uuid5

from butler_memory.domain.decay import crosses_at
from butler_memory.domain.kinds import JobName, Maturity, MemoryType, WriteOutcome
from butler_memory.domain.records import AnyMemory, Episode, Fact, Rule
from butler_memory.domain.requests import Request, session_uuid
from butler_memory.domain.schedule import Timetable
from butler_memory.domain.text import digest
from butler_memory.errors import Integrity, NotFound
from butler_memory.postgres import access, consolidation, keys, memories
from butler_memory.postgres.access import Tenant
from butler_memory.postgres.changes import Author, Link
from butler_memory.postgres.database import Conn, Database
from butler_memory.security.principal import Principal, require_writer
from butler_memory.settings import MemorySettings
from butler_memory.writing.vectors import NeedsVector, Ticket, Vectors

T = TypeVar("T")

# From here on, two memories of one key or scope are linked `related_to` (F11). Merging never looks at distance.
CLOSE = 0.8
# A model reads as soon as so many episodes wait, or when the oldest has waited for so long.
ENOUGH_FOR_A_MODEL = 10
LONGEST_WAIT_FOR_A_MODEL = timedelta(minutes=30)


@dataclass
class Desk:
    database: Database
    vectors: Vectors
    settings: MemorySettings
    timetable: Timetable
    _tenants: dict[str, Tenant] = field(default_factory=dict)

    async def tenant(self, tenant_id: str) -> Tenant:
        """A tenant's key and mode never change, so they are read once."""
        if tenant_id not in self._tenants:
            found = await self.database.run(tenant_id, lambda conn: access.tenant(conn, tenant_id))
            if found is None:
                raise Integrity("This token's tenant does not exist.", reason="unknown_tenant")
            self._tenants[tenant_id] = found
        return self._tenants[tenant_id]

    async def waiting(self, conn: Conn, tenant: str, butler: str) -> int:
        """How many episodes wait in a shard, where that decides when it is read; counted no further than that."""
        if self.settings.consolidation.backend == "offline" or not self.settings.consolidation.quiet_seconds:
            return 0
        return await consolidation.count_pending(conn, tenant, butler, ENOUGH_FOR_A_MODEL)

    def consolidated_by(self, now: datetime, waiting: int) -> datetime:
        """When an episode that comes now should be read: when its shard may be quiet, or at the usual time.

        A model is asked for several at once, or when the oldest has waited for long enough (K8).
        """
        settings = self.settings.consolidation
        usual = self.timetable.next_fire(JobName.CONSOLIDATE, now)
        if not settings.quiet_seconds:
            return usual
        if settings.backend == "offline":
            return min(usual, now + timedelta(seconds=settings.quiet_seconds))
        return now if waiting >= ENOUGH_FOR_A_MODEL else min(usual, now + LONGEST_WAIT_FOR_A_MODEL)

    async def write(self, tenant: str, ticket: Ticket, work: Callable[[Conn], Awaitable[T]]) -> T:
        """`work` in a transaction; if it cannot go without the vector, wait for that outside, then again."""
        try:
            return await self.database.run(tenant, work)
        except NeedsVector:
            await self.vectors.wait(ticket)
            return await self.database.run(tenant, work)

    def decay_columns(self, confidence: float, decay_rate: float, confirmed: datetime) -> dict[str, Any]:
        """When it will fade and expire, in closed form, so that the sweep is an index range (J2)."""
        limits = self.settings.facts
        return {
            "fades_at": crosses_at(confidence, decay_rate, confirmed, limits.retrieval_confidence_threshold),
            "expires_at_conf": crosses_at(confidence, decay_rate, confirmed, limits.expiry_confidence_threshold),
        }

    def fading_of(self, memory: Fact | Rule, decay_rate: float, confirmed: datetime) -> dict[str, Any]:
        """The same for a memory that is there; a warning does not decay (R4)."""
        if isinstance(memory, Rule) and memory.maturity is Maturity.ANTI_PATTERN:
            return {"fades_at": None, "expires_at_conf": None}
        return self.decay_columns(memory.confidence, decay_rate, confirmed)


@dataclass(frozen=True)
class Written:
    """The write shape of SPEC appendix B. `settled`: claims that it ended beside what it superseded."""

    type: MemoryType
    id: UUID
    outcome: WriteOutcome
    state: str
    superseded_id: UUID | None = None
    links: tuple[Link, ...] = ()
    settled: tuple[UUID, ...] = ()

    @property
    def retired(self) -> int:
        """How many memories it put out of use (K5)."""
        return len(self.settled) + (self.superseded_id is not None)

    def as_dict(self) -> dict[str, Any]:
        return {
            "type": self.type.value,
            "id": str(self.id),
            "outcome": self.outcome.value,
            "state": self.state,
            "superseded_id": str(self.superseded_id) if self.superseded_id else None,
            "links": [
                {"relation": x.relation.value, "type": x.target_type.value, "id": str(x.target_id)} for x in self.links
            ],
        }


def author_of(who: Principal, request: Request, now: datetime, session: str | None = None) -> Author:
    lineage = request.request_context.given()
    return Author(who.tenant, who.actor, now, session_of(who, session or lineage.get("session_id"), now), lineage)


def session_of(who: Principal, named: str | None, now: datetime) -> UUID:
    """The session a call belongs to; without a name, the token and the UTC day stand in for it."""
    return session_uuid(named) if named else uuid5(who.token_id, now.date().isoformat())


async def visible(conn: Conn, who: Principal, kind: MemoryType, memory_id: UUID, *, lock: bool = False) -> AnyMemory:
    """The memory, or NotFound: a foreign scope's id answers exactly as an unknown one (T3)."""
    found = await memories.find(conn, who.tenant, kind, memory_id, lock=lock)
    if found is None or not who.may_see(found.scope):
        raise NotFound(f"There is no {kind} with this id.", field="id")
    return found


async def changeable(conn: Conn, who: Principal, kind: MemoryType, memory_id: UUID) -> AnyMemory:
    require_writer(who)
    return await visible(conn, who, kind, memory_id, lock=True)


def repeat_key(secret: bytes, who: Principal, kind: MemoryType, given: str, butler: str = "") -> str:
    """What a caller's idempotency key is kept as: its own in each butler, type and project (E6, T3)."""
    return digest(secret, kind, butler or who.butler, who.project, given)


async def repeated(conn: Conn, who: Principal, key: str | None) -> Written | None:
    """The answer to a call that was made before under the same idempotency key."""
    claimed = await keys.claimed_by(conn, who.tenant, key) if key else None
    if claimed is None:
        return None
    kind, memory_id = claimed
    found = await memories.find(conn, who.tenant, kind, memory_id)
    return Written(kind, memory_id, WriteOutcome.DUPLICATE, found.condition if found else "expired")


def unchanged(memory: AnyMemory) -> Written:
    outcome = WriteOutcome.DUPLICATE if isinstance(memory, Episode) else WriteOutcome.CONFIRMED
    return Written(memory.type, memory.id, outcome, memory.condition)
