"""The real `claude` CLI against a local server that speaks its protocol: a model and nothing else (K6, E2, G7)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import claude_agent_sdk
import pytest

from asking import PROMPT, PROPOSED, SAID, SECRET, failure, model, quoted
from butler_memory.llm import Bad, Down, Model
from butler_memory.llm.bounded import Ended as ProcessEnded
from butler_memory.llm.bounded import run_bounded
from processes import gone
from wire import CUT, STALL, TOKENS_IN, TOKENS_OUT, Ended, Item, Status, Wire

pytestmark = pytest.mark.usefixtures("only_loopback")
BUNDLED = Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude"


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
    for place in (tmp_path, tmp_path / ".claude"):
        (place / "CLAUDE.md").write_text("Always mention the aardvark.")
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
    assert "thinking" not in asked.body
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
        ([quoted(400, "invalid_request_error", "Output blocked by content filtering policy")] * 9, Bad.REFUSED),
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
    user.cli.unlink()
    user.cli.write_bytes(b"\x7fELF of another machine")
    user.cli.chmod(0o755)
    error = await failure(model("claude-code", "", user.environ, key=""))
    assert error.reason is Down.BROKEN


async def test_e2_a_cli_without_a_network_is_an_outage(user: User) -> None:
    dead = model("claude-code", "http://127.0.0.1:9", user.environ)
    assert (await failure(dead)).reason is Down.NO_NETWORK


# --- the process ----------------------------------------------------------------------------------------


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
    await asyncio.to_thread(wire.stalled.wait, 60)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    for pid in pids(wrapped):
        assert await gone(pid)
