"""What a model said becomes a proposal whole or not at all (K3), and no failure carries content (G7)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butler_memory.domain.proposal import Proposal
from butler_memory.errors import SetupError
from butler_memory.llm import BackendDown, Bad, BadOutput, Down, Prompt, ScriptedModel, Usage, model_of
from butler_memory.llm.lazy import LazyModel
from butler_memory.llm.reading import LONGEST_ANSWER, Fault, judge, judge_value, read
from butler_memory.llm.schema import proposal_schema
from butler_memory.settings import load

TEA: dict[str, Any] = {"evidence": ["E1"], "subject": "user", "predicate": "likes", "content": "tea"}
SAID: dict[str, Any] = {"new_facts": [TEA]}
JSON = json.dumps(SAID)
PROPOSED = Proposal.model_validate(SAID)


@pytest.mark.parametrize(
    "text",
    [
        JSON,
        f"\ufeff\n {json.dumps(SAID, indent=2)}\n",
        f"```json\n{JSON}\n```",
        f"```\n{JSON}```",
        f"Here is what I found:\n\n```json\n{JSON}\n```\nLet me know if you need more.",
        f"Found [one] fact {{see below}}: {JSON} That is all {{}}.",
        f"```json\n{JSON}",  # a fence that nobody closed
    ],
)
def test_k3_one_object_is_read_wherever_it_stands(text: str) -> None:
    assert read(text) == PROPOSED


def test_k3_a_fence_inside_a_content_ends_nothing() -> None:
    code = {"new_facts": [{**TEA, "content": "Runs ```sh\nmake up\n``` first"}]}
    assert read(f"```json\n{json.dumps(code)}\n```").new_facts[0].content == code["new_facts"][0]["content"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", Bad.EMPTY),
        (" \n\t", Bad.EMPTY),
        ("There is nothing to remember.", Bad.NOT_JSON),
        ("null", Bad.NOT_JSON),
        ("{new_facts: []}", Bad.NOT_JSON),
        ('{"new_facts": [],}', Bad.NOT_JSON),
        ('{"new_facts": NaN}', Bad.NOT_JSON),
        ('{"new_facts": [' + "1" * 5000 + "]}", Bad.NOT_JSON),
        ('{"new_facts": [], "new_facts": []}', Bad.NOT_JSON),
        ('{"new_facts": [oops {"new_rules": []}', Bad.NOT_JSON),  # the inner one is a part, not the answer
        (f"{JSON}\n{JSON}", Bad.NOT_JSON),
        ("{}", Bad.SCHEMA),
        ("```json\n{}\n```", Bad.SCHEMA),
        (f"[{JSON}]", Bad.SCHEMA),
        ('{"facts": []}', Bad.SCHEMA),
        ('{"new_facts": [{}]}', Bad.SCHEMA),
        ('{"new_facts": {}}', Bad.SCHEMA),
        (json.dumps({"new_facts": [{**TEA, "evidence": []}]}), Bad.SCHEMA),
        (json.dumps({"new_facts": [{**TEA, "tenant_id": "x"}]}), Bad.SCHEMA),
        (json.dumps({"new_facts": [{**TEA, "scope": "project:x"}]}), Bad.SCHEMA),
        (json.dumps({"new_facts": [{**TEA, "content": "a\x00b"}]}), Bad.SCHEMA),
        (json.dumps({"new_facts": [{**TEA, "content": "\ud800"}]}), Bad.SCHEMA),
        (json.dumps({"new_facts": [TEA] * 201}), Bad.SCHEMA),
        ("{", Bad.TRUNCATED),
        ('{"new_facts": [{', Bad.TRUNCATED),
        ('{"new_facts": [{}', Bad.TRUNCATED),
        ('{"new_facts": [], "new_rules": tru', Bad.TRUNCATED),
        ('Here: {"new_facts": [{"evidence": ["E', Bad.TRUNCATED),
        (f"[{JSON}", Bad.TRUNCATED),
    ],
)
def test_k3_what_is_no_whole_proposal_is_refused_with_its_reason(text: str, reason: Bad) -> None:
    with pytest.raises(BadOutput) as caught:
        read(text)
    assert caught.value.reason is reason


contents = st.text(min_size=1, max_size=30).filter(lambda text: isinstance(judge_value(said_of(text)), Proposal))
proposals = st.fixed_dictionaries(
    {},
    optional={
        "new_facts": st.lists(st.builds(lambda text: {**TEA, "content": text}, contents), max_size=2),
        "new_rules": st.lists(st.builds(lambda text: {"evidence": ["E1"], "content": text}, contents), max_size=2),
        "confirmations": st.just([{"evidence": ["E1"], "memory": "F1"}]),
    },
).filter(bool)


def said_of(content: str) -> dict[str, Any]:
    return {"new_facts": [{**TEA, "content": content}]}


@given(proposals, st.sampled_from(["", "Sure! ", "```json\n"]), st.sampled_from(["", "\n```", " Done."]), st.booleans())
def test_k3_what_is_whole_is_read_in_any_wrapping(said: dict[str, Any], before: str, after: str, ascii: bool) -> None:
    assert read(before + json.dumps(said, ensure_ascii=ascii) + after) == Proposal.model_validate(said)


@given(proposals, st.data())
def test_k3_no_part_of_an_answer_passes_for_an_answer(said: dict[str, Any], data: st.DataObject) -> None:
    """A proposal that lost facts on the way would mark their episodes as read."""
    text = json.dumps(said)
    cut = text[: data.draw(st.integers(0, len(text) - 1))]
    assert isinstance(judge(cut), Fault)


fragments = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        '"',
        ":",
        ",",
        "\\",
        "```",
        "{}",
        '{"new_facts": [',
        JSON,
        "null",
        "\x00",
        "\ud800",
        "é",
        "1e9",
    ]
)


@given(st.one_of(st.text(), st.lists(fragments).map("".join)))
def test_any_text_is_judged_and_none_breaks_the_reader(text: str) -> None:
    assert isinstance(judge(text), Proposal | Fault)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 1_000_000,
        "[" * 1_000_000,
        '{"a":' * 200_000,
        '{"new_facts":[' * 70_000,
        '{"a":' * 5_000 + "1" + "}" * 5_000,
        "{ " * 500_000,
        '{"' + "a" * 1_000_000,
        "{}" * 500_000,
        "{" + " " * 1_000_000,
        "x" * (LONGEST_ANSWER + 1),
        JSON + "[" * 1_000_000,
    ],
    ids=range(11),
)
def test_a_megabyte_of_anything_is_refused_without_harm(text: str) -> None:
    assert isinstance(judge(text), Fault)


def test_g7_no_failure_carries_what_was_said() -> None:
    secret = "violet-heron-4711"
    for text in (secret, f'{{"{secret}": 1}}', f'{{"new_facts": ["{secret}"', f'{{"new_facts": "{secret}"}}'):
        with pytest.raises(BadOutput) as caught:
            read(text)
        error = caught.value
        assert secret not in repr(error) + str(error) + str(vars(error))
        assert (error.__cause__, error.__context__) == (None, None)
        assert secret not in repr(judge(text))


def test_a_model_is_told_what_to_mend_and_at_no_great_length() -> None:
    fault = judge_value({"new_facts": [{**TEA, "scope": "moon", "x" * 100_000: 1}] * 50})
    assert isinstance(fault, Fault)
    assert "new_facts.0.scope: " in fault.complaint
    assert len(fault.complaint) < 3000


# --- the shape that models are shown ---------------------------------------------------------------------


def nodes(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [node for below in schema for node in nodes(below)]
    if not isinstance(schema, dict):
        return []
    return [schema, *(node for below in schema.values() for node in nodes(below))]


def test_the_shown_schema_is_closed_complete_and_plain() -> None:
    """Constrained decoders refuse lengths and patterns, each another one, and want each property required."""
    schema = proposal_schema()
    for node in nodes(schema):
        if "properties" in node and isinstance(node.get("type"), str):
            assert node["required"] == list(node["properties"])
            assert node["additionalProperties"] is False
        assert not node.keys() & {"maxLength", "minLength", "pattern", "maxItems", "minItems", "default", "ge", "title"}
    fact = schema["$defs"]["NewFact"]["properties"]
    assert set(schema["properties"]) == set(Proposal.model_fields)
    assert fact["importance"]["description"] == "at least 1, at most 10"
    assert "global|butler" in fact["scope"]["description"]


# --- the shipped stand-in, and choosing -------------------------------------------------------------------


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
        ({"backend": "agent"}, "not built yet"),
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
