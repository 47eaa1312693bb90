"""Takes times: one caller or many, one side or several in turn, and where inside a call the time went."""

from __future__ import annotations

import asyncio
import math
import os
import platform
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Job = Callable[[], Awaitable[None]]
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Figures:
    """Milliseconds, and how many calls there were."""

    p50: float
    p95: float
    p99: float
    calls: int
    per_second: float

    @classmethod
    def of(cls, seconds: Sequence[float], elapsed: float | None = None) -> Figures:
        p50, p95, p99 = (round(percentile(seconds, share) * 1e3, 2) for share in (0.5, 0.95, 0.99))
        return cls(p50, p95, p99, len(seconds), round(len(seconds) / (elapsed or sum(seconds)), 1))


def percentile(values: Iterable[float], share: float) -> float:
    """By nearest rank: a value that was measured, never one in between."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def seconds_of(job: Job) -> float:
    began = time.perf_counter()
    await job()
    return time.perf_counter() - began


async def in_turn(sides: Mapping[str, Sequence[Job]], advance: Advance) -> dict[str, list[float]]:
    """One call of each side, again and again, so that a noisy moment hits them all; who begins rotates."""
    names = list(sides)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for number, jobs in enumerate(zip(*sides.values(), strict=True)):
        by_name = dict(zip(names, jobs, strict=True))
        first = number % len(names)
        for name in names[first:] + names[:first]:
            taken[name].append(await seconds_of(by_name[name]))
            advance(1)
    return taken


async def at_once(jobs: Sequence[Sequence[Job]], advance: Advance) -> Figures:
    """As many callers as there are lists of jobs, each with one call under way at any time."""
    taken: list[float] = []

    async def caller(own: Sequence[Job]) -> None:
        for job in own:
            taken.append(await seconds_of(job))
            advance(1)

    began = time.perf_counter()
    await asyncio.gather(*(caller(own) for own in jobs))
    return Figures.of(taken, time.perf_counter() - began)


@dataclass
class Stopwatch:
    """Time by part, of one call at a time."""

    parts: dict[str, float] = field(default_factory=dict)

    @asynccontextmanager
    async def lap(self, part: str) -> AsyncIterator[None]:
        began = time.perf_counter()
        yield
        self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - began

    def read(self) -> dict[str, float]:
        parts, self.parts = self.parts, {}
        return parts


class Timed:
    """Stands for another object, and takes the time of one of its methods."""

    def __init__(self, inner: Any, method: str, part: str, watch: Stopwatch) -> None:
        self._inner, self._method, self._part, self._watch = inner, method, part, watch

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        async def timed(*arguments: Any, **named: Any) -> Any:
            async with self._watch.lap(self._part):
                return await found(*arguments, **named)

        return timed


def memory_mb(pid: int) -> dict[str, float]:
    """Resident memory now and at its highest; nothing where there is no /proc."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        return {}
    lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    kilobytes = {"now": lines["VmRSS"], "highest": lines["VmHWM"]}
    return {name: round(int(text.split()[0]) / 1024, 1) for name, text in kilobytes.items()}


def machine() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    named = [line for line in cpuinfo.read_text().splitlines() if "model name" in line] if cpuinfo.exists() else []
    return {
        "cpu": named[0].split(":", 1)[1].strip() if named else platform.machine(),
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
    }
