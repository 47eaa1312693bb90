"""The model, loaded when it is first needed, and missed without failing (S12)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from pathlib import Path

from butler_memory.embedding.minilm import MiniLmEmbedder
from butler_memory.embedding.ports import Embedder, Progress, Vector
from butler_memory.errors import ButlerMemoryError, Unavailable

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
        self._loaded: Embedder | None = None
        self._lock = asyncio.Lock()
        self._failed_at: float | None = None

    async def warm(self, progress: Progress) -> None:
        """Raises SetupError when the model cannot be had; the engine then runs on keywords alone."""
        async with self._lock:
            if self._loaded is None:
                try:
                    self._loaded = await MiniLmEmbedder.open(self._cache, local=self._local, progress=progress)
                except ButlerMemoryError:
                    self._failed_at = time.monotonic()
                    raise

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if self._loaded is None:
            await self._load()
        assert self._loaded is not None
        return await self._loaded.embed(texts)

    async def close(self) -> None:
        if self._loaded is not None:
            await self._loaded.close()

    async def _load(self) -> None:
        if self._failed_at is not None and time.monotonic() - self._failed_at < RETRY_AFTER_SECONDS:
            raise Unavailable("The embedding model is missing.", reason="no_model")
        try:
            await self.warm(log.info)
        except ButlerMemoryError as error:
            log.warning("no embedding model, searching by keywords only: %s", error.message)
            raise Unavailable("The embedding model is missing.", reason="no_model") from error
