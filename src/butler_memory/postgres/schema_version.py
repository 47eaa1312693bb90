"""Is the schema what this code needs? Answered without importing the migration tools (0.3 s of every start)."""

from __future__ import annotations

import psycopg

from butler_memory.errors import ButlerMemoryError
from butler_memory.postgres.provision import Urls
from butler_memory.postgres.seam import explained_connect

# The last revision of the chain; a test compares it with Alembic's.
HEAD = "memory_011"


async def schema_is_current(urls: Urls) -> bool:
    """False for any doubt: then provisioning and migration look closer, and say what is wrong."""
    try:
        async with await explained_connect(urls.app) as conn:
            found = await conn.execute("SELECT version_num FROM memory.alembic_version")
            return await found.fetchall() == [(HEAD,)]
    except (ButlerMemoryError, psycopg.Error):
        return False
