"""What the rest of the house may ask of an embedder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float32]
Progress = Callable[[str], None]


class Embedder(Protocol):
    """Turns texts into unit vectors; any number of callers may ask at once."""

    @property
    def version(self) -> str:
        """Model name and weights: vectors of two versions must never be compared (SPEC L5)."""

    @property
    def dimensions(self) -> int: ...

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        """One L2-normalised vector per text, in order; raises Unavailable when there is no model."""

    async def close(self) -> None: ...
