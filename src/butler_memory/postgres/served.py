"""What sessions were served: kept so that a block can be shown again, explained, and compared with now (C7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from butler_memory.postgres.database import Conn


@dataclass(frozen=True)
class ServedContext:
    """One row. `items` holds ids and scores only; the texts are in `body`, which can be erased."""

    id: UUID
    butler: str
    session_id: UUID | None
    request_id: str | None
    served_at: datetime
    status: str
    budget: int
    tokens: int
    tokenizer: str
    items: list[dict[str, Any]]
    body: dict[str, Any] | None


_COLUMNS = "id, butler, session_id, request_id, served_at, status, budget, tokens, tokenizer, items, body"


async def add(conn: Conn, tenant: str, served: Sequence[ServedContext]) -> None:
    """All of them in one statement; one that is known already stays as it is."""
    rows = [vars(each) for each in served]
    await conn.execute(
        f"""
        INSERT INTO memory.served_contexts (tenant_id, {_COLUMNS})
        SELECT %(tenant)s, s.* FROM unnest(
            %(id)s::uuid[], %(butler)s::text[], %(session_id)s::uuid[], %(request_id)s::text[],
            %(served_at)s::timestamptz[], %(status)s::text[], %(budget)s::int[], %(tokens)s::int[],
            %(tokenizer)s::text[], %(items)s::jsonb[], %(body)s::jsonb[]) AS s
        ON CONFLICT DO NOTHING
        """,
        {
            "tenant": tenant,
            **{name: [row[name] for row in rows] for name in _COLUMNS.split(", ")},
            "items": [Jsonb(row["items"]) for row in rows],
            "body": [Jsonb(row["body"]) for row in rows],
        },
    )


async def newest(conn: Conn, tenant: str, butler: str | None, limit: int) -> list[ServedContext]:
    found = await conn.execute(
        f"""
        SELECT {_COLUMNS} FROM memory.served_contexts
        WHERE tenant_id = %(tenant)s AND (%(butler)s::text IS NULL OR butler = %(butler)s)
        ORDER BY served_at DESC, id DESC LIMIT %(limit)s
        """,
        {"tenant": tenant, "butler": butler, "limit": limit},
    )
    return [ServedContext(**row) for row in await found.fetchall()]


async def find(conn: Conn, tenant: str, served_id: UUID) -> ServedContext | None:
    found = await conn.execute(
        f"SELECT {_COLUMNS} FROM memory.served_contexts WHERE tenant_id = %s AND id = %s", [tenant, served_id]
    )
    row = await found.fetchone()
    return ServedContext(**row) if row else None
