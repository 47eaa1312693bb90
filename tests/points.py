"""The points of a reading at which something may happen to it, and a way to be there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

# Each is a step of the pipeline, in its order; what happens there, happens before the step or right after it.
_STEPS = {
    "claim": ("butler_memory.consolidation.run.next_batch", "after"),  # in the transaction that reads the batch
    "mid-call": ("butler_memory.consolidation.readers.OfflineReader.read", "before"),
    "after the call": ("butler_memory.consolidation.run.prepare", "before"),
    "mid-transaction": ("butler_memory.consolidation.apply.apply", "before"),  # facts are written, episodes not yet
    "before commit": ("butler_memory.postgres.consolidation.add_run", "after"),
}
POINTS = tuple(_STEPS)
IN_NO_TRANSACTION = ("mid-call", "after the call")

Trouble = Callable[[], Awaitable[None]]


@contextmanager
def once_at(point: str, trouble: Trouble) -> Iterator[list[str]]:
    """`trouble` comes when a reading first gets to the point; yields the points where it has come."""
    step, when = _STEPS[point]
    inner = resolve_name(step)
    came: list[str] = []

    async def here() -> None:
        if not came:
            came.append(point)
            await trouble()

    async def stepped(*arguments: Any, **named: Any) -> Any:
        if when == "before":
            await here()
        done = await inner(*arguments, **named)
        if when == "after":
            await here()
        return done

    with patch(step, stepped):
        yield came
