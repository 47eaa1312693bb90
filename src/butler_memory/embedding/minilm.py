"""all-MiniLM-L6-v2 on onnxruntime: one worker thread that serves every caller.

    embed() ─ inbox ─ worker: next_run() ─ session.run ─ vectors ─ the callers' futures

While a run is under way, new requests collect and share the next one; an idle worker starts at once. Nothing
here touches the event loop's thread but the inbox's lock, which is held for microseconds.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from butler_memory.embedding import model_store
from butler_memory.embedding.batching import Item, Request, Tokens, next_run
from butler_memory.embedding.onnx_graph import DIMENSIONS, MAX_TOKENS
from butler_memory.embedding.ports import Progress, Vector
from butler_memory.embedding.stoppable import Stopped, in_stoppable_thread
from butler_memory.errors import SetupError, Unavailable

# Longer texts are cut before tokenising, or one of 10 MB would occupy the worker for seconds. No text of
# ordinary words loses anything: 256 tokens would have to be 100 characters long each.
_MAX_CHARACTERS = 100 * MAX_TOKENS


def _silent(_step: str) -> None:
    """The default progress callback."""


class MiniLmEmbedder:
    """The Embedder of production; make it with `open`."""

    version = model_store.VERSION
    dimensions = DIMENSIONS

    def __init__(self, session: Any, tokenizer: Any) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self._inbox: list[Request] = []
        self._news = threading.Condition()
        self._closed = False
        self.runs = 0  # of the model, so far: fewer than texts when requests were coalesced
        # A daemon, so that a program that forgot close() can still end.
        self._worker = threading.Thread(target=self._work, name="embedder", daemon=True)
        self._worker.start()

    @classmethod
    async def open(
        cls, cache: Path, *, local: Path | None = None, threads: int = 1, progress: Progress = _silent
    ) -> MiniLmEmbedder:
        """Load the model, fetching and building it first where needed; raises SetupError without one.

        Cancelled, it gives up the fetch and leaves nothing behind.
        """
        return await in_stoppable_thread(lambda stop: cls._load(cache, local, threads, progress, stop))

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if not texts:
            return []
        request = Request(list(texts))
        with self._news:
            if self._closed:
                raise _closed()
            self._inbox.append(request)
            self._news.notify()
        return await asyncio.wrap_future(request.future)

    async def close(self) -> None:
        """Stop after the run under way; whoever still waits gets Unavailable."""
        with self._news:
            self._closed = True
            self._news.notify()
        await asyncio.to_thread(self._worker.join)
        self._session = self._tokenizer = None

    @classmethod
    def _load(
        cls, cache: Path, local: Path | None, threads: int, progress: Progress, stop: threading.Event
    ) -> MiniLmEmbedder:
        try:
            built = model_store.prepare(cache, local, progress, stop)
            session, tokenizer = _session(built.graph, threads), _tokenizer(built.tokenizer)
        except (SetupError, Stopped):
            raise
        # Whatever the runtime trips over, the memory goes on by keywords (S12).
        except Exception as error:
            raise SetupError(
                f"The embedding model does not load ({type(error).__name__}).",
                recovery=f"Remove {cache} and start again, so that it is made anew.",
                reason="model_broken",
            ) from error
        return cls(session, tokenizer)

    def _work(self) -> None:
        requests: deque[Request] = deque()  # the worker's own, so only the inbox needs the lock
        while self._collect(requests):
            self._serve(requests)
        for request in requests:
            request.fail(_closed())

    def _collect(self, requests: deque[Request]) -> bool:
        """Move what arrived to `requests`, waiting only when there is nothing to do; False once closed."""
        with self._news:
            self._news.wait_for(lambda: self._closed or self._inbox or requests)
            requests.extend(self._inbox)
            self._inbox.clear()
            return not self._closed

    def _serve(self, requests: deque[Request]) -> None:
        """One turn, that is at most one run of the model."""
        present = list(requests)
        try:
            run = next_run(requests, self._tokenise)
            if run:
                self._run(run)
        # Whatever went wrong, the callers must hear of it and the worker must live on.
        except Exception as error:  # noqa: BLE001
            self._fail(present, error)

    def _fail(self, requests: list[Request], error: Exception) -> None:
        for request in requests:
            # The type only: a message from below could carry a text (SPEC G7).
            request.fail(Unavailable("The embedding model failed.", reason=type(error).__name__))

    def _run(self, run: list[Item]) -> None:
        ids = np.zeros((len(run), run[0].width), np.int32)
        mask = np.zeros_like(ids)
        for row, item in enumerate(run):
            ids[row, : len(item.tokens)] = item.tokens
            mask[row, : len(item.tokens)] = 1
        (vectors,) = self._session.run(None, {"input_ids": ids, "attention_mask": mask})
        self.runs += 1
        for item, vector in zip(run, vectors, strict=True):
            # A copy, or one kept vector would keep its whole run in memory.
            item.request.put(item.position, vector.copy())

    def _tokenise(self, texts: Sequence[str]) -> list[Tokens]:
        return [self._tokenizer.encode(_encodable(text)).ids for text in texts]


def _closed() -> Unavailable:
    return Unavailable("The embedding model is closed.")


def _encodable(text: str) -> str:
    """Lone surrogates have no UTF-8 form, and the tokenizer would refuse the whole text."""
    return text[:_MAX_CHARACTERS].encode("utf-8", "replace").decode("utf-8")


def _session(graph: Path, threads: int) -> Any:
    # Here, not above: 50 ms and 30 MB that commands without a model need not pay.
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle threads must sleep: the default spins, and takes the core from PostgreSQL next door.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()  # the published file pads everything to 128
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer
