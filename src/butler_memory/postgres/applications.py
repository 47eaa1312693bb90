"""Each time a rule was applied, and how it went (R5). Append-only: counters on the rule always equal these rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from uuid import UUID

from butler_memory.domain.kinds import ApplicationOutcome
from butler_memory.postgres.database import Conn


@dataclass(frozen=True)
class Application:
    tenant_id: str
    id: UUID
    rule_id: UUID
    session_id: UUID
    outcome: ApplicationOutcome
    reason: str | None
    request_id: str | None
    actor: str
    applied_at: datetime


async def add(conn: Conn, application: Application) -> None:
    await conn.execute(
        """
        INSERT INTO memory.rule_applications
            (tenant_id, id, rule_id, session_id, outcome, reason, request_id, actor, applied_at)
        VALUES (%(tenant_id)s, %(id)s, %(rule_id)s, %(session_id)s, %(outcome)s, %(reason)s, %(request_id)s, %(actor)s,
                %(applied_at)s)
        """,
        asdict(application),
    )


async def is_known(conn: Conn, tenant: str, rule_id: UUID, request_id: str) -> bool:
    """The same request marks a rule once."""
    found = await conn.execute(
        "SELECT 1 FROM memory.rule_applications WHERE tenant_id = %s AND rule_id = %s AND request_id = %s",
        [tenant, rule_id, request_id],
    )
    return await found.fetchone() is not None


async def harmful_reasons(conn: Conn, tenant: str, rule_id: UUID) -> list[str]:
    """What was said against a rule, oldest first, each once."""
    found = await conn.execute(
        """
        SELECT reason FROM memory.rule_applications
        WHERE tenant_id = %s AND rule_id = %s AND outcome = 'harmful' AND reason IS NOT NULL
        ORDER BY applied_at, id
        """,
        [tenant, rule_id],
    )
    return list(dict.fromkeys(row["reason"] for row in await found.fetchall()))
