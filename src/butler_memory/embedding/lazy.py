"""The model, loaded when it is first needed, and missed without failing (S12)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from butler_memory.embedding.minilm import MiniLmEmbedder
from butler_memory.embedding.ports import Progress, Vector
from butler_memory.errors import SetupError, Unavailable

# After a failed load, callers are told at once for this long before it is tried again.
RETRY_AFTER_SECONDS = 60.0

log = logging.getLogger(__name__)


class LazyEmbedder:
    """Stands for the model; `warm` gets and loads it with progress shown."""

    version = MiniLmEmbedder.version
    dimensions = MiniLmEmbedder.dimensions

    def __init__(self, cache: Path, local: Path | None) -> None:
        self._cache = cache
        self._local = local
        self._loading: asyncio.Task[MiniLmEmbedder] | None = None
        self._failed_at: float | None = None

    async def warm(self, progress: Progress) -> None:
        """Raises SetupError when the model cannot be had; the engine then runs on keywords alone."""
        await self._model(progress)

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if self._failed_at is not None and time.monotonic() - self._failed_at < RETRY_AFTER_SECONDS:
            raise Unavailable("The embedding model is missing.", reason="no_model")
        try:
            model = await self._model(log.info)
        except SetupError as error:
            log.warning("no embedding model, searching by keywords only: %s", error.message)
            raise Unavailable("The embedding model is missing.", reason="no_model") from error
        return await model.embed(texts)

    async def close(self) -> None:
        loading, self._loading = self._loading, None
        if loading is None:
            return
        loading.cancel()  # gives up a fetch; does nothing to a loaded model
        await asyncio.wait([loading])
        if not loading.cancelled() and loading.exception() is None:
            await loading.result().close()

    async def _model(self, progress: Progress) -> MiniLmEmbedder:
        """One load for all callers; shielded, since a caller that gives up must not throw it away."""
        if self._loading is None:
            self._loading = asyncio.create_task(self._load(progress))
        loading = self._loading
        try:
            return await asyncio.shield(loading)
        except asyncio.CancelledError:
            if loading.cancelled():  # by close, not the caller
                raise Unavailable("The embedding model is closed.") from None
            raise

    async def _load(self, progress: Progress) -> MiniLmEmbedder:
        try:
            return await MiniLmEmbedder.open(self._cache, local=self._local, progress=progress)
        except Exception:
            self._failed_at = time.monotonic()
            self._loading = None  # the next one tries again
            raise
