"""The reader that needs no model: what episodes state outright, as a proposal.

Deterministic, English, and precise before it is complete: what it does not understand, it leaves.
"""

from __future__ import annotations

from butler_memory.domain.extraction.grounding import own_statements
from butler_memory.domain.extraction.reader import Known, Source, extract

__all__ = ["Known", "Source", "extract", "own_statements"]
