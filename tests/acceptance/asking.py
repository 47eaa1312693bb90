"""Asks a language model as the settings name it, with nothing else of this process's environment."""

from __future__ import annotations

from typing import Any

import pytest

from butler_memory.domain.proposal import Proposal
from butler_memory.llm import BackendDown, BadOutput, Model, Prompt, model_of
from butler_memory.settings import load
from wire import Status

SECRET = "violet-heron-4711"  # in the prompt, and in what a provider says of it
PROMPT = Prompt(instructions="Read the episodes.", text=f"E1: the user likes tea, and says {SECRET}")
SAID: dict[str, Any] = {
    "new_facts": [{"evidence": ["E1"], "subject": "user", "predicate": "likes", "content": "tea", "importance": 7}],
    "new_rules": [{"evidence": ["E1"], "content": "Offer tea first", "scope": "butler"}],
    "confirmations": [{"evidence": ["E1"], "memory": "F3"}],
}
PROPOSED = Proposal.model_validate(SAID)
MODELS = {"anthropic": "claude-haiku-5-5", "openai": "qwen3:8b", "claude-code": "haiku"}


def model(
    backend: str, url: str = "", environ: dict[str, str] | None = None, key: str = "sk-wire", **more: object
) -> Model:
    """As the settings say, with nothing else of this process's environment."""
    path = "/v1" if backend == "openai" else ""
    chosen = {"backend": backend, "base_url": url and url + path, "model": MODELS[backend], **more}
    given = {f"BUTLER_MEMORY_CONSOLIDATION__{name.upper()}": f"{value}" for name, value in chosen.items() if value}
    return model_of(load(environ={**given, "BUTLER_MEMORY_LLM_API_KEY": key}), environ or {})


async def failure(reader: Model) -> BackendDown | BadOutput:
    """Its failure, which shows nothing of the prompt, nor of what was said about it."""
    with pytest.raises((BackendDown, BadOutput)) as caught:
        await reader.propose(PROMPT)
    await reader.close()
    error = caught.value
    assert SECRET not in repr(error) + str(error) + str(vars(error))
    assert (error.__cause__, error.__context__) == (None, None)
    return error


def quoted(code: int, kind: str, said: str = "", headers: dict[str, str] | None = None) -> Status:
    """An error as providers word it, with a piece of the prompt in it."""
    return Status(code, headers or {}, {"type": "error", "error": {"type": kind, "message": f"{said} {SECRET}"}})
