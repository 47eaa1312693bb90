"""The embedding model, seen from a command that lives for a second.

A command uses a model that is at hand and never fetches one: 90 MB for one sentence would be a surprise.
What is stored without a vector gets it from the next `up`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from butler_memory.embedding.lazy import LazyEmbedder
from butler_memory.embedding.ports import Embedder, Vector
from butler_memory.embedding.weights import FILES, MODEL_NAME, WEIGHTS
from butler_memory.errors import ButlerMemoryError, Unavailable
from butler_memory.settings import Settings


class NoModel:
    """Stands in where no text is embedded, or where there is no model."""

    version = LazyEmbedder.version
    dimensions = LazyEmbedder.dimensions

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        raise Unavailable("The embedding model is missing.", reason="no_model")

    async def close(self) -> None:
        """There is nothing to close."""


def home(settings: Settings) -> Path:
    """Where the published files are: the operator's own directory, or the cache."""
    return settings.env.model_path or settings.env.model_cache / f"{MODEL_NAME}-{WEIGHTS.sha256[:8]}"


def is_at_hand(settings: Settings) -> bool:
    return all(file.seems_at(home(settings) / file.name) for file in FILES)


def is_verified(settings: Settings) -> bool:
    """Reads all 90 MB."""
    return all(file.is_at(home(settings) / file.name) for file in FILES)


async def warm(embedder: Embedder, progress: Callable[[str], None]) -> None:
    """Loaded before the write, so that the vector is in it; a model that does not load is done without."""
    if isinstance(embedder, LazyEmbedder):
        with suppress(ButlerMemoryError):
            await embedder.warm(progress)
