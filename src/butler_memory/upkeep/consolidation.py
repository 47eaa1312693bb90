"""The job that turns episodes into facts and rules. Its work comes with the consolidation room; so far it says so."""

from __future__ import annotations

from datetime import datetime

from butler_memory.errors import Unavailable
from butler_memory.postgres.leases import Lease
from butler_memory.upkeep.job import Done


async def consolidate(lease: Lease, now: datetime) -> Done:
    """Fails, so that nothing counts as looked at: what waits is kept, counted, and not deleted (E3)."""
    raise Unavailable("There is no consolidation yet.", reason="no_backend")
