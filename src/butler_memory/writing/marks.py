"""Marking a rule helpful or harmful: how rules earn and lose trust (R2 to R5)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from butler_memory.domain.clock import days_between, new_id
from butler_memory.domain.kinds import ApplicationOutcome, EventType, Maturity, MemoryType, RuleStatus, WriteOutcome
from butler_memory.domain.maturity import Record, after_mark, anti_pattern_text, is_promotion
from butler_memory.domain.records import Rule
from butler_memory.domain.requests import MarkRule
from butler_memory.errors import Conflict
from butler_memory.postgres import applications
from butler_memory.postgres.applications import Application
from butler_memory.postgres.changes import Author, Change, apply
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import Principal
from butler_memory.writing.desk import Desk, Written, author_of, changeable, unchanged


async def mark(desk: Desk, who: Principal, request: MarkRule, outcome: ApplicationOutcome, now: datetime) -> Written:
    author = author_of(who, request, now)

    async def work(conn: Conn) -> Written:
        rule = await changeable(conn, who, MemoryType.RULE, request.rule_id)
        assert isinstance(rule, Rule)
        if author.request_id and await applications.is_known(conn, who.tenant, rule.id, author.request_id):
            return unchanged(rule)
        _require_live(rule)
        return await mark_here(conn, desk, author, rule, outcome, request.reason)

    return await desk.database.run(who.tenant, work)


async def mark_here(
    conn: Conn, desk: Desk, author: Author, rule: Rule, outcome: ApplicationOutcome, reason: str | None
) -> Written:
    """In the caller's transaction, of a live rule that it holds."""
    await applications.add(conn, _application(author, rule, outcome, reason))
    marked = _marked(desk, rule, outcome, reason, author.now)
    changes = [marked, *await _next_level(conn, desk, rule, outcome, marked)]
    await apply(conn, author, changes)
    status = str(marked.values.get("status", rule.status))
    return Written(MemoryType.RULE, rule.id, WriteOutcome.CONFIRMED, status)


def _require_live(rule: Rule) -> None:
    if not rule.is_live:
        raise Conflict(
            f"This rule is {rule.status}; only a live one can be marked.",
            reason="not_live",
            recovery="Nothing to do: it is not served any more.",
        )


def _application(author: Author, rule: Rule, outcome: ApplicationOutcome, reason: str | None) -> Application:
    return Application(
        tenant_id=author.tenant,
        id=new_id(author.now),
        rule_id=rule.id,
        session_id=author.session,
        outcome=outcome,
        reason=reason,
        request_id=author.request_id,
        actor=author.actor,
        applied_at=author.now,
    )


def _marked(desk: Desk, rule: Rule, outcome: ApplicationOutcome, reason: str | None, now: datetime) -> Change:
    """The counters, and what follows from them; a helpful mark also confirms the rule (R5)."""
    success = rule.success_count + (outcome is ApplicationOutcome.HELPFUL)
    harmful = rule.harmful_count + (outcome is ApplicationOutcome.HARMFUL)
    values: dict[str, Any] = {
        "applied_count": rule.applied_count + 1,
        "success_count": success,
        "harmful_count": harmful,
        "effectiveness_score": Record(success, harmful, 0).effectiveness,
        "last_applied_at": now,
        "last_evaluated_at": now,
    }
    if outcome is ApplicationOutcome.HELPFUL:
        confirmed = max(now, rule.last_confirmed_at)
        values |= {"last_confirmed_at": confirmed, "status": RuleStatus.ACTIVE}
        values |= desk.fading_of(rule, rule.decay_rate, confirmed)
    if outcome is ApplicationOutcome.HARMFUL:
        values["pinned"] = False  # a level that a person set holds until somebody is harmed (R1)
    said = {"reason": reason} if reason else {}
    return Change(MemoryType.RULE, rule.id, rule.version + 1, EventType.MARKED, values, said=said)


async def _next_level(conn: Conn, desk: Desk, rule: Rule, outcome: ApplicationOutcome, marked: Change) -> list[Change]:
    """A promotion, a demotion or the turning into a warning, as an event of its own; mostly nothing."""
    record = Record(
        marked.values["success_count"],
        marked.values["harmful_count"],
        days_between(rule.created_at, marked.values["last_applied_at"]),
    )
    level = after_mark(rule.maturity, outcome, record, desk.settings.rules, pinned=rule.pinned)
    return await to_level(conn, desk, rule, level, record, marked.version + 1)


async def to_level(conn: Conn, desk: Desk, rule: Rule, level: Maturity, record: Record, version: int) -> list[Change]:
    """What takes a rule there as this version of it; nothing where it is there already."""
    if level is rule.maturity:
        return []
    if level is Maturity.ANTI_PATTERN:
        reasons = await applications.harmful_reasons(conn, rule.tenant_id, rule.id)
        return [_inverted(desk, rule, anti_pattern_text(rule.content or "", reasons, record.harmful), version)]
    event = EventType.PROMOTED if is_promotion(rule.maturity, level) else EventType.DEMOTED
    return [Change(MemoryType.RULE, rule.id, version, event, {"maturity": level})]


def _inverted(desk: Desk, rule: Rule, warning: str, version: int) -> Change:
    """A warning that does not decay. Its vector stays: who comes near the rule must come near the warning (R4)."""
    values = {
        "maturity": Maturity.ANTI_PATTERN,
        "content": warning,
        "original_content": rule.content or "",
        "fades_at": None,
        "expires_at_conf": None,
    }
    indexed = desk.vectors.reworded(warning, rule.tags)
    return Change(MemoryType.RULE, rule.id, version, EventType.INVERTED, values, indexed=indexed)
