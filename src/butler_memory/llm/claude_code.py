"""The `claude` CLI, headless: it reads with the login that the user already has.

It runs as nothing but a model: no tools, no MCP servers, no settings, hooks, plugins or CLAUDE.md of anybody, in an
empty directory, keeping no transcript. So it can neither feed the memory itself nor be told anything beside the prompt.
"""

from __future__ import annotations

import json
import logging
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from butler_memory.domain.proposal import Proposal
from butler_memory.llm import reading
from butler_memory.llm.bounded import Ended, Excess, run_bounded
from butler_memory.llm.ports import BackendDown, Bad, BadOutput, Down, Prompt, Reply, Usage
from butler_memory.llm.reading import Fault
from butler_memory.llm.schema import proposal_schema

log = logging.getLogger(__name__)

CLI = "claude"
# Tried with 2.1; docs/decisions/0007-llm-backends.md says what each is for.
_OPTIONS = (
    *("--print", "--output-format", "json", "--max-turns", "1"),
    *("--tools", "", "--disable-slash-commands", "--strict-mcp-config", "--mcp-config", '{"mcpServers":{}}'),
    *("--setting-sources", "", "--no-session-persistence"),
)
_QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "CLAUDE_CODE_DISABLE_THINKING": "1",  # it would use up the output
    "CLAUDE_CODE_MAX_RETRIES": "0",  # the scheduler above knows when to try again
    "BUTLER_MEMORY_TRIGGER_CLASS": "maintenance",  # should any part of us be reached, it writes no episode (E5)
}
# Of the session that may have started us: another one must not answer to its editor, nor know the memory's secrets.
_OF_THE_SESSION = {"CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_SSE_PORT"}
_OUR_PREFIX = "BUTLER_MEMORY_"
_LARGEST_OUTPUT = 16_000_000  # bytes
_ANSWER = "\n\nAnswer with one JSON object that fits this schema, and nothing else:\n"

# How the CLI words what it gives no status for; the first that occurs. Its words are matched here and go no further.
_SAID: tuple[tuple[str, Down | Bad], ...] = (
    ("Prompt is too long", Bad.TOO_LONG),
    ("output token maximum", Bad.TRUNCATED),
    ("content filtering policy", Bad.REFUSED),
    ("Credit balance", Down.SPENT_BUDGET),
    ("/login", Down.NOT_LOGGED_IN),
    ("limit reached", Down.RATE_LIMITED),
    ("hit your limit", Down.RATE_LIMITED),
    ("timed out", Down.TIMEOUT),
    ("Connection", Down.NO_NETWORK),
)
_BY_STATUS: dict[int, Down | Bad] = {
    401: Down.BAD_KEY,
    402: Down.SPENT_BUDGET,
    403: Down.BAD_KEY,
    404: Down.UNKNOWN_MODEL,
    413: Bad.TOO_LONG,
    429: Down.RATE_LIMITED,
}


@dataclass(frozen=True)
class ClaudeCodeModel:
    model: str
    timeout_seconds: float
    max_output_tokens: int
    environ: Mapping[str, str] = field(repr=False)  # the process's: it may hold keys
    key: str = field(default="", repr=False)
    base_url: str = ""

    @property
    def name(self) -> str:
        return f"claude-code:{self.model}"

    async def propose(self, prompt: Prompt) -> Reply:
        cli = shutil.which(CLI, path=self.environ.get("PATH"))
        if not cli:
            raise BackendDown(Down.NO_CLI)
        started = time.perf_counter()
        ended: Ended | Excess | None = None
        with suppress(OSError):  # no program for this machine, or no place for its files
            ended = await self._run(cli, prompt)
        took = Usage(seconds=time.perf_counter() - started)
        if ended is Excess.TIME:
            raise BackendDown(Down.TIMEOUT, took)
        answer = _answer(ended) if isinstance(ended, Ended) else {}
        if not answer:
            log.warning("%s gave no answer that makes sense (%r)", self.name, ended)  # which shows no output
        used = took + _usage(answer)
        judged = _judged(answer)
        match judged:
            case Down():
                raise BackendDown(judged, used)
            case Fault():
                raise BadOutput(judged.reason, used)
        return Reply(judged, used)

    async def close(self) -> None:
        """Nothing is kept between two readings."""

    async def _run(self, cli: str, prompt: Prompt) -> Ended | Excess:
        with TemporaryDirectory(prefix="butler-memory-") as place:
            # In files and on standard input: a command line is for everyone on the machine to read.
            instructions = Path(place) / "instructions"
            instructions.write_text(prompt.instructions + _ANSWER + json.dumps(proposal_schema()), encoding="utf-8")
            empty = Path(place) / "empty"
            empty.mkdir()
            command = [cli, *_OPTIONS, "--model", self.model, "--system-prompt-file", str(instructions)]
            given = prompt.text.encode("utf-8", "replace")
            return await run_bounded(command, self._environment(), empty, given, self.timeout_seconds, _LARGEST_OUTPUT)

    def _environment(self) -> dict[str, str]:
        kept = {
            name: value
            for name, value in self.environ.items()
            if not name.startswith(_OUR_PREFIX) and name not in _OF_THE_SESSION
        }
        if self.base_url:
            kept["ANTHROPIC_BASE_URL"] = self.base_url
        if self.key:
            kept["ANTHROPIC_API_KEY"] = self.key
            kept.pop("ANTHROPIC_AUTH_TOKEN", None)
        return {**kept, **_QUIET, "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(self.max_output_tokens)}


def _answer(ended: Ended) -> dict[str, Any]:
    try:
        answer = json.loads(ended.output)
    except (ValueError, RecursionError):
        return {}
    return answer if isinstance(answer, dict) else {}


def _usage(answer: dict[str, Any]) -> Usage:
    told = answer.get("usage")
    counts = {name: count for name, count in (told if isinstance(told, dict) else {}).items() if isinstance(count, int)}
    read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return Usage(sum(counts.get(name, 0) for name in read), counts.get("output_tokens", 0))


def _judged(answer: dict[str, Any]) -> Proposal | Fault | Down:
    """A proposal, a fault of it, or why there is none."""
    text = answer.get("result")
    if answer.get("stop_reason") == "refusal":
        return Fault(Bad.REFUSED)
    if answer.get("is_error") is not False or not isinstance(text, str):
        reason = _reason(answer.get("api_error_status"), text if isinstance(text, str) else "")
        return Fault(reason) if isinstance(reason, Bad) else reason
    if text.strip() and answer.get("num_turns") != 1:
        # It was cut, and the CLI let it go on by itself: what we see is the last piece.
        return Fault(Bad.TRUNCATED)
    return reading.judge(text)


def _reason(status: object, text: str) -> Down | Bad:
    said = next((reason for phrase, reason in _SAID if phrase in text), None)
    if not isinstance(status, int):
        return said or Down.BROKEN
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:
        return Down.OVERLOADED
    return said or Down.REJECTED
