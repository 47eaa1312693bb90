"""A stand-in for tests: texts that share words get vectors that point the same way."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from butler_memory.embedding.ports import Vector
from butler_memory.errors import Unavailable

_WORD = re.compile(r"\w+")


@dataclass
class FakeEmbedder:
    """Hashed bag of words; `delay` plays a slow model, `available = False` a missing one."""

    delay: float = 0.0  # seconds per call
    available: bool = True
    version: str = "fake-bag-of-words@1"
    dimensions: int = 384

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        if self.delay:
            await asyncio.sleep(self.delay)
        if not self.available:
            raise Unavailable("The embedding model is not available.")
        return [self._vector(text) for text in texts]

    async def close(self) -> None:
        self.available = False

    def _vector(self, text: str) -> Vector:
        vector = np.zeros(self.dimensions, np.float32)
        # Without a word there is still a direction, since a zero vector cannot be normalised.
        for word in _WORD.findall(text.casefold()) or [""]:
            vector[self._bucket(word)] += 1.0
        return vector / np.float32(np.linalg.norm(vector))

    def _bucket(self, word: str) -> int:
        # Not hash(): that differs from process to process.
        digest = blake2b(word.encode("utf-8", "replace"), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.dimensions
