"""Idempotency: the first call with a key decides, every repeat gets its id (E6)."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from butler_memory.domain.kinds import MemoryType
from butler_memory.postgres.database import Conn


async def claim(conn: Conn, tenant: str, key: str, kind: MemoryType, memory_id: UUID, now: datetime) -> None:
    """Takes the key for this memory; a concurrent first call makes this one wait, then be done again."""
    await conn.execute(
        "INSERT INTO memory.idempotency_keys (tenant_id, key, type, id, created_at) VALUES (%s, %s, %s, %s, %s)",
        [tenant, key, kind, memory_id, now],
    )


async def claimed_by(conn: Conn, tenant: str, key: str) -> tuple[MemoryType, UUID] | None:
    found = await conn.execute(
        "SELECT type, id FROM memory.idempotency_keys WHERE tenant_id = %s AND key = %s", [tenant, key]
    )
    row = await found.fetchone()
    return (MemoryType(row["type"]), row["id"]) if row else None
