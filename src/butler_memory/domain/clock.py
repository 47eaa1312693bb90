"""Time and identity: read once at the edge, then passed on as arguments (L6)."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

Clock = Callable[[], datetime]

DAY = timedelta(days=1)


def system_clock(offset: timedelta = timedelta(0)) -> Clock:
    """The machine's clock in UTC, moved by `offset` for tests and demos."""
    return lambda: datetime.now(UTC) + offset


def days_between(earlier: datetime, later: datetime) -> float:
    """Days passed, never negative: a clock that steps back makes nothing younger than new."""
    return max(0.0, (later - earlier) / DAY)


def new_id(now: datetime) -> UUID:
    """A UUIDv7: 48 bits of milliseconds, then random bits, so ids sort by time of making."""
    millis = int(now.timestamp() * 1000) & ((1 << 48) - 1)
    rand_a = secrets.randbits(12)
    rand_b = secrets.randbits(62)
    return UUID(int=(millis << 80) | (0x7 << 76) | (rand_a << 64) | (0b10 << 62) | rand_b)


def utc_text(moment: datetime) -> str:
    """RFC 3339 in UTC with `Z`, microseconds only where there are any."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
