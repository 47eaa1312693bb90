"""The text search configurations that the database knows."""

from __future__ import annotations

from butler_memory.postgres.database import Conn


async def text_configs(conn: Conn) -> list[str]:
    """Those that a statement can name without a schema."""
    found = await conn.execute(
        "SELECT cfgname::text AS name FROM pg_ts_config WHERE pg_ts_config_is_visible(oid) ORDER BY cfgname"
    )
    return [row["name"] for row in await found.fetchall()]
