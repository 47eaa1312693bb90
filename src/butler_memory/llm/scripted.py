"""A model that says what it was told to, for tests and demos: nobody pays for it, and it needs no network."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from butler_memory.domain.proposal import Proposal
from butler_memory.llm import reading
from butler_memory.llm.ports import BadOutput, Prompt, Reply, Usage

# A proposal, one as its JSON would be, raw text, a failure to raise, or what makes one of these of the prompt.
Line = Proposal | dict[str, Any] | str | Exception | Callable[[Prompt], Any]


class ScriptedModel:
    """Says its lines in order; a callable alone is asked again and again. `prompts` is what it was asked."""

    name = "scripted"

    def __init__(self, lines: Iterable[Line] | Callable[[Prompt], Any] = (), usage: Usage | None = None) -> None:
        self.prompts: list[Prompt] = []
        self.closed = False
        self._always = lines if callable(lines) else None
        self._lines = [] if callable(lines) else list(lines)
        self._usage = usage or Usage(tokens_in=100, tokens_out=20, seconds=0.0)

    def says(self, *lines: Line) -> None:
        self._lines.extend(lines)

    async def propose(self, prompt: Prompt) -> Reply:
        self.prompts.append(prompt)
        line = self._lines.pop(0) if self._lines else self._always
        if line is None:
            raise AssertionError("The scripted model was asked more often than it has lines.")
        said = line(prompt) if callable(line) else line
        if isinstance(said, Exception):
            raise said
        return Reply(self._read(said), self._usage)

    async def close(self) -> None:
        self.closed = True

    def _read(self, said: Proposal | dict[str, Any] | str) -> Proposal:
        if isinstance(said, Proposal):
            return said
        judged = reading.judge(said) if isinstance(said, str) else reading.judge_value(said)
        if isinstance(judged, Proposal):
            return judged
        raise BadOutput(judged.reason, self._usage)
