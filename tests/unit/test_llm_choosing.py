"""Which model the settings name, and the one that is shipped to stand in for it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from butler_memory.domain.proposal import Proposal
from butler_memory.errors import SetupError
from butler_memory.llm import BackendDown, Bad, BadOutput, Down, Prompt, ScriptedModel, Usage, model_of
from butler_memory.llm.lazy import LazyModel
from butler_memory.settings import load

TEA: dict[str, Any] = {"evidence": ["E1"], "subject": "user", "predicate": "likes", "content": "tea"}
SAID: dict[str, Any] = {"new_facts": [TEA]}
JSON = json.dumps(SAID)
PROPOSED = Proposal.model_validate(SAID)


async def test_the_scripted_model_says_its_lines_and_keeps_its_prompts() -> None:
    down = BackendDown(Down.RATE_LIMITED, retry_after=7)
    model = ScriptedModel([PROPOSED, SAID, JSON, down, "no JSON", lambda prompt: {"new_facts": [TEA] * 2}])
    prompt = Prompt("Read.", "E1: tea")
    for _ in range(3):
        reply = await model.propose(prompt)
        assert (reply.proposal, reply.usage) == (PROPOSED, Usage(100, 20))
    with pytest.raises(BackendDown) as caught:
        await model.propose(prompt)
    assert caught.value is down
    with pytest.raises(BadOutput) as bad:
        await model.propose(prompt)
    assert (bad.value.reason, bad.value.usage) == (Bad.NOT_JSON, Usage(100, 20))
    assert len((await model.propose(prompt)).proposal.new_facts) == 2
    with pytest.raises(AssertionError, match="more often than it has lines"):
        await model.propose(prompt)
    assert model.prompts == [prompt] * 7


async def test_a_callable_alone_is_asked_again_and_again() -> None:
    model = ScriptedModel(lambda prompt: {"new_facts": [{**TEA, "content": prompt.text}]})
    for text in ("one", "two"):
        assert (await model.propose(Prompt("", text))).proposal.new_facts[0].content == text


def chosen(environ: dict[str, str] | None = None, **consolidation: str) -> Any:
    given = {f"BUTLER_MEMORY_CONSOLIDATION__{name.upper()}": value for name, value in consolidation.items()}
    mine = {name: value for name, value in (environ or {}).items() if name.startswith("BUTLER_MEMORY_")}
    return model_of(load(environ={**given, **mine}), environ or {})


@pytest.mark.parametrize(
    ("consolidation", "right"),
    [
        ({"backend": "offline"}, "without a language model"),
        ({"backend": "anthropic"}, "BUTLER_MEMORY_LLM_API_KEY, or ANTHROPIC_API_KEY"),
        ({"backend": "openai"}, "consolidation.model"),
        ({"backend": "openai", "model": "gpt-9"}, "BUTLER_MEMORY_LLM_API_KEY, or OPENAI_API_KEY"),
        ({"backend": "claude-code", "base_url": "http://gateway:1"}, "not sent to another address"),
    ],
)
def test_settings_that_name_no_working_model_are_refused_with_what_would_be_right(
    consolidation: dict[str, str], right: str
) -> None:
    with pytest.raises(SetupError) as caught:
        chosen(**consolidation)
    assert right in f"{caught.value.message} {caught.value.recovery}"


@pytest.mark.parametrize("backend", ["anthropic", "openai"])
def test_a_missing_extra_is_named(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SetupError) as caught:
        chosen(backend=backend, model="any")
    assert f"butler-memory[{backend}]" in caught.value.recovery


@pytest.mark.parametrize("backend", ["anthropic", "openai", "claude-code"])
async def test_g7_a_key_is_in_no_repr(backend: str) -> None:
    model = chosen({"BUTLER_MEMORY_LLM_API_KEY": "violet-heron-4711"}, backend=backend, model="any")
    assert "violet-heron" not in repr(model)
    assert model.name == f"{backend}:any"
    await model.close()


def test_neither_importing_the_room_nor_choosing_imports_an_sdk() -> None:
    code = """
import sys
from butler_memory.llm import model_of
from butler_memory.settings import load
for backend in ("anthropic", "openai", "claude-code"):
    chosen = {"BACKEND": backend, "MODEL": "any"}
    environ = {f"BUTLER_MEMORY_CONSOLIDATION__{name}": value for name, value in chosen.items()}
    model_of(load(environ={**environ, "BUTLER_MEMORY_LLM_API_KEY": "key"}), {})
print(sorted({"openai", "anthropic", "pydantic_ai", "httpx2"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_readings_that_come_at_once_load_their_model_once() -> None:
    made: list[ScriptedModel] = []

    def make() -> ScriptedModel:
        made.append(ScriptedModel(lambda prompt: SAID))
        return made[-1]

    model = LazyModel("scripted:late", make)
    await model.close()
    assert made == []
    replies = await asyncio.gather(*(model.propose(Prompt("", "")) for _ in range(5)))
    assert [reply.proposal for reply in replies] == [PROPOSED] * 5
    await model.close()
    assert [one.closed for one in made] == [True]
