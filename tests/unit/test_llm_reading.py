"""What a model said becomes a proposal whole or not at all (K3), and no failure carries content (G7)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from butler_memory.domain.proposal import Proposal
from butler_memory.llm import Bad, BadOutput
from butler_memory.llm.reading import LONGEST_ANSWER, Fault, judge, judge_value, read
from butler_memory.llm.schema import proposal_schema

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
