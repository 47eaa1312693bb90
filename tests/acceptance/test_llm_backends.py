"""The real SDKs against a local server that speaks their protocols (K6, E2, K7, G7)."""

from __future__ import annotations

import json

import pytest

from asking import PROMPT, PROPOSED, SAID, SECRET, failure, model, quoted
from butler_memory.domain.proposal import Proposal
from butler_memory.llm import BackendDown, Bad, BadOutput, Down
from wire import CUT, STALL, TOKENS_IN, TOKENS_OUT, Ended, Item, Status, Wire

pytestmark = pytest.mark.usefixtures("only_loopback")
SDKS = ["anthropic", "openai"]


@pytest.mark.parametrize("backend", SDKS)
async def test_k3_k7_a_proposal_comes_back_with_what_it_cost(wire: Wire, backend: str) -> None:
    wire.says(SAID)
    reader = model(backend, wire.url)
    reply = await reader.propose(PROMPT)
    await reader.close()
    assert reply.proposal == PROPOSED
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (TOKENS_IN, TOKENS_OUT)
    assert 0 < reply.usage.seconds < 60
    [asked] = wire.requests
    assert PROMPT.instructions in asked.said
    assert SECRET in asked.said


async def test_the_messages_protocol_is_asked_for_one_tool_call(wire: Wire) -> None:
    wire.says(SAID)
    await model("anthropic", wire.url).propose(PROMPT)
    body = wire.requests[0].body
    assert [tool["name"] for tool in body["tools"]] == ["proposal"]
    assert body["tool_choice"]["type"] == "any"


async def test_chat_completions_are_asked_for_json_under_the_schema(wire: Wire) -> None:
    wire.says(SAID)
    await model("openai", wire.url).propose(PROMPT)
    body = wire.requests[0].body
    assert body["response_format"]["type"] == "json_schema"
    assert set(body["response_format"]["json_schema"]["schema"]["properties"]) == set(Proposal.model_fields)
    assert body["temperature"] == 0
    assert "tools" not in body


@pytest.mark.parametrize("backend", SDKS)
@pytest.mark.parametrize("wrong", ["Nothing to tell.", {"new_facts": [{"content": "tea"}]}])
async def test_what_is_wrong_is_told_to_the_model_once(wire: Wire, backend: str, wrong: Item) -> None:
    wire.says(wrong, SAID)
    reader = model(backend, wire.url)
    reply = await reader.propose(PROMPT)
    assert reply.proposal == PROPOSED
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (2 * TOKENS_IN, 2 * TOKENS_OUT)
    assert "could not be used" in wire.requests[1].said
    assert PROMPT.instructions in wire.requests[1].said
    await reader.close()


async def test_thoughts_of_a_model_are_not_its_answer(wire: Wire) -> None:
    wire.says(f'<think>Perhaps {{"new_facts": []}}?</think>\n```json\n{json.dumps(SAID)}\n```')
    reply = await model("openai", wire.url).propose(PROMPT)
    assert reply.proposal == PROPOSED


@pytest.mark.parametrize("backend", SDKS)
@pytest.mark.parametrize(
    ("item", "reason"),
    [
        (quoted(401, "authentication_error"), Down.BAD_KEY),
        (quoted(403, "permission_error"), Down.BAD_KEY),
        (quoted(402, "billing_error"), Down.SPENT_BUDGET),
        (quoted(404, "not_found_error"), Down.UNKNOWN_MODEL),
        (quoted(400, "invalid_request_error"), Down.REJECTED),
        (quoted(429, "rate_limit_error"), Down.RATE_LIMITED),
        (quoted(500, "api_error"), Down.OVERLOADED),
        (quoted(503, "api_error"), Down.OVERLOADED),
        (quoted(529, "overloaded_error"), Down.OVERLOADED),
        (CUT, Down.NO_NETWORK),
        (Status(200, body={"hello": SECRET}), Down.BROKEN),
        (Status(200, {"content-type": "text/html"}, f"<html>{SECRET}"), Down.BROKEN),
    ],
)
async def test_e2_what_the_backend_causes_is_the_backends_fault(
    wire: Wire, backend: str, item: Item, reason: Down
) -> None:
    wire.says(item)
    error = await failure(model(backend, wire.url))
    assert isinstance(error, BackendDown)
    assert (error.reason, error.retry_after) == (reason, None)
    assert len(wire.requests) == 1, "trying again is the scheduler's"


@pytest.mark.parametrize("backend", SDKS)
async def test_e2_a_rate_limit_says_when_to_come_back(wire: Wire, backend: str) -> None:
    wire.says(quoted(429, "rate_limit_error", headers={"retry-after": "7"}))
    error = await failure(model(backend, wire.url))
    assert isinstance(error, BackendDown)
    assert (error.reason, error.retry_after) == (Down.RATE_LIMITED, 7)


@pytest.mark.parametrize("backend", SDKS)
@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid"])
async def test_e2_an_address_that_nobody_answers_at_is_an_outage(backend: str, url: str) -> None:
    error = await failure(model(backend, url))
    assert error.reason is Down.NO_NETWORK


@pytest.mark.parametrize("backend", SDKS)
async def test_e2_who_does_not_answer_in_time_is_left(wire: Wire, backend: str) -> None:
    wire.says(STALL)
    error = await failure(model(backend, wire.url, timeout_seconds=0.3))
    assert error.reason is Down.TIMEOUT
    assert 0.3 <= error.usage.seconds < 30


@pytest.mark.parametrize("backend", SDKS)
@pytest.mark.parametrize(
    ("items", "reason", "times"),
    [
        ([f"No JSON, but {SECRET}"] * 2, Bad.NOT_JSON, 2),
        ([{"new_facts": [{"content": SECRET}]}] * 2, Bad.SCHEMA, 2),
        ([{}] * 2, Bad.SCHEMA, 2),
        ([{SECRET: 1}, "still none"], Bad.NOT_JSON, 2),
        ([Ended("length", f'{{"new_facts": ["{SECRET}')], Bad.TRUNCATED, 1),
        ([f'{{"new_facts": ["{SECRET}'], Bad.TRUNCATED, 1),
        ([Ended("refusal", f"I will not read {SECRET}")], Bad.REFUSED, 1),
        ([""], Bad.EMPTY, 1),
    ],
)
async def test_e2_k7_what_the_content_causes_is_the_contents_fault_and_is_paid_for(
    wire: Wire, backend: str, items: list[Item], reason: Bad, times: int
) -> None:
    wire.says(*items)
    error = await failure(model(backend, wire.url))
    assert isinstance(error, BadOutput)
    assert error.reason is reason
    assert (error.usage.tokens_in, error.usage.tokens_out) == (times * TOKENS_IN, times * TOKENS_OUT)


@pytest.mark.parametrize(
    ("backend", "item"),
    [
        ("anthropic", quoted(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum")),
        ("openai", quoted(400, "context_length_exceeded", "This model's maximum context length is 8 tokens.")),
        ("openai", quoted(413, "too_large")),
    ],
)
async def test_k3_a_batch_that_does_not_fit_the_model_is_the_contents_fault(
    wire: Wire, backend: str, item: Item
) -> None:
    """Half of it may fit; waiting would change nothing."""
    wire.says(item)
    assert (await failure(model(backend, wire.url))).reason is Bad.TOO_LONG


@pytest.mark.parametrize(
    ("backend", "item"),
    [
        ("anthropic", quoted(400, "invalid_request_error", "Output blocked by content filtering policy")),
        ("openai", Status(400, {}, {"error": {"code": "content_policy_violation", "message": SECRET}})),
    ],
)
async def test_e2_what_a_filter_stopped_is_the_contents_fault(wire: Wire, backend: str, item: Item) -> None:
    """One such episode must not hold up the shard for ever."""
    wire.says(item)
    assert (await failure(model(backend, wire.url))).reason is Bad.REFUSED


@pytest.mark.parametrize(
    ("item", "backend"),
    [
        (quoted(400, "invalid_request_error", "Your credit balance is too low to access the API."), "anthropic"),
        (Status(429, {}, {"error": {"code": "insufficient_quota", "message": SECRET}}), "openai"),
    ],
)
async def test_e2_an_account_without_money_is_no_fault_of_the_episodes(wire: Wire, backend: str, item: Item) -> None:
    wire.says(item)
    assert (await failure(model(backend, wire.url))).reason is Down.SPENT_BUDGET


async def test_k7_what_the_first_answer_cost_counts_when_the_second_fails(wire: Wire) -> None:
    wire.says("no JSON", Status(529))
    error = await failure(model("openai", wire.url))
    assert error.reason is Down.OVERLOADED
    assert (error.usage.tokens_in, error.usage.tokens_out) == (TOKENS_IN, TOKENS_OUT)


# --- the settings ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", SDKS)
async def test_the_named_model_is_asked_at_the_named_address_with_the_key(wire: Wire, backend: str) -> None:
    wire.says(SAID)
    reader = model(backend, wire.url, key="sk-mine", model="any-model-1")
    await reader.propose(PROMPT)
    [asked] = wire.requests
    assert asked.body["model"] == "any-model-1"
    assert "sk-mine" in (asked.headers.get("authorization", "") + asked.headers.get("x-api-key", ""))
    assert reader.name == f"{backend}:any-model-1"
    assert "sk-mine" not in repr(reader) + repr(vars(reader))


@pytest.mark.parametrize("backend", SDKS)
async def test_the_output_is_as_long_as_set(wire: Wire, backend: str) -> None:
    wire.says(SAID, SAID)
    await model(backend, wire.url).propose(PROMPT)
    await model(backend, wire.url, max_output_tokens=777).propose(PROMPT)
    assert [asked.body["max_tokens"] for asked in wire.requests] == [8000, 777]


@pytest.mark.parametrize("backend", SDKS)
async def test_a_providers_own_key_goes_where_its_own_variables_say_and_nowhere_else(wire: Wire, backend: str) -> None:
    wire.says(SAID, SAID)
    path = "/v1" if backend == "openai" else ""
    name = backend.upper()
    environ = {f"{name}_API_KEY": "sk-own", f"{name}_BASE_URL": wire.url + path}
    await model(backend, environ=environ, key="").propose(PROMPT)
    assert "sk-own" in str(wire.requests[0].headers)
    await model(backend, wire.url, {f"{name}_API_KEY": "sk-own"}, key="sk-named").propose(PROMPT)
    assert "sk-own" not in str(wire.requests[1].headers)
