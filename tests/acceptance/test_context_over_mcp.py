"""memory_context as an MCP client sees it: the block is the text, everything about it stands beside (appendix B)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from serving import Up, start_up

pytestmark = pytest.mark.usefixtures("model_at_hand")


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, model_at_hand: Path) -> Iterator[Up]:
    running = start_up(tmp_path_factory.mktemp("up"))
    running.wait_until_ready()
    yield running
    running.stop()
    running.output()


async def store(client: Client, **arguments: Any) -> None:
    answer = await client.call_tool("memory_store_fact", {"subject": "user", **arguments})
    assert not answer.is_error


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_block_is_the_text_and_nothing_structured_hides_it(up: Up, mode: str) -> None:
    async with up.client(mode=mode) as client:
        await store(client, predicate="allergy", content="peanuts", importance=9, source_kind="user_stated")
        answer = await client.call_tool(
            "memory_context",
            {"trigger_prompt": "what can I eat?", "request_context": {"request_id": "r-1"}},
        )
    (block,) = answer.content
    assert block.text.startswith("<butler-memory>\n## Your Memory\n")
    assert "- User is allergic to peanuts [permanent, confirmed 0m ago]" in block.text
    assert answer.structured_content is None
    assert answer.meta is not None
    assert answer.meta["status"] == "ok"
    assert answer.meta["tokenizer"] == "o200k_base"
    assert answer.meta["tokens"] > 0
    assert answer.meta["served_id"]
    assert answer.meta["request_context"] == {"request_id": "r-1"}


@pytest.mark.parametrize("prompt", ['{"task": "tidy up"}', "[1, 2, 3]", "null", "true", "12"])
async def test_a_prompt_that_looks_like_json_is_text(up: Up, prompt: str) -> None:
    async with up.client() as client:
        answer = await client.call_tool("memory_context", {"trigger_prompt": prompt})
    assert not answer.is_error


async def test_c6_a_megabyte_of_prompt_is_answered(up: Up) -> None:
    async with up.client() as client:
        answer = await client.call_tool(
            "memory_context", {"trigger_prompt": "log line\n" * 120_000 + "what can I eat?"}
        )
    assert answer.meta is not None
    assert answer.meta["degraded"] == ["prompt_cut"]


async def test_c6_a_pasted_log_may_hold_anything(up: Up) -> None:
    async with up.client() as client:
        answer = await client.call_tool("memory_context", {"trigger_prompt": "core dump \x00\x01 what can I eat?"})
    assert answer.meta is not None
    assert (answer.meta["status"], answer.meta["degraded"]) == ("ok", [])


async def test_t4_a_bad_argument_has_our_shape(up: Up) -> None:
    async with up.client() as client:
        answer = await client.call_tool("memory_context", {"token_budget": "many"})
    assert answer.is_error
    assert answer.structured_content is not None
    assert (answer.structured_content["error"], answer.structured_content["field"]) == ("invalid_input", "token_budget")


async def test_c8_many_at_once(up: Up) -> None:
    async with up.client() as client:
        answer = await client.call_tool(
            "memory_context_batch", {"requests": [{"trigger_prompt": "what can I eat?"}, {"token_budget": 1}, "no"]}
        )
    assert answer.structured_content is not None
    first, second, third = answer.structured_content["results"]
    assert (first["status"], second["status"], third["error"]) == ("ok", "budget_too_small", "invalid_input")
