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
            if output is None:
                return Excess.OUTPUT
            return Ended(await process.wait(), output)
    except TimeoutError:
        return Excess.TIME
    finally:
        await _end(process)


async def _feed(process: Process, given: bytes) -> None:
    assert process.stdin
    with suppress(BrokenPipeError, ConnectionResetError):  # it ended without reading; its exit code says why
        process.stdin.write(given)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: Process, most: int) -> bytes | None:
    assert process.stdout
    output = bytearray()
    while chunk := await process.stdout.read(_CHUNK):
        output += chunk
        if len(output) > most:
            return None
    return bytes(output)


async def _end(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        # Not to be interrupted: who cancels us must not leave a zombie.
        await asyncio.shield(process.wait())
