"""Work in a thread that can be given up: asyncio's own threads are joined at exit, whatever they are waiting for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")

# Time to kill pip and to remove half a download; what hangs in a connect is left to the end of the process.
WIND_UP_SECONDS = 5.0


class Stopped(Exception):
    """The work was given up."""


async def in_stoppable_thread(work: Callable[[threading.Event], T]) -> T:
    """What `work` returns; when the caller is cancelled, the event is set and `work` should end soon."""
    stop = threading.Event()
    outcome: Future[T] = Future()
    outcome.set_running_or_notify_cancel()

    def run() -> None:
        try:
            outcome.set_result(work(stop))
        except BaseException as error:  # noqa: BLE001  it is raised again where the outcome is awaited
            outcome.set_exception(error)

    # A daemon, so that no exit waits for it.
    thread = threading.Thread(target=run, name="stoppable", daemon=True)
    thread.start()
    try:
        return await asyncio.wrap_future(outcome)
    except asyncio.CancelledError:
        stop.set()
        await asyncio.to_thread(thread.join, WIND_UP_SECONDS)
        raise
