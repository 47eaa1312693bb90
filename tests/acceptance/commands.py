"""Runs the command as people and scripts do: a process, its output and its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from butler_memory.postgres.server import EmbeddedServer, ensure_running_now

NOBODY = "018f0000-0000-7000-8000-000000000000"
HOSTILE = "[red]boo[/red] \x1b[31mRED\x1b]0;title\x07 \u202etxt.exe :smile: naïve 🏔"


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Cli:
    data_dir: Path

    def __call__(self, *words: str, stdin: bytes = b"", **environ: str) -> Ended:
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BUTLER_MEMORY_") and k != "COLUMNS"}
        done = subprocess.run(
            [sys.executable, "-m", "butler_memory.cli", *words],
            env={**kept, "BUTLER_MEMORY_DATA_DIR": str(self.data_dir), "LC_ALL": "C.UTF-8", **environ},
            cwd=self.data_dir.parent,
            input=stdin,
            capture_output=True,
            timeout=60,
        )
        ended = Ended(done.returncode, done.stdout.decode(), done.stderr.decode())
        assert "Traceback" not in ended.err, ended.err
        return ended

    def ok(self, *words: str, **environ: str) -> Any:
        ended = self(*words, "--json", stdin=b"", **environ)
        assert ended.code == 0, ended
        return ended.json


@contextmanager
def kept_up(data_dir: Path) -> Iterator[EmbeddedServer]:
    """A server for a whole module, so that each command only joins it."""
    running = ensure_running_now(data_dir, lambda _: None, {"fsync": "off", "synchronous_commit": "off"})
    try:
        yield running
    finally:
        running.release_now()


def assert_harmless(shown: str) -> None:
    """Nothing of HOSTILE that could steer a terminal is left as it was."""
    assert [bad for bad in ("\x1b[31m", "\x1b]", "\x07", "\u202e") if bad in shown] == []
