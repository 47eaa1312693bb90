"""A child process can neither outstay its time nor flood us."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from butler_memory.llm.bounded import Ended, Excess, run_bounded
from processes import gone


async def run(code: str, given: bytes = b"", seconds: float = 60, most: int = 1000) -> Ended | Excess:
    return await run_bounded([sys.executable, "-c", code], {}, Path("/"), given, seconds, most)


ECHO = "import sys; sys.stdout.write(sys.stdin.read()); sys.exit(3)"
FLOOD = "import sys\nwhile True: sys.stdout.write('x' * 100_000)"


async def test_a_child_is_fed_and_heard() -> None:
    assert await run(ECHO, b"tea" * 300) == Ended(3, b"tea" * 300)
    assert await run("pass", b"x" * 5_000_000) == Ended(0, b""), "it need not read what it is given"


@pytest.mark.parametrize("most", [1000, 1_000_000])
async def test_a_child_that_says_too_much_is_killed(most: int) -> None:
    assert await run(ECHO, b"tea" * most, most=most) is Excess.OUTPUT
    assert await run(FLOOD, most=most) is Excess.OUTPUT
    assert await run(FLOOD, b"x" * 5_000_000, most=most) is Excess.OUTPUT, "though it reads nothing"


async def test_a_child_out_of_time_is_killed() -> None:
    assert await run("import time; time.sleep(600)", seconds=0.2) is Excess.TIME
    assert await run(FLOOD, seconds=0.5, most=10**12) is Excess.TIME


async def test_what_a_child_leaves_running_does_not_outlive_its_time(tmp_path: Path) -> None:
    """It holds the pipe, so it is waited for, and then killed, though its parent has long gone."""
    left = tmp_path / "pid"
    code = f"import subprocess; open('{left}', 'w').write(str(subprocess.Popen(['/bin/sleep', '600']).pid))"
    assert await run(code, seconds=2) is Excess.TIME
    assert await gone(int(left.read_text()))
