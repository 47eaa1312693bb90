"""Which texts share the model's next run: plain data and one pure decision, no threads and no model.

A run holds texts of one width only, and a text's width depends on nothing but the text. So its padding, and
with it every bit of its vector, is the same alone and in any company.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from butler_memory.embedding.ports import Vector

# A run of 256 tokens is one text of full length: nothing waits longer for its turn than that takes, and
# measured throughput does not grow beyond it (docs/decisions/0002).
RUN_TOKENS = 256
# Widths are multiples of this. Wider steps let more texts share a run and waste more padding.
WIDTH_STEP = 4
# A bulk is tokenised this many texts at a time, so that 10,000 texts do not keep a single one waiting.
TOKENISE_AT_ONCE = 64

Tokens = list[int]
Tokenise = Callable[[Sequence[str]], list[Tokens]]


@dataclass(frozen=True)
class Item:
    """One tokenised text and the request that wants its vector at `position`."""

    tokens: Tokens
    request: Request
    position: int

    @property
    def width(self) -> int:
        return -(-len(self.tokens) // WIDTH_STEP) * WIDTH_STEP


@dataclass(eq=False)
class Request:
    """One caller's texts on their way to vectors; touched by the worker thread alone once it is queued."""

    texts: Sequence[str]
    future: Future[list[Vector]] = field(default_factory=Future)

    def __post_init__(self) -> None:
        # Neighbours of like length fill a run together; characters stand in for tokens, which are not known.
        by_length = sorted(range(len(self.texts)), key=lambda position: len(self.texts[position]))
        self._untouched = deque(by_length)
        self._ready: dict[int, deque[Item]] = {}
        self._vectors: dict[int, Vector] = {}

    def next_width(self, tokenise: Tokenise) -> int | None:
        """The width this request would run next; None when all its texts are taken."""
        if not self._ready and self._untouched:
            self._tokenise_some(tokenise)
        return next(iter(self._ready), None)

    def take(self, width: int, room: int) -> list[Item]:
        waiting = self._ready.get(width, deque())
        taken = [waiting.popleft() for _ in range(min(room, len(waiting)))]
        if not waiting:
            self._ready.pop(width, None)
        return taken

    def put(self, position: int, vector: Vector) -> None:
        self._vectors[position] = vector
        # set_running...: false when the caller has gone away, and from then on it no longer can.
        if len(self._vectors) == len(self.texts) and self.future.set_running_or_notify_cancel():
            self.future.set_result([self._vectors[index] for index in range(len(self.texts))])

    def fail(self, error: Exception) -> None:
        if not self.future.done() and self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)

    def _tokenise_some(self, tokenise: Tokenise) -> None:
        count = min(TOKENISE_AT_ONCE, len(self._untouched))
        positions = [self._untouched.popleft() for _ in range(count)]
        for position, tokens in zip(positions, tokenise([self.texts[p] for p in positions]), strict=True):
            item = Item(tokens, self, position)
            self._ready.setdefault(item.width, deque()).append(item)


def next_run(requests: deque[Request], tokenise: Tokenise) -> list[Item]:
    """The next run's items; requests take turns to lead, and others of the leader's width ride along.

    Drops from `requests` whoever was cancelled or has nothing left to take, and moves the leader to the end.
    """
    run: list[Item] = []
    width = 0
    for request in list(requests):
        wanted = None if request.future.done() else request.next_width(tokenise)
        if wanted is None:
            requests.remove(request)
            continue
        if not run:
            width = wanted
            requests.remove(request)
            requests.append(request)
        run += request.take(width, RUN_TOKENS // width - len(run))
        if len(run) == RUN_TOKENS // width:
            break
    return run
