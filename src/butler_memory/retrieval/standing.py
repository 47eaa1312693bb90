"""How a memory stands, and its jobs: the shape of `memory_stats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from butler_memory.domain.clock import days_between
from butler_memory.domain.kinds import JobName, Tier
from butler_memory.domain.schedule import Timetable
from butler_memory.postgres.leases import Shard

Json = dict[str, Any]


def stats_shape(found: Mapping[str, Any], shards: Sequence[Shard], timetable: Timetable, now: datetime) -> Json:
    cannot_run = _unread(shards, timetable, now)
    oldest = found["oldest_pending"]
    tiers = Counter(found["facts_by_tier"]) + Counter(found["rules_by_tier"])
    tiers[Tier.EDEN.value] = found["episodes_by_state"].get("active", 0)
    return {
        "episodes": {
            "by_state": found["episodes_by_state"],
            "by_consolidation_status": found["episodes_by_consolidation"],
        },
        "facts": {
            "by_state": found["facts_by_state"],
            "by_permanence": found["facts_by_permanence"],
            "by_confidence": found["facts_by_confidence"],
            "unconfirmed": found["unconfirmed"],
        },
        "rules": {
            "by_state": found["rules_by_state"],
            "by_maturity": found["rules_by_maturity"],
            "by_confidence": found["rules_by_confidence"],
        },
        "tiers": {tier.value: tiers[tier.value] for tier in Tier},
        "effectiveness": found["effectiveness"],
        "backlog": {
            "pending": found["episodes_by_consolidation"].get("pending", 0),
            "oldest_age_hours": round(days_between(oldest, now) * 24, 3) if oldest else None,
            # By butler: those whose last reading failed, or that nothing has read for twice its period.
            "consolidation_could_not_run": {
                butler: count for butler, count in found["pending_by_butler"].items() if butler in cannot_run
            },
            # Their time is over, and they are kept because nothing has been able to read them (E3).
            "kept_past_their_time": found["overdue"],
        },
        "without_vector": found["without_vector"],
    }


def _unread(shards: Sequence[Shard], timetable: Timetable, now: datetime) -> set[str]:
    return {
        shard.butler
        for shard in shards
        if shard.job is JobName.CONSOLIDATE and (shard.attempts or timetable.is_late(shard.job, shard.since, now))
    }


def jobs_shape(
    shards: Sequence[Shard], last: Mapping[JobName, Mapping[str, Any]], timetable: Timetable, now: datetime
) -> Json:
    """Each job of the engine, whether it has run yet or not."""
    return {
        job.value: _job_shape([s for s in shards if s.job is job], last.get(job), timetable, job, now)
        for job in JobName
    }


def _job_shape(
    shards: Sequence[Shard], last: Mapping[str, Any] | None, timetable: Timetable, job: JobName, now: datetime
) -> Json:
    planned = [shard.next_run_at for shard in shards if shard.next_run_at]
    finished = [shard.last_ok_at for shard in shards if shard.last_ok_at]
    return {
        "late": any(timetable.is_late(job, shard.since, now) for shard in shards),
        "running": any(shard.running for shard in shards),
        "next_run_at": min(planned, default=timetable.next_fire(job, now)),
        "last_ok_at": min(finished) if finished and len(finished) == len(shards) else None,
        "last_run": dict(last) if last else None,
    }
