"""How far a long command is: a bar on a terminal, a line now and then elsewhere. Always on standard error."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from butler_memory.cli import screen

# Where there is no terminal, somebody reads it later: often enough to see that it goes on.
SECONDS_BETWEEN_LINES = 5.0


class Bar:
    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._console = screen.err()
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, TextColumn(unit), TimeRemainingColumn(), console=self._console, transient=True)
        self._task: TaskID | None = None
        self._name, self._done, self._total, self._said_at = "", 0, 0, 0.0

    def begin(self, name: str, total: int) -> None:
        self._name, self._done, self._total, self._said_at = screen.neutral(name), 0, total, time.monotonic()
        if self._console.is_terminal:
            if self._task is not None:
                self._bar.remove_task(self._task)
            self._task = self._bar.add_task(self._name, total=total)

    def advance(self, count: int) -> None:
        self._done += count
        self._total = max(self._total, self._done)  # more may come while it runs
        if self._task is not None:
            self._bar.update(self._task, completed=self._done, total=self._total)
        elif self._done == self._total or time.monotonic() - self._said_at >= SECONDS_BETWEEN_LINES:
            self._said_at = time.monotonic()
            screen.note(f"{self._name}: {self._done} of {self._total} {self._unit}")

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._console.is_terminal:  # elsewhere it would leave an empty line
            self._bar.stop()
