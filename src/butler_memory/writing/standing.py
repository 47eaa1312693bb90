"""A person decides about a rule: its level, whether it is followed, whether a warning was wrong (R1, R4, R9)."""

from __future__ import annotations

from datetime import datetime
from typing import Any, assert_never

from butler_memory.domain import lifecycle
from butler_memory.domain.kinds import EventType, Maturity, MemoryType, RuleStatus, Standing, WriteOutcome
from butler_memory.domain.maturity import LADDER
from butler_memory.domain.records import Rule
from butler_memory.domain.requests import EditMemory, SetStanding
from butler_memory.errors import Conflict
from butler_memory.postgres import rules
from butler_memory.postgres.changes import Change, apply
from butler_memory.postgres.database import Conn
from butler_memory.security.principal import Principal, require_admin
from butler_memory.writing.desk import Desk, Written, author_of, changeable, unchanged, visible
from butler_memory.writing.edit import edit


async def set_standing(desk: Desk, who: Principal, request: SetStanding, now: datetime) -> Written:
    require_admin(who)
    if request.standing is Standing.UNDO:
        return await _undo(desk, who, request, now)

    async def work(conn: Conn) -> Written:
        rule = await changeable(conn, who, MemoryType.RULE, request.rule_id)
        assert isinstance(rule, Rule)
        change = await _change(conn, desk, rule, request.standing, now)
        if change is None:
            return unchanged(rule)
        await apply(conn, author_of(who, request, now), [change])
        status = change.values.get("status", rule.status)
        return Written(MemoryType.RULE, rule.id, WriteOutcome.CONFIRMED, str(status))

    return await desk.database.run(who.tenant, work)


async def _change(conn: Conn, desk: Desk, rule: Rule, standing: Standing, now: datetime) -> Change | None:
    match standing:
        case Standing.PROMOTE:
            return _at_level(rule, +1, EventType.PROMOTED)
        case Standing.DEMOTE:
            return _at_level(rule, -1, EventType.DEMOTED)
        case Standing.DISABLE:
            return _disabled(rule)
        case Standing.ENABLE:
            return await _enabled(conn, desk, rule, now)
        case Standing.UNDO:
            raise AssertionError("makes a new row")
    assert_never(standing)


def _at_level(rule: Rule, step: int, event: EventType) -> Change | None:
    """One level up or down, held there until somebody is harmed or the person decides otherwise."""
    if not rule.is_live or rule.maturity is Maturity.ANTI_PATTERN:
        what = "a warning" if rule.is_live else rule.status.value
        raise Conflict(
            f"This rule is {what} and has no level to change.",
            reason="no_level",
            recovery="Undo the warning first." if rule.is_live else "Restore or enable it first.",
        )
    place = LADDER.index(rule.maturity) + step
    if not 0 <= place < len(LADDER):
        return None
    return _changed(rule, event, {"maturity": LADDER[place], "pinned": True})


def _disabled(rule: Rule) -> Change | None:
    if rule.status is RuleStatus.DISABLED:
        return None
    if not rule.is_live:
        raise Conflict(f"This rule is {rule.status} and not followed anyway.", reason="not_live", recovery="Leave it.")
    lifecycle.check_rule_step(rule.status, RuleStatus.DISABLED)
    return _changed(rule, EventType.DISABLED, {"status": RuleStatus.DISABLED})


async def _enabled(conn: Conn, desk: Desk, rule: Rule, now: datetime) -> Change | None:
    if rule.is_live:
        return None
    if rule.status is not RuleStatus.DISABLED:
        raise Conflict(f"This rule is {rule.status}, not disabled.", reason="not_disabled", recovery="Restore it.")
    lifecycle.check_rule_step(rule.status, RuleStatus.ACTIVE)
    await rules.lock_meaning(conn, rule.tenant_id, rule.meaning)
    same = await rules.same_meaning(conn, rule.tenant_id, rule.meaning, [rule.scope])
    taken = next((other for other in same if other.is_live and other.id != rule.id), None)
    if taken:
        raise Conflict("A live rule says the same already.", reason="key_taken", live_id=str(taken.id),
                       recovery="Use that rule, or forget it first.")  # fmt: skip
    values: dict[str, Any] = {"status": RuleStatus.ACTIVE, "last_confirmed_at": now}
    return _changed(rule, EventType.ENABLED, values | desk.fading_of(rule, rule.decay_rate, now))


async def _undo(desk: Desk, who: Principal, request: SetStanding, now: datetime) -> Written:
    """The rule as it was said, as a new candidate that supersedes the warning; the marks stay with that (R9)."""
    rule = await desk.database.run(who.tenant, lambda conn: visible(conn, who, MemoryType.RULE, request.rule_id))
    assert isinstance(rule, Rule)
    if rule.maturity is not Maturity.ANTI_PATTERN or rule.original_content is None:
        raise Conflict("This rule is no warning.", reason="no_warning", recovery="There is nothing to undo.")
    back = EditMemory(
        type=MemoryType.RULE,
        id=rule.id,
        content=rule.original_content,
        request_context=request.request_context,
    )
    return await edit(desk, who, back, now)


def _changed(rule: Rule, event: EventType, values: dict[str, Any]) -> Change:
    return Change(MemoryType.RULE, rule.id, rule.version + 1, event, values)
