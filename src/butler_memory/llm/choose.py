"""Settings name a backend; this makes it."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping

from butler_memory.errors import SetupError
from butler_memory.llm.claude_code import ClaudeCodeModel
from butler_memory.llm.lazy import LazyModel
from butler_memory.llm.ports import Model
from butler_memory.settings import ConsolidationSettings, Settings

# Reading episodes is frequent and wants care more than brilliance; a name without a date follows its family.
DEFAULT_MODEL = {"anthropic": "claude-haiku-5-5", "claude-code": "haiku"}


def model_of(settings: Settings, environ: Mapping[str, str] | None = None) -> Model:
    """The language model that consolidation reads with; raises SetupError where the settings name none that works."""
    environ = os.environ if environ is None else environ
    chosen = settings.memory.consolidation
    key = settings.env.llm_api_key
    match chosen.backend:
        case "anthropic":
            return _anthropic(chosen, key, environ)
        case "openai":
            return _openai(chosen, key, environ)
        case "claude-code":
            return _claude_code(chosen, key, environ)
        case "offline":
            raise SetupError("consolidation.backend 'offline' reads without a language model.")


def _anthropic(chosen: ConsolidationSettings, key: str, environ: Mapping[str, str]) -> Model:
    _need("anthropic", "pydantic_ai", "anthropic")
    model = chosen.model or DEFAULT_MODEL["anthropic"]
    key, base_url = _address(chosen, key, environ, "ANTHROPIC")
    if not key:
        raise _no_key("anthropic", "ANTHROPIC_API_KEY")

    def make() -> Model:
        from butler_memory.llm.anthropic import anthropic_model

        return anthropic_model(model, key, base_url, chosen)

    return LazyModel(f"anthropic:{model}", make)


def _openai(chosen: ConsolidationSettings, key: str, environ: Mapping[str, str]) -> Model:
    _need("openai", "pydantic_ai", "openai")
    if not chosen.model:
        raise SetupError(
            "consolidation.backend is 'openai', but consolidation.model is not set.",
            recovery="Name a model that the endpoint serves, like 'qwen3:8b' for Ollama.",
            field="consolidation.model",
        )
    key, base_url = _address(chosen, key, environ, "OPENAI")
    if not key and not base_url:
        raise _no_key("openai", "OPENAI_API_KEY")

    def make() -> Model:
        from butler_memory.llm.openai import openai_model

        return openai_model(chosen.model, key, base_url, chosen)

    return LazyModel(f"openai:{chosen.model}", make)


def _claude_code(chosen: ConsolidationSettings, key: str, environ: Mapping[str, str]) -> Model:
    if chosen.base_url and not key:
        raise SetupError(
            "consolidation.base_url is set for 'claude-code', but BUTLER_MEMORY_LLM_API_KEY is not.",
            recovery="Set it: the CLI's own login is not sent to another address.",
        )
    return ClaudeCodeModel(
        model=chosen.model or DEFAULT_MODEL["claude-code"],
        timeout_seconds=chosen.timeout_seconds,
        max_output_tokens=chosen.max_output_tokens,
        environ=environ,
        key=key,
        base_url=chosen.base_url,
    )


def _address(chosen: ConsolidationSettings, key: str, environ: Mapping[str, str], provider: str) -> tuple[str, str]:
    """The key and where it goes. A provider's own key goes where that provider's own variables say, not elsewhere."""
    if chosen.base_url:
        return key, chosen.base_url
    return key or environ.get(f"{provider}_API_KEY", ""), environ.get(f"{provider}_BASE_URL", "")


def _need(extra: str, *packages: str) -> None:
    if any(importlib.util.find_spec(package) is None for package in packages):
        raise SetupError(
            f"consolidation.backend is '{extra}', but the packages for it are not installed.",
            recovery=f"Install them: pip install 'butler-memory[{extra}]'",
        )


def _no_key(backend: str, variable: str) -> SetupError:
    return SetupError(
        f"consolidation.backend is '{backend}', but there is no key for it.",
        recovery=f"Set BUTLER_MEMORY_LLM_API_KEY, or {variable} where consolidation.base_url is not set.",
    )
