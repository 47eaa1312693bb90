"""Limits of processor time that hold on a slower or busier machine too.

Processor time alone is not enough: two processes on the two threads of one core slow each other down, and it goes up
for both. So a fixed piece of work is timed before and after, and the limit grows as that does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

# What the work takes on the idle machine on which the limits were set.
_REFERENCE_SECONDS = 0.0165
_TEXT = " ".join(f"word{n} Other-{n}, and 'more' of it." for n in range(400))
_PATTERN = re.compile(r"\b(?:o|w)[\w-]+(?=,? (?:and|of)\b)")


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is done inside takes no longer, on the machine of the reference."""
    slowness = _slowness()
    began = time.process_time()
    yield
    took = time.process_time() - began
    assert took < seconds * max(slowness, _slowness())


def _slowness() -> float:
    """Never less than one: a limit is no tighter on a fast machine."""
    began = time.process_time()
    for _ in range(30):
        _PATTERN.sub(lambda match: match[0].lower(), _TEXT)
        assert {word.strip(",.'"): len(word) for word in _TEXT.split()}
    return max(1.0, (time.process_time() - began) / _REFERENCE_SECONDS)
