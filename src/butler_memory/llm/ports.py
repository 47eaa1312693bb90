"""What the rest of the house may ask of a language model, and how it may fail.

Neither failure ever carries content or another program's message, which may quote it (SPEC G7): only a reason from a
closed list. They are raised without a cause, so that a logged traceback shows none either.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, Self

from butler_memory.domain.proposal import Proposal


@dataclass(frozen=True)
class Prompt:
    instructions: str  # for the system's place
    text: str  # for the user's place


@dataclass(frozen=True)
class Usage:
    """What a reading cost, where the wire said it; of several requests, the sum (K7)."""

    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Self:
        return type(self)(
            self.tokens_in + other.tokens_in, self.tokens_out + other.tokens_out, self.seconds + other.seconds
        )


NOTHING_USED = Usage()


@dataclass(frozen=True)
class Reply:
    proposal: Proposal
    usage: Usage


class Down(StrEnum):
    """Why a backend cannot read at the moment."""

    NO_NETWORK = "no_network"
    TIMEOUT = "timeout"
    OVERLOADED = "overloaded"
    RATE_LIMITED = "rate_limited"
    BAD_KEY = "bad_key"
    SPENT_BUDGET = "spent_budget"
    UNKNOWN_MODEL = "unknown_model"
    REJECTED = "rejected"  # it does not take our requests as they are; another model or endpoint may
    NO_CLI = "no_cli"
    NOT_LOGGED_IN = "not_logged_in"
    BROKEN = "broken"  # it answers, but nothing that makes sense


class Bad(StrEnum):
    """What is wrong with what a model said, or with what it was asked to read."""

    NOT_JSON = "not_json"
    SCHEMA = "schema"
    TRUNCATED = "truncated"
    REFUSED = "refused"
    EMPTY = "empty"
    TOO_LONG = "too_long"  # the prompt does not fit the model; a smaller batch may


class ModelFailure(Exception):
    """A reading that gave no proposal."""

    def __init__(self, reason: Down | Bad, usage: Usage = NOTHING_USED) -> None:
        super().__init__(reason.value)
        self.usage = usage


class BackendDown(ModelFailure):
    """The backend's fault: it uses no attempt of the episodes (E2)."""

    def __init__(self, reason: Down, usage: Usage = NOTHING_USED, retry_after: float | None = None) -> None:
        super().__init__(reason, usage)
        self.reason = reason
        self.retry_after = retry_after  # seconds, where the backend asked for them


class BadOutput(ModelFailure):
    """The content's fault: it counts as an attempt of the episodes (E2)."""

    def __init__(self, reason: Bad, usage: Usage = NOTHING_USED) -> None:
        super().__init__(reason, usage)
        self.reason = reason


class Model(Protocol):
    """Reads a prompt and proposes; any number of callers may ask at once."""

    @property
    def name(self) -> str:
        """Backend and model, as runs record it."""

    async def propose(self, prompt: Prompt) -> Reply:
        """Raises BackendDown or BadOutput, and nothing else that is expected."""

    async def close(self) -> None: ...
