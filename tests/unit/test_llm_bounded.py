"""A child process can neither outstay its time nor flood us."""

from __future__ import annotations

import sys
from pathlib import Path

from butler_memory.llm.bounded import Ended, Excess, run_bounded


async def run(code: str, given: bytes = b"", seconds: float = 60, most: int = 1000) -> Ended | Excess:
    return await run_bounded([sys.executable, "-c", code], {}, Path("/"), given, seconds, most)


async def test_a_child_is_fed_read_and_bounded() -> None:
    echo = "import sys; sys.stdout.write(sys.stdin.read()); sys.exit(3)"
    assert await run(echo, b"tea" * 300) == Ended(3, b"tea" * 300)
    assert await run(echo, b"tea" * 400) is Excess.OUTPUT
    assert await run("while True: print('x' * 1000)") is Excess.OUTPUT
    assert await run("import time; time.sleep(600)", seconds=0.2) is Excess.TIME
    assert await run("pass", b"x" * 5_000_000) == Ended(0, b""), "it need not read what it is given"
