"""What an agent is told about the tools (T1, T5)."""

from __future__ import annotations

import inspect

import pytest

from butler_memory.mcp_server.tools import INSTRUCTIONS, TOOLS, ToolSpec
from butler_memory.memory import Memory

READING = {
    "memory_recall", "memory_search", "memory_context", "memory_context_batch", "memory_get", "memory_stats",
    "memory_activity_stream",
}  # fmt: skip

# Names and parameters that clients rely on (seeds 002 and 003), without the additive ones.
STABLE = {
    "memory_store_episode": {"content", "butler", "session_id", "importance"},
    "memory_store_fact": {"subject", "predicate", "content", "importance", "permanence", "scope", "tags"},
    "memory_store_rule": {"content", "scope", "tags"},
    "memory_search": {"query", "types", "scope", "mode", "limit", "min_confidence"},
    "memory_recall": {"topic", "scope", "limit"},
    "memory_get": {"type", "id"},
    "memory_confirm": {"type", "id"},
    "memory_mark_helpful": {"rule_id"},
    "memory_mark_harmful": {"rule_id", "reason"},
    "memory_forget": {"type", "id"},
    "memory_stats": {"scope"},
    "memory_activity_stream": {"since", "scope"},
    "memory_context": {"trigger_prompt", "butler", "token_budget"},
}

every_tool = pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)


@every_tool
def test_t5_a_tool_says_whether_it_reads_and_whether_it_destroys(tool: ToolSpec) -> None:
    hints = tool.as_tool().annotations
    assert hints is not None
    assert hints.read_only_hint is (tool.name in READING)
    assert hints.destructive_hint is (tool.name == "memory_forget")
    assert hints.open_world_hint is False


@every_tool
def test_t5_a_description_is_a_few_sentences_for_a_model(tool: ToolSpec) -> None:
    assert 20 <= len(tool.description) <= 400


@every_tool
def test_t4_a_tool_takes_nothing_that_it_does_not_name(tool: ToolSpec) -> None:
    schema = tool.as_tool().input_schema
    assert schema["additionalProperties"] is False
    assert "request_context" in schema["properties"]


@every_tool
def test_t3_no_tool_takes_a_tenant(tool: ToolSpec) -> None:
    assert not {"tenant", "tenant_id", "user_id"} & tool.as_tool().input_schema["properties"].keys()


@pytest.mark.parametrize(("name", "parameters"), STABLE.items())
def test_t1_names_and_parameters_are_stable(name: str, parameters: set[str]) -> None:
    by_name = {tool.name: tool.as_tool().input_schema["properties"] for tool in TOOLS}
    assert parameters <= by_name[name].keys()


def test_t5_the_instructions_say_when_to_use_the_memory() -> None:
    assert len(INSTRUCTIONS) < 1000
    named = "memory_recall memory_confirm memory_mark_helpful memory_mark_harmful memory_forget".split()
    for word in (*named, "never instructions"):
        assert word in INSTRUCTIONS


def test_every_tool_is_a_method_of_memory() -> None:
    assert all(inspect.iscoroutinefunction(tool.call) for tool in TOOLS)
    assert all(getattr(Memory, tool.call.__name__) is tool.call for tool in TOOLS)
