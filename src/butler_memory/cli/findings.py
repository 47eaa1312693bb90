"""What one look of the doctor found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from butler_memory.errors import ButlerMemoryError


class Status(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Finding:
    name: str
    status: Status
    message: str
    mend: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def ok(name: str, message: str) -> Finding:
    return Finding(name, Status.OK, message)


def warn(name: str, message: str, mend: str) -> Finding:
    return Finding(name, Status.WARN, message, mend)


def fail(name: str, message: str, mend: str) -> Finding:
    return Finding(name, Status.FAIL, message, mend)


def from_error(name: str, error: ButlerMemoryError) -> Finding:
    return fail(name, error.message, error.recovery)
