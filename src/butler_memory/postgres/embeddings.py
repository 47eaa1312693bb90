"""Vectors by the version of the model that made them: missing ones, new ones beside the old, and their swap (L5).

Vectors are outside of versions and events: they can always be made again, and are always made of the same text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pgvector import HalfVector
from psycopg import sql

from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.records import AnyMemory
from butler_memory.embedding.ports import Vector
from butler_memory.postgres.changes import RECORDS, TABLES, columns_of
from butler_memory.postgres.database import Conn

# A swap writes all rows of a tenant anew: for 100,000 of them it takes longer than any other statement may.
SWAP_TIMEOUT = "10min"


@dataclass(frozen=True)
class Other:
    """A tenant that answers from another version than the one in question. `retired`: which it has left behind."""

    tenant: str
    version: str
    retired: bool


async def others(conn: Conn, version: str) -> list[Other]:
    """Runs as the worker: one look at all tenants."""
    found = await conn.execute(
        """
        SELECT t.tenant_id AS tenant, t.embedding_version AS version,
               EXISTS (SELECT 1 FROM memory.embedding_versions v
                       WHERE v.tenant_id = t.tenant_id AND v.version = %(version)s AND v.state = 'retired') AS retired
        FROM memory.tenants t WHERE t.embedding_version <> %(version)s ORDER BY t.tenant_id
        """,
        {"version": version},
    )
    return [Other(**row) for row in await found.fetchall()]


@dataclass(frozen=True)
class Known:
    """What a tenant's records say of its versions."""

    current: str | None  # None where nobody has said so yet, which is before the first run of the job
    since: datetime | None
    retired: frozenset[str]


async def known(conn: Conn, tenant: str) -> Known:
    found = await conn.execute("SELECT embedding_version FROM memory.tenants WHERE tenant_id = %s", [tenant])
    row = await found.fetchone()
    current = row["embedding_version"] if row else None
    found = await conn.execute(
        "SELECT version, state, current_since FROM memory.embedding_versions WHERE tenant_id = %s", [tenant]
    )
    records = await found.fetchall()
    return Known(
        current,
        next((each["current_since"] for each in records if each["version"] == current), None),
        frozenset(each["version"] for each in records if each["state"] == "retired"),
    )


async def begin(conn: Conn, tenant: str, version: str, dimensions: int, now: datetime) -> None:
    """Vectors of this version are being made, beside those in use."""
    await conn.execute(
        """
        INSERT INTO memory.embedding_versions (tenant_id, version, model, dimensions, state, created_at)
        VALUES (%(tenant)s, %(version)s, split_part(%(version)s, '@', 1), %(dimensions)s, 'building', %(now)s)
        ON CONFLICT (tenant_id, version) DO UPDATE SET state = excluded.state
        """,
        {"tenant": tenant, "version": version, "dimensions": dimensions, "now": now},
    )


async def use(conn: Conn, tenant: str, version: str, dimensions: int, now: datetime) -> None:
    """From now on the tenant answers from this version, and has left all others behind."""
    await begin(conn, tenant, version, dimensions, now)
    await conn.execute(
        """
        UPDATE memory.embedding_versions
        SET state = CASE WHEN version = %(version)s THEN 'current' ELSE 'retired' END,
            current_since = CASE WHEN version = %(version)s THEN %(now)s ELSE current_since END
        WHERE tenant_id = %(tenant)s
        """,
        {"tenant": tenant, "version": version, "now": now},
    )
    await conn.execute("UPDATE memory.tenants SET embedding_version = %s WHERE tenant_id = %s", [version, tenant])


async def without_vector(conn: Conn, tenant: str, kind: MemoryType, limit: int) -> list[AnyMemory]:
    """Memories stored while the model was busy or missing, oldest first (S12)."""
    found = await conn.execute(
        sql.SQL(
            "SELECT {} FROM memory.{} WHERE tenant_id = %s AND embedding IS NULL AND content IS NOT NULL"
            " ORDER BY created_at LIMIT %s"
        ).format(columns_of(kind), sql.Identifier(TABLES[kind])),
        [tenant, limit],
    )
    return [RECORDS[kind].from_row(row) for row in await found.fetchall()]


# Nothing of this version is there, neither on the row nor beside it.
_TO_MAKE = """
    FROM memory.{table} m
    WHERE m.tenant_id = %(tenant)s AND m.content IS NOT NULL AND m.embedding_version IS DISTINCT FROM %(version)s
      AND NOT EXISTS (SELECT 1 FROM memory.new_vectors n WHERE n.tenant_id = %(tenant)s AND n.type = %(type)s
                        AND n.id = m.id AND n.version = %(version)s)"""


async def to_make(
    conn: Conn, tenant: str, kind: MemoryType, version: str, after: UUID, limit: int
) -> Sequence[AnyMemory]:
    """Memories that still need a vector of this version, in the order of their ids, which is that of their making."""
    found = await conn.execute(
        sql.SQL("SELECT {columns}" + _TO_MAKE + " AND m.id > %(after)s ORDER BY m.id LIMIT %(limit)s").format(
            columns=columns_of(kind), table=sql.Identifier(TABLES[kind])
        ),
        {"tenant": tenant, "type": kind, "version": version, "after": after, "limit": limit},
    )
    return [RECORDS[kind].from_row(row) for row in await found.fetchall()]


async def count_to_make(conn: Conn, tenant: str, version: str) -> int:
    total = 0
    for kind, table in TABLES.items():
        found = await conn.execute(
            sql.SQL("SELECT count(*) AS n" + _TO_MAKE).format(table=sql.Identifier(table)),
            {"tenant": tenant, "type": kind, "version": version},
        )
        row = await found.fetchone()
        total += row["n"] if row else 0
    return total


async def put(
    conn: Conn,
    tenant: str,
    kind: MemoryType,
    ids: Sequence[UUID],
    vectors: Sequence[Vector],
    version: str,
    *,
    over: bool = False,
) -> None:
    """On the rows themselves: where there is none, or with `over` also in place of another version's."""
    await conn.execute(
        sql.SQL(
            """
            UPDATE memory.{} m SET embedding = v.embedding, embedding_version = %(version)s
            FROM unnest(%(ids)s::uuid[], %(vectors)s::halfvec[]) AS v (id, embedding)
            WHERE m.tenant_id = %(tenant)s AND m.id = v.id AND m.content IS NOT NULL
              AND (m.embedding IS NULL OR (%(over)s AND m.embedding_version <> %(version)s))
            """
        ).format(sql.Identifier(TABLES[kind])),
        {
            "ids": list(ids),
            "vectors": [HalfVector(each) for each in vectors],
            "version": version,
            "tenant": tenant,
            "over": over,
        },
    )


async def keep(
    conn: Conn, tenant: str, kind: MemoryType, ids: Sequence[UUID], vectors: Sequence[Vector], version: str
) -> None:
    """Beside the rows, for the swap; not for what was erased while the vector was made."""
    await conn.execute(
        sql.SQL(
            """
            INSERT INTO memory.new_vectors (tenant_id, type, id, version, embedding)
            SELECT %(tenant)s, %(type)s, m.id, %(version)s, v.embedding
            FROM unnest(%(ids)s::uuid[], %(vectors)s::halfvec[]) AS v (id, embedding)
            JOIN memory.{} m ON m.tenant_id = %(tenant)s AND m.id = v.id AND m.content IS NOT NULL
            ON CONFLICT (tenant_id, type, id) DO UPDATE SET version = excluded.version, embedding = excluded.embedding
            """
        ).format(sql.Identifier(TABLES[kind])),
        {
            "tenant": tenant,
            "type": kind,
            "ids": list(ids),
            "vectors": [HalfVector(each) for each in vectors],
            "version": version,
        },
    )


async def swap(conn: Conn, tenant: str, version: str, dimensions: int, now: datetime) -> None:
    """The tenant's new vectors take the place of the old ones, and all its questions go to them (L5)."""
    await conn.execute("SELECT set_config('statement_timeout', %s, true)", [SWAP_TIMEOUT])
    for kind, table in TABLES.items():
        await conn.execute(
            sql.SQL(
                """
                UPDATE memory.{} m SET embedding = n.embedding, embedding_version = n.version
                FROM memory.new_vectors n
                WHERE n.tenant_id = %(tenant)s AND n.type = %(type)s AND n.version = %(version)s
                  AND m.tenant_id = %(tenant)s AND m.id = n.id AND m.content IS NOT NULL
                """
            ).format(sql.Identifier(table)),
            {"tenant": tenant, "type": kind, "version": version},
        )
    await conn.execute("DELETE FROM memory.new_vectors WHERE tenant_id = %s", [tenant])
    await use(conn, tenant, version, dimensions, now)
