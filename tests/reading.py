"""Readers of episodes for tests: one that is away, one that says what it is told to."""

from __future__ import annotations

from typing import Any

from butler_memory.consolidation.batch import Batch
from butler_memory.consolidation.readers import ModelReader
from butler_memory.llm.ports import BackendDown, Down, Reply
from butler_memory.llm.scripted import ScriptedModel


class Away:
    """A backend that cannot be reached."""

    name = "away"

    async def read(self, batch: Batch) -> Reply:
        raise BackendDown(Down.NO_NETWORK)

    async def close(self) -> None:
        """Nothing is held."""


def scripted(*lines: Any) -> tuple[ModelReader, ScriptedModel]:
    model = ScriptedModel(lines)
    return ModelReader(model), model


def fact(content: str, predicate: str, *evidence: str, **more: Any) -> dict[str, Any]:
    return {
        "subject": "user",
        "predicate": predicate,
        "content": content,
        "evidence": list(evidence or ("E1",)),
        "source_kind": "user_stated",
        **more,
    }
