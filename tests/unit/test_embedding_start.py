"""Getting the model: it may fail or be given up, and neither hangs, dies or stays (S12)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from butler_memory.embedding import lazy, minilm, model_store
from butler_memory.embedding.lazy import LazyEmbedder
from butler_memory.embedding.model_store import BuiltModel, prepare
from butler_memory.embedding.stoppable import Stopped, in_stoppable_thread
from butler_memory.embedding.weights import run_stoppable
from butler_memory.errors import SetupError, Unavailable

# A pip that has a child of its own, as one that builds does; says both pids, and would sleep for long.
FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{os.getpid()} {child.pid}")
time.sleep(600)
"""


def silent(_: str) -> None:
    pass


def test_s12_a_fetch_that_is_given_up_kills_its_process_and_that_ones_children(tmp_path: Path) -> None:
    note, stop = tmp_path / "pids", threading.Event()

    def give_up() -> None:
        while not (note.exists() and note.read_text()):
            time.sleep(0.02)
        stop.set()

    threading.Thread(target=give_up).start()
    with pytest.raises(Stopped):
        run_stoppable([sys.executable, "-c", FAMILY, str(note)], dict(os.environ), 60, stop)
    deadline = time.monotonic() + 5
    while any(running(int(pid)) for pid in note.read_text().split()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_s12_a_fetch_has_a_time_limit() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_stoppable([sys.executable, "-c", "import time; time.sleep(60)"], dict(os.environ), 0.2, threading.Event())


def test_what_the_process_says_is_kept() -> None:
    words = "import sys; sys.stderr.write('ERROR: no'); sys.exit(3)"
    done = run_stoppable([sys.executable, "-c", words], dict(os.environ), 30, threading.Event())
    assert (done.returncode, done.stderr) == (3, "ERROR: no")


async def test_s12_a_cancelled_caller_stops_the_thread_and_one_that_does_not_listen_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("butler_memory.embedding.stoppable.WIND_UP_SECONDS", 0.1)
    stopped, deaf = threading.Event(), threading.Event()
    listening = asyncio.create_task(in_stoppable_thread(lambda stop: stop.wait(30) and stopped.set()))
    deafened = asyncio.create_task(in_stoppable_thread(lambda _: deaf.wait(30)))
    await asyncio.sleep(0.05)
    began = time.monotonic()
    for task in (listening, deafened):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert stopped.is_set()
    assert time.monotonic() - began < 5
    deaf.set()


async def test_s12_closing_gives_up_a_load_under_way_and_answers_who_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()

    def endless(*_: object) -> BuiltModel:
        stop = _[-1]
        assert isinstance(stop, threading.Event)
        began.set()
        stop.wait(30)
        raise Stopped

    monkeypatch.setattr(minilm.model_store, "prepare", endless)
    embedder = LazyEmbedder(tmp_path, None)
    waiting = asyncio.create_task(embedder.embed(["a"]))
    await asyncio.to_thread(began.wait, 5)
    async with asyncio.timeout(5):
        await embedder.close()
        with pytest.raises(Unavailable):
            await waiting


@pytest.mark.parametrize(
    "error", [PermissionError(13, "Permission denied", "/x"), RuntimeError("secret"), SetupError("no")], ids=repr
)
async def test_s12_any_failure_to_load_is_a_missing_model_and_the_next_try_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Model:
        async def embed(self, texts: list[str]) -> list[np.ndarray]:
            return [np.zeros(3)] * len(texts)

        async def close(self) -> None:
            pass

    broken = True

    def load(*_: object) -> Model:
        if broken:
            raise error
        return Model()

    with monkeypatch.context() as patched:
        patched.setattr(model_store, "_prepared", load)
        embedder = LazyEmbedder(tmp_path, None)
        with pytest.raises(SetupError) as caught:
            await embedder.warm(silent)
        assert "secret" not in str(caught.value.as_dict())
        with pytest.raises(Unavailable, check=lambda refused: refused.reason == "no_model"):
            await embedder.embed(["a"])  # told at once, without a second load
        broken = False
        patched.setattr(minilm.MiniLmEmbedder, "_load", load)
        patched.setattr(lazy, "RETRY_AFTER_SECONDS", 0.0)
        assert len(await embedder.embed(["a"])) == 1
        await embedder.close()


def test_s12_a_cache_that_cannot_be_made_is_a_setup_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SetupError, match="cannot be kept") as caught:
        prepare(file / "models", None, silent)
    assert "BUTLER_MEMORY_MODEL_CACHE" in caught.value.recovery
