"""A child process that can neither outstay its time nor flood us, and leaves no children behind."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

_CHUNK = 65_536
_BURIAL_SECONDS = 5.0


@dataclass(frozen=True)
class Ended:
    code: int
    output: bytes = field(repr=False)


class Excess(Enum):
    """Why it was killed."""

    TIME = "time"
    OUTPUT = "output"


async def run_bounded(
    command: Sequence[str], environ: dict[str, str], place: Path, given: bytes, seconds: float, most: int
) -> Ended | Excess:
    """Its exit code and standard output; whatever ends it early, cancellation too, kills its whole process group."""
    process = await asyncio.create_subprocess_exec(
        *command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environ, cwd=place, start_new_session=True
    )
    try:
        async with asyncio.timeout(seconds):
            _, output = await asyncio.gather(_feed(process, given), _read(process, most))
            code = await process.wait()
    except TimeoutError:
        return Excess.TIME
    finally:
        await asyncio.shield(_bury(process))  # a second cancellation must not leave a zombie
    return Excess.OUTPUT if output is None else Ended(code, output)


async def _feed(process: Process, given: bytes) -> None:
    assert process.stdin
    with suppress(BrokenPipeError, ConnectionResetError):  # it ended without reading; its exit code says why
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: Process, most: int) -> bytes | None:
    """All it says; None when that is too much, and then it is killed on the spot."""
    assert process.stdout
    output = bytearray()
    while chunk := await process.stdout.read(_CHUNK):
        output += chunk
        if len(output) > most:
            _kill(process)
            await _drain(process.stdout)
            return None
    return bytes(output)


async def _bury(process: Process) -> None:
    assert process.stdout
    # Not at its end: a child of its own still holds the pipe, after the process itself has gone.
    if process.returncode is None or not process.stdout.at_eof():
        _kill(process)
        # Only who left the group could outlive that, and hold the pipe; it is not waited for.
        with suppress(TimeoutError):
            async with asyncio.timeout(_BURIAL_SECONDS):
                await _drain(process.stdout)
                await process.wait()


async def _drain(stream: asyncio.StreamReader) -> None:
    """A paused pipe does not see its end, and asyncio waits for the end of every pipe before it reports an exit."""
    while await stream.read(_CHUNK):
        pass


def _kill(process: Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
