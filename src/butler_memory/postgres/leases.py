"""Who may do a shard's work, and until when: leases with a fencing token (DESIGN 5, J1).

A shard is one job of one tenant, or of one butler of it. Claiming raises its token; each transaction that does the
shard's work first locks the row and looks whether the token is still its own, so that a process that stood still
past its lease writes nothing when it wakes. Lease times are the database's clock, schedules the engine's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from psycopg.types.json import Jsonb

from butler_memory.domain.clock import new_id
from butler_memory.domain.kinds import JobName, RunOutcome
from butler_memory.domain.schedule import retry_after
from butler_memory.postgres.database import Conn, Database

T = TypeVar("T")


class LeaseLost(Exception):
    """Another process has the shard by now; nothing of this transaction is written."""


@dataclass(frozen=True)
class Lease:
    tenant: str
    butler: str  # '' where the job is the whole tenant's
    job: JobName
    token: int
    attempts: int
    memo: Mapping[str, Any]  # what the job left for its next run
    seconds: float
    named: bool = False  # somebody asked for this run, whatever its time


@dataclass(frozen=True)
class Run:
    """How one run ended. `caught_up`: nothing that was there when it started is left to do."""

    outcome: RunOutcome
    started_at: datetime
    finished_at: datetime
    counts: Mapping[str, int]
    reason: str = ""
    caught_up: bool = False
    memo: Mapping[str, Any] | None = None
    again_at: datetime | None = None  # when there will be something to do, where the job knows


async def fenced(database: Database, lease: Lease, work: Callable[[Conn], Awaitable[T]]) -> T:
    """`work` in one transaction of the shard's tenant, if the lease still holds; then nobody can take it meanwhile."""

    async def guarded(conn: Conn) -> T:
        await require(conn, lease)
        return await work(conn)

    return await database.run(lease.tenant, guarded)


async def require(conn: Conn, lease: Lease) -> None:
    """Who stands still for longer than its lease in the middle of a transaction is cut off by the server."""
    found = await conn.execute(
        """
        SELECT set_config('idle_in_transaction_session_timeout', %s, true) FROM memory.shards
        WHERE tenant_id = %s AND butler = %s AND kind = %s AND lease_token = %s AND lease_until > clock_timestamp()
        FOR NO KEY UPDATE
        """,
        [_milliseconds(lease.seconds), lease.tenant, lease.butler, lease.job, lease.token],
    )
    if await found.fetchone() is None:
        raise LeaseLost


def _milliseconds(seconds: float) -> str:
    return str(int(seconds * 1000))


async def prepare(conn: Conn, job: JobName, now: datetime, last: datetime, fire: datetime) -> None:
    """Each tenant has the job's shard; none waits for longer than until the job's next time, which is `fire`.

    It would, where the cron expression was changed, or the clock was ahead for a while. A tenant that was there at
    the job's last time has missed that.
    """
    if job.of_tenants:
        await conn.execute(
            """
            INSERT INTO memory.shards (tenant_id, butler, kind, created_at, next_run_at, attempts, lease_token, memo)
            SELECT t.tenant_id, '', %(job)s, t.created_at,
                   CASE WHEN t.created_at <= %(last)s THEN %(now)s ELSE %(fire)s END, 0, 0, '{}' FROM memory.tenants t
            WHERE NOT EXISTS (SELECT 1 FROM memory.shards s
                              WHERE (s.tenant_id, s.butler, s.kind) = (t.tenant_id, '', %(job)s))
            ON CONFLICT DO NOTHING
            """,
            {"job": job, "now": now, "last": last, "fire": fire},
        )
    await conn.execute(
        """
        UPDATE memory.shards
        SET next_run_at = least(next_run_at, %(fire)s), created_at = least(created_at, %(now)s),
            last_ok_at = CASE WHEN last_ok_at > %(now)s THEN %(now)s ELSE last_ok_at END  -- never is not now
        WHERE kind = %(job)s AND (next_run_at > %(fire)s OR last_ok_at > %(now)s OR created_at > %(now)s)
        """,
        {"job": job, "now": now, "fire": fire},
    )


# A process that stands still between such a statement and its commit holds the shard's row: no longer than its lease.
_CUT_OFF = "set_config('idle_in_transaction_session_timeout', %(milliseconds)s, true)"
_FREE = "(lease_until IS NULL AND next_run_at <= %(now)s OR lease_until < clock_timestamp())"
_NAMED = "(lease_until IS NULL OR lease_until < clock_timestamp()) AND tenant_id = %(tenant)s AND butler = %(butler)s"


async def claim_due(conn: Conn, job: JobName, now: datetime, fire: datetime, seconds: float) -> Lease | None:
    """The shard that has waited longest, under a lease; also one whose last holder died."""
    return await _claim(conn, _FREE, {"job": job, "now": now, "fire": fire, "seconds": seconds})


async def claim_named(
    conn: Conn, job: JobName, tenant: str, butler: str, now: datetime, fire: datetime, seconds: float
) -> Lease | None:
    """One shard whatever its time; None while another process has it."""
    named = {"tenant": tenant, "butler": butler}
    return await _claim(conn, _NAMED, {"job": job, "now": now, "fire": fire, "seconds": seconds, **named})


async def _claim(conn: Conn, which: str, parameters: Mapping[str, Any]) -> Lease | None:
    """The next time is set here and not at the end, so that a wish that comes while the job runs is not lost."""
    found = await conn.execute(
        f"""
        WITH due AS (
            SELECT tenant_id, butler, kind, leased_at FROM memory.shards WHERE kind = %(job)s AND {which}
            ORDER BY next_run_at, tenant_id, butler LIMIT 1 FOR UPDATE SKIP LOCKED
        )
        UPDATE memory.shards s
        SET lease_token = s.lease_token + 1, lease_until = clock_timestamp() + make_interval(secs => %(seconds)s),
            leased_at = %(now)s, next_run_at = %(fire)s,
            attempts = s.attempts + CASE WHEN due.leased_at IS NULL THEN 0 ELSE 1 END
        FROM due WHERE (s.tenant_id, s.butler, s.kind) = (due.tenant_id, due.butler, due.kind)
        RETURNING s.tenant_id, s.butler, s.lease_token, s.attempts, s.memo, due.leased_at AS lost_at, {_CUT_OFF}
        """,
        {**parameters, "milliseconds": _milliseconds(parameters["seconds"])},
    )
    row = await found.fetchone()
    if row is None:
        return None
    lease = Lease(
        row["tenant_id"],
        row["butler"],
        parameters["job"],
        row["lease_token"],
        row["attempts"],
        row["memo"],
        parameters["seconds"],
        named="butler" in parameters,
    )
    if row["lost_at"]:  # whoever had it never came back to say so
        now = parameters["now"]
        await _keep(conn, lease, Run(RunOutcome.LOST, min(row["lost_at"], now), now, {}))
    return lease


async def renew(conn: Conn, lease: Lease, seconds: float) -> bool:
    """False where the lease is over: another may have the shard."""
    done = await conn.execute(
        f"""
        UPDATE memory.shards SET lease_until = clock_timestamp() + make_interval(secs => %(seconds)s)
        WHERE tenant_id = %(tenant)s AND butler = %(butler)s AND kind = %(job)s AND lease_token = %(token)s
          AND lease_until > clock_timestamp()
        RETURNING {_CUT_OFF}
        """,
        {
            "seconds": seconds,
            "milliseconds": _milliseconds(seconds),
            "tenant": lease.tenant,
            "butler": lease.butler,
            "job": lease.job,
            "token": lease.token,
        },
    )
    return done.rowcount == 1


async def finish(conn: Conn, lease: Lease, run: Run) -> bool:
    """Gives the shard back and keeps the run; False, and nothing written, where it was another's already."""
    failed = run.outcome is RunOutcome.FAILED
    attempts = lease.attempts + 1 if failed else 0
    # At once where there is more to do, or somebody stopped this process; the time set by the claim otherwise.
    again = run.outcome is RunOutcome.STOPPED or (run.outcome is RunOutcome.OK and not run.caught_up)
    sooner = run.again_at or (run.finished_at if again else None)
    if failed:
        sooner = max(run.finished_at + retry_after(attempts), sooner or run.finished_at)
    done = await conn.execute(
        f"""
        UPDATE memory.shards
        SET lease_until = NULL, leased_at = NULL, attempts = %(attempts)s, memo = coalesce(%(memo)s, memo),
            next_run_at = CASE WHEN %(failed)s THEN %(sooner)s ELSE least(next_run_at, %(sooner)s) END,
            last_ok_at = CASE WHEN %(caught_up)s THEN %(started)s ELSE last_ok_at END
        WHERE tenant_id = %(tenant)s AND butler = %(butler)s AND kind = %(job)s AND lease_token = %(token)s
          AND lease_until IS NOT NULL
        RETURNING {_CUT_OFF}
        """,
        {
            "milliseconds": _milliseconds(lease.seconds),
            "attempts": attempts,
            "memo": None if run.memo is None else Jsonb(dict(run.memo)),
            "failed": failed,
            "sooner": sooner,
            "caught_up": run.outcome is RunOutcome.OK and run.caught_up,
            "started": run.started_at,
            "tenant": lease.tenant,
            "butler": lease.butler,
            "job": lease.job,
            "token": lease.token,
        },
    )
    if done.rowcount == 1:
        await _keep(conn, lease, run)
    return done.rowcount == 1


async def _keep(conn: Conn, lease: Lease, run: Run) -> None:
    await conn.execute(
        """
        INSERT INTO memory.job_runs
            (tenant_id, id, job, butler, started_at, finished_at, outcome, reason, counts)
        VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
        """,
        [lease.tenant, new_id(run.finished_at), lease.job, lease.butler, run.started_at, run.finished_at, run.outcome,
         run.reason or None, Jsonb(dict(run.counts))],
    )  # fmt: skip


@dataclass(frozen=True)
class Shard:
    """What is known of a job's place in one tenant, for people and the watchman."""

    tenant: str
    butler: str
    job: JobName
    created_at: datetime
    next_run_at: datetime | None  # None where no process has ever run the tenant's jobs
    last_ok_at: datetime | None
    attempts: int
    running: bool

    @property
    def since(self) -> datetime:
        """From when on it should have run."""
        return self.last_ok_at or self.created_at


_OF_TENANTS = [name.value for name in JobName if name.of_tenants]
_SHARDS = """
    SELECT tenant_id AS tenant, butler, kind AS job, created_at, next_run_at, last_ok_at, attempts,
           coalesce(lease_until > clock_timestamp(), false) AS running
    FROM memory.shards
    UNION ALL
    SELECT t.tenant_id, '', j.job, t.created_at, NULL, NULL, 0, false
    FROM memory.tenants t CROSS JOIN unnest(%(of_tenants)s::text[]) AS j (job)
    WHERE NOT EXISTS (SELECT 1 FROM memory.shards s
                      WHERE (s.tenant_id, s.butler, s.kind) = (t.tenant_id, '', j.job))"""


async def shards(conn: Conn, tenant: str | None = None, job: JobName | None = None) -> list[Shard]:
    """As the worker, of all tenants; as the application, of its own.

    Also those that nobody has made: a job that no process ever ran is as late as one that stopped running.
    """
    found = await conn.execute(
        f"""
        SELECT * FROM ({_SHARDS}) AS s
        WHERE (%(tenant)s::text IS NULL OR tenant = %(tenant)s) AND (%(job)s::text IS NULL OR job = %(job)s)
        ORDER BY job, tenant, butler
        """,
        {"tenant": tenant, "job": job, "of_tenants": _OF_TENANTS},
    )
    return [_shard(row) for row in await found.fetchall()]


async def late(conn: Conn, bounds: Mapping[JobName, datetime]) -> list[Shard]:
    """Of these jobs, the shards that have not run well since the bound: of very many, mostly none."""
    found = await conn.execute(
        f"""
        SELECT s.* FROM ({_SHARDS}) AS s
        JOIN unnest(%(jobs)s::text[], %(bounds)s::timestamptz[]) AS b (job, bound) USING (job)
        WHERE coalesce(s.last_ok_at, s.created_at) < b.bound ORDER BY s.job, s.tenant, s.butler
        """,
        {"jobs": [name.value for name in bounds], "bounds": list(bounds.values()), "of_tenants": _OF_TENANTS},
    )
    return [_shard(row) for row in await found.fetchall()]


def _shard(row: Mapping[str, Any]) -> Shard:
    return Shard(**{**row, "job": JobName(row["job"])})


async def runs(conn: Conn, tenant: str | None, job: JobName | None, limit: int) -> Sequence[dict[str, Any]]:
    """The newest runs of jobs, newest first."""
    found = await conn.execute(
        """
        SELECT tenant_id AS tenant, job, butler, started_at, finished_at, outcome, reason, counts FROM memory.job_runs
        WHERE (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s) AND (%(job)s::text IS NULL OR job = %(job)s)
        ORDER BY finished_at DESC, id DESC LIMIT %(limit)s
        """,
        {"tenant": tenant, "job": job, "limit": limit},
    )
    return await found.fetchall()


async def wish(conn: Conn, tenant: str, butler: str, job: JobName, now: datetime, at: datetime) -> None:
    """Run this shard at `at` or sooner; one that failed keeps its own time, until it is tried again.

    Its row is locked until the caller commits, so that what two callers add is committed in order. No run that has
    ended has read what is added now, even where the clock of whoever ran it is ahead of this one.
    """
    await conn.execute(
        """
        INSERT INTO memory.shards (tenant_id, butler, kind, created_at, next_run_at, attempts, lease_token, memo)
        VALUES (%(tenant)s, %(butler)s, %(job)s, %(now)s, %(at)s, 0, 0, '{}')
        ON CONFLICT (tenant_id, butler, kind) DO UPDATE
        SET next_run_at = CASE WHEN shards.attempts > 0 AND shards.leased_at IS NULL THEN shards.next_run_at
                               ELSE least(shards.next_run_at, excluded.next_run_at) END,
            last_ok_at = CASE WHEN shards.last_ok_at >= excluded.created_at
                              THEN excluded.created_at - interval '1 microsecond' ELSE shards.last_ok_at END
        """,
        {"tenant": tenant, "butler": butler, "job": job, "now": now, "at": at},
    )


async def hurry(conn: Conn, job: JobName, tenants: Sequence[str], now: datetime) -> None:
    """The same for whole tenants, as the worker: their job is due now. Waits for nobody who is at it already."""
    await conn.execute(
        """
        WITH waiting AS (
            SELECT tenant_id, butler, kind FROM memory.shards
            WHERE kind = %(job)s AND butler = '' AND tenant_id = ANY(%(tenants)s) AND attempts = 0
              AND next_run_at > %(now)s
            FOR UPDATE SKIP LOCKED
        ),
        hurried AS (
            UPDATE memory.shards s SET next_run_at = %(now)s FROM waiting w
            WHERE (s.tenant_id, s.butler, s.kind) = (w.tenant_id, w.butler, w.kind)
        )
        INSERT INTO memory.shards (tenant_id, butler, kind, created_at, next_run_at, attempts, lease_token, memo)
        SELECT tenant, '', %(job)s, %(now)s, %(now)s, 0, 0, '{}' FROM unnest(%(tenants)s::text[]) AS t (tenant)
        ON CONFLICT DO NOTHING
        """,
        {"job": job, "now": now, "tenants": list(tenants)},
    )


async def again_at(conn: Conn, lease: Lease, at: datetime) -> None:
    """Who holds the shard wants it to run again at `at` or sooner."""
    await conn.execute(
        "UPDATE memory.shards SET next_run_at = least(next_run_at, %s)"
        " WHERE tenant_id = %s AND butler = %s AND kind = %s",
        [at, lease.tenant, lease.butler, lease.job],
    )
