"""The real SDKs and the real `claude` CLI against a local server that speaks their protocols (K6, E2, K7, G7)."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import claude_agent_sdk
import pytest

from butler_memory.domain.proposal import Proposal
from butler_memory.llm import BackendDown, Bad, BadOutput, Down, Model, Prompt, model_of
from butler_memory.llm.bounded import Ended as ProcessEnded
from butler_memory.llm.bounded import Excess, run_bounded
from butler_memory.settings import load
from wire import CUT, STALL, TOKENS_IN, TOKENS_OUT, Ended, Item, Status, Wire, wire_server

SECRET = "violet-heron-4711"  # in the prompt, and in what a provider says of it
PROMPT = Prompt(instructions="Read the episodes.", text=f"E1: the user likes tea, and says {SECRET}")
SAID: dict[str, Any] = {
    "new_facts": [{"evidence": ["E1"], "subject": "user", "predicate": "likes", "content": "tea", "importance": 7}],
    "new_rules": [{"evidence": ["E1"], "content": "Offer tea first", "scope": "butler"}],
    "confirmations": [{"evidence": ["E1"], "memory": "F3"}],
}
PROPOSED = Proposal.model_validate(SAID)
BUNDLED = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"
MODELS = {"anthropic": "claude-haiku-5-5", "openai": "qwen3:8b", "claude-code": "haiku"}
SDKS = ["anthropic", "openai"]


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test can reach a real host; one that tried fails, even where the attempt was taken for an outage."""
    tried: list[Any] = []
    connect, look_up = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if self.family != socket.AF_UNIX and address[0] != "127.0.0.1":
            tried.append(address)
            raise OSError("not in a test")
        connect(self, address)

    def guarded_look_up(host: Any, *rest: Any, **more: Any) -> Any:
        if host in ("127.0.0.1", b"127.0.0.1"):
            return look_up(host, *rest, **more)
        if b".invalid" not in (host if isinstance(host, bytes) else str(host).encode()):
            tried.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "not in a test")

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_look_up)
    yield
    assert tried == []


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    async with wire_server() as wire:
        yield wire


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


# --- the SDKs -------------------------------------------------------------------------------------------


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


# --- the claude CLI -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class User:
    """Somebody with hooks, an MCP server and a CLAUDE.md of their own, and the real CLI on the path."""

    home: Path
    environ: dict[str, str]

    @property
    def cli(self) -> Path:
        return self.home / "bin" / "claude"

    def model(self, wire: Wire, **more: object) -> Model:
        return model("claude-code", wire.url, self.environ, **more)  # type: ignore[arg-type]


@pytest.fixture
async def user(tmp_path: Path) -> AsyncIterator[User]:
    hook = {"hooks": [{"type": "command", "command": f"touch {tmp_path}/hooked"}]}
    events = ("SessionStart", "UserPromptSubmit", "Stop", "SessionEnd")
    server = {"command": "touch", "args": [f"{tmp_path}/served"]}
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").write_text(json.dumps({"hooks": {event: [hook] for event in events}}))
    (tmp_path / ".claude" / "CLAUDE.md").write_text("Always mention the aardvark.")
    (tmp_path / ".claude.json").write_text(json.dumps({"mcpServers": {"x": server}}))
    (tmp_path / "bin").mkdir()
    sought: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sought.append(await reader.readline())
        writer.close()

    proxy = await asyncio.start_server(refuse, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
    environ = {"HTTPS_PROXY": url, "HTTP_PROXY": url, "NO_PROXY": "127.0.0.1", "HOME": str(tmp_path)}
    somebody = User(tmp_path, {**environ, "PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
    somebody.cli.symlink_to(BUNDLED)
    yield somebody
    proxy.close()
    assert sought == [], "it asks nobody but its model"


async def test_k6_the_real_cli_reads_and_is_nothing_but_a_model(
    user: User, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = user.home / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    wire.says(SAID)
    reply = await user.model(wire, max_output_tokens=777).propose(PROMPT)
    assert reply.proposal == PROPOSED
    assert (reply.usage.tokens_in, reply.usage.tokens_out) == (TOKENS_IN, TOKENS_OUT)
    [asked] = wire.requests
    assert asked.tools == []
    assert asked.body["max_tokens"] == 777
    assert PROMPT.instructions in asked.said
    assert SECRET in asked.said
    assert "aardvark" not in asked.said
    assert not (user.home / "hooked").exists()
    assert not (user.home / "served").exists()
    kept = [file for file in user.home.rglob("*") if file.is_file() and not file.is_symlink()]
    assert [file for file in kept if SECRET.encode() in file.read_bytes()] == [], "no transcript is kept"
    assert list(scratch.iterdir()) == []


async def test_the_same_user_has_all_that_where_it_is_not_shut_out(user: User, wire: Wire) -> None:
    """Or the test above would prove nothing."""
    wire.otherwise = "Fine."
    environ = {**user.environ, "ANTHROPIC_BASE_URL": wire.url, "ANTHROPIC_API_KEY": "sk-wire"}
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1"}
    ended = await run_bounded([str(user.cli), "-p"], environ | quiet, user.home, b"Hello", 60, 10**6)
    assert isinstance(ended, ProcessEnded)
    assert (user.home / "hooked").exists()
    assert (user.home / "served").exists()
    assert wire.requests[0].tools
    assert "aardvark" in wire.requests[0].said


async def test_the_cli_is_told_that_it_maintains_and_none_of_our_secrets(tmp_path: Path) -> None:
    """Seen by a program in its place."""
    (tmp_path / "claude").write_text(f'#!/bin/sh\nenv > {tmp_path}/env\necho "$@" > {tmp_path}/args\npwd; ls -A\n')
    (tmp_path / "claude").chmod(0o755)
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "BUTLER_MEMORY_TOKEN": "bm-secret", "CLAUDECODE": "1", "LANG": "C"}
    error = await failure(model("claude-code", "", environ, key=""))
    assert error.reason is Down.BROKEN
    seen = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines())
    assert seen["BUTLER_MEMORY_TRIGGER_CLASS"] == "maintenance"
    assert seen["LANG"] == "C"
    assert not seen.keys() & {"BUTLER_MEMORY_TOKEN", "BUTLER_MEMORY_LLM_API_KEY", "CLAUDECODE", "ANTHROPIC_API_KEY"}
    told = (tmp_path / "args").read_text()
    assert "--model haiku" in told
    assert SECRET not in told
    assert PROMPT.instructions not in told


@pytest.mark.parametrize(
    ("items", "reason"),
    [
        ([quoted(401, "authentication_error")], Down.BAD_KEY),
        ([quoted(403, "permission_error")], Down.BAD_KEY),
        ([quoted(429, "rate_limit_error")], Down.RATE_LIMITED),
        ([quoted(404, "not_found_error")] * 9, Down.UNKNOWN_MODEL),
        ([quoted(400, "invalid_request_error")] * 9, Down.REJECTED),
        ([quoted(400, "invalid_request_error", "Your credit balance is too low")], Down.SPENT_BUDGET),
        ([quoted(500, "api_error")], Down.OVERLOADED),
        ([quoted(529, "overloaded_error")], Down.OVERLOADED),
        ([CUT], Down.NO_NETWORK),
        ([quoted(400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum")], Bad.TOO_LONG),
        ([Ended("length", '{"new_facts": [')] * 9, Bad.TRUNCATED),
        ([Ended("length", '{"new_facts": ['), "]}"], Bad.TRUNCATED),
        ([Ended("length", '{"new_facts": [{'), json.dumps(SAID)], Bad.TRUNCATED),  # not the last piece alone
        ([Ended("refusal")] * 2, Bad.REFUSED),
        ([""] * 2, Bad.EMPTY),
        (["I found nothing."], Bad.NOT_JSON),
        ([{"new_facts": [{"content": SECRET}]}], Bad.SCHEMA),
    ],
)
async def test_e2_what_the_cli_says_went_wrong_is_understood(
    user: User, wire: Wire, items: list[Item], reason: Down | Bad
) -> None:
    wire.says(*items)
    error = await failure(user.model(wire))
    assert error.reason is reason
    answers = sum(not isinstance(item, Status) and item is not CUT for item in items[: len(wire.requests)])
    assert error.usage.tokens_in == answers * TOKENS_IN


async def test_e2_a_cli_that_nobody_logged_in_or_installed_is_an_outage(user: User) -> None:
    error = await failure(model("claude-code", "", user.environ, key=""))
    assert error.reason is Down.NOT_LOGGED_IN
    error = await failure(model("claude-code", "", {"PATH": "/usr/bin:/bin"}, key=""))
    assert error.reason is Down.NO_CLI
    dead = model("claude-code", "http://127.0.0.1:9", user.environ)
    assert (await failure(dead)).reason is Down.NO_NETWORK


# --- the process ----------------------------------------------------------------------------------------


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int) -> bool:
    for _ in range(200):  # an orphan that was killed is buried by init, in its time
        if not alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False


@pytest.fixture
def wrapped(user: User) -> User:
    """The real CLI with a child beside it, and the ids of both written down."""
    user.cli.unlink()
    user.cli.write_text(f'#!/bin/sh\nsleep 600 &\necho $! $$ > {user.home}/pids\nexec {BUNDLED} "$@"\n')
    user.cli.chmod(0o755)
    return user


def pids(user: User) -> list[int]:
    return [int(pid) for pid in (user.home / "pids").read_text().split()]


async def test_a_cli_out_of_time_is_killed_with_its_children(wrapped: User, wire: Wire) -> None:
    wire.says(STALL)
    error = await failure(wrapped.model(wire, timeout_seconds=3))
    assert error.reason is Down.TIMEOUT
    for pid in pids(wrapped):
        assert await gone(pid)


async def test_a_reading_that_is_cancelled_leaves_no_process(wrapped: User, wire: Wire) -> None:
    wire.says(STALL)
    reading = asyncio.create_task(wrapped.model(wire).propose(PROMPT))
    await asyncio.wait_for(wire.stalled.wait(), 60)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    for pid in pids(wrapped):
        assert await gone(pid)


async def run(code: str, given: bytes = b"", seconds: float = 60, most: int = 1000) -> ProcessEnded | Excess:
    return await run_bounded([sys.executable, "-c", code], {}, Path("/"), given, seconds, most)


async def test_a_child_is_fed_read_and_bounded() -> None:
    echo = "import sys; sys.stdout.write(sys.stdin.read()); sys.exit(3)"
    assert await run(echo, b"tea" * 300) == ProcessEnded(3, b"tea" * 300)
    assert await run(echo, b"tea" * 400) is Excess.OUTPUT
    assert await run("while True: print('x' * 1000)") is Excess.OUTPUT
    assert await run("import time; time.sleep(600)", seconds=0.2) is Excess.TIME
    assert await run("pass", b"x" * 5_000_000) == ProcessEnded(0, b""), "it need not read what it is given"
