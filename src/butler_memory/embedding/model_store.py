"""A directory the embedder can run from: the graph, its data and the tokenizer, built once per machine.

Published files are checked byte for byte when fetched and when the graph is built. A built directory records
size, time and digest of its files; a later start trusts size and time, as git's index does, and reads the
90 MB only when one of them moved. So a second start is fast and a damaged file is still built anew.
"""

from __future__ import annotations

import json
import shutil
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from butler_memory.embedding import onnx_graph
from butler_memory.embedding.ports import Progress
from butler_memory.embedding.stoppable import Stopped
from butler_memory.embedding.weights import (
    MODEL_NAME,
    TOKENIZER,
    WEIGHTS,
    fetch,
    refuse_damaged_local,
    scratch_directory,
    sha256_of,
)
from butler_memory.errors import SetupError

VERSION = f"{MODEL_NAME}@{WEIGHTS.sha256[:8]}"
_RECORD = "built.json"


@dataclass(frozen=True)
class BuiltModel:
    graph: Path
    tokenizer: Path


@dataclass(frozen=True)
class _FileRecord:
    name: str
    size: int
    mtime_ns: int
    sha256: str

    @classmethod
    def of(cls, path: Path) -> _FileRecord:
        stat = path.stat()
        return cls(path.name, stat.st_size, stat.st_mtime_ns, sha256_of(path))

    def holds_for(self, path: Path) -> bool:
        stat = path.stat()
        if stat.st_size != self.size:
            return False
        return stat.st_mtime_ns == self.mtime_ns or sha256_of(path) == self.sha256


def prepare(cache: Path, local: Path | None, progress: Progress, stop: threading.Event | None = None) -> BuiltModel:
    """The built model, from the cache when it is intact there; slow only the first time.

    Raises SetupError when it cannot be had, and Stopped soon after `stop` is set.
    """
    try:
        return _prepared(cache, local, progress, stop or threading.Event())
    except OSError as error:
        raise SetupError(
            f"The embedding model cannot be kept: {error.strerror or type(error).__name__}: {error.filename or cache}.",
            recovery="Free some space there, correct its rights, or let BUTLER_MEMORY_MODEL_CACHE name another place.",
            reason="model_cache",
        ) from error


def _prepared(cache: Path, local: Path | None, progress: Progress, stop: threading.Event) -> BuiltModel:
    home = cache / f"{MODEL_NAME}-{WEIGHTS.sha256[:8]}"
    built = home / f"graph-{onnx_graph.GRAPH_REVISION}"
    if local is not None:
        refuse_damaged_local(local, thorough=False)
    if not _is_intact(built):
        published = fetch(home, local, progress, stop)
        if stop.is_set():
            raise Stopped
        _build(published, built, progress)
    return BuiltModel(graph=built / onnx_graph.GRAPH_FILE, tokenizer=built / TOKENIZER.name)


def _is_intact(built: Path) -> bool:
    try:
        records: list[dict[str, Any]] = json.loads((built / _RECORD).read_text())
        return all(_FileRecord(**record).holds_for(built / record["name"]) for record in records)
    except (OSError, ValueError, TypeError, KeyError):
        return False


def _build(published: Path, built: Path, progress: Progress) -> None:
    progress("Building the embedding graph (once per machine)")
    with scratch_directory(built.parent) as scratch:
        onnx_graph.build(published / WEIGHTS.name, scratch)
        shutil.copyfile(published / TOKENIZER.name, scratch / TOKENIZER.name)
        records = [asdict(_FileRecord.of(path)) for path in sorted(scratch.iterdir())]
        (scratch / _RECORD).write_text(json.dumps(records))
        _install(scratch, built)
    progress("The embedding model is ready")


def _install(scratch: Path, built: Path) -> None:
    try:
        scratch.rename(built)
    except OSError:
        # Something is there: another process was faster (then ours is not needed) or it is damaged.
        if not _is_intact(built):
            shutil.rmtree(built, ignore_errors=True)
            scratch.rename(built)
