"""Who reads a batch: patterns that need no model, or a language model with the prompt (K6)."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Protocol

from butler_memory.consolidation.batch import Batch
from butler_memory.consolidation.prompt import prompt_of
from butler_memory.domain.extraction import Known, Source, extract
from butler_memory.domain.proposal import Proposal
from butler_memory.errors import SetupError, Unavailable
from butler_memory.llm.ports import Model, Reply, Usage


class EpisodeReader(Protocol):
    """Raises what a model may (llm.ports), or Unavailable."""

    @property
    def name(self) -> str: ...

    async def read(self, batch: Batch) -> Reply: ...

    async def close(self) -> None: ...


class OfflineReader:
    """Takes what is stated outright. Free, deterministic, and judges nothing."""

    name = "offline"

    async def read(self, batch: Batch) -> Reply:
        began = time.perf_counter()
        proposal = await asyncio.to_thread(_extracted, batch)
        return Reply(proposal, Usage(seconds=time.perf_counter() - began))

    async def close(self) -> None:
        """Nothing is held."""


def _extracted(batch: Batch) -> Proposal:
    episodes = [Source(batch.handles[e.id], e.content or "", e.occurred_at) for e in batch.episodes]
    known = [Known(batch.handles[f.id], f.subject or "", f.predicate or "", f.content or "") for f in batch.facts]
    return extract(episodes, known)


@dataclass(frozen=True)
class ModelReader:
    model: Model

    @property
    def name(self) -> str:
        return self.model.name

    async def read(self, batch: Batch) -> Reply:
        return await self.model.propose(prompt_of(batch))

    async def close(self) -> None:
        await self.model.close()


@dataclass(frozen=True)
class NoReader:
    """The settings name a backend that cannot be used. The memory works without; what waits is kept (E2)."""

    name: str
    problem: SetupError

    async def read(self, batch: Batch) -> Reply:
        raise Unavailable(self.problem.message, reason="backend_setup", recovery=self.problem.recovery)

    async def close(self) -> None:
        """Nothing is held."""
