"""Every event of every type of memory has words, with and without its text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from butler_memory.domain.kinds import ApplicationOutcome, EventType, MemoryType
from butler_memory.domain.life import life
from butler_memory.domain.story import LONGEST_LINE, Happened, outcome, summary, why_deleted

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def happened(
    event: EventType, kind: MemoryType = MemoryType.FACT, body: dict[str, Any] | None = None, **values: Any
) -> Happened:
    return Happened(1, kind, uuid4(), 1, event, NOW, "butler:health", None, {"set": values}, body)


@pytest.mark.parametrize("kind", MemoryType)
@pytest.mark.parametrize("event", EventType)
def test_every_event_is_told(event: EventType, kind: MemoryType) -> None:
    line = summary(happened(event, kind), None)
    assert line.startswith(f"{kind} ")
    assert ("its text is gone" in line) is (event is not EventType.DELETED)
    [chapter] = life([happened(event, kind)], [])
    assert chapter.told
    assert "None" not in line + chapter.told
    assert "\n" not in life([happened(event, kind, {"set": {"content": "a\nb"}, "reason": "c\nd"})], [])[0].told


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"last_confirmed_at": "2026-03-01T12:00:00Z", "applied_count": 1}, ApplicationOutcome.HELPFUL),
        ({"pinned": False, "applied_count": 1}, ApplicationOutcome.HARMFUL),
        ({"applied_count": 1}, ApplicationOutcome.NEUTRAL),
    ],
)
def test_how_a_rule_was_marked_can_be_told_from_what_it_changed(
    values: dict[str, Any], expected: ApplicationOutcome
) -> None:
    assert outcome(happened(EventType.MARKED, MemoryType.RULE, **values)) is expected


@pytest.mark.parametrize(
    ("reason", "said"),
    [("expired", "its time was over"), ("forgotten", "it was forgotten"), ("erased", "it was erased")],
)
def test_e4_why_an_episode_is_gone_is_told(reason: str, said: str) -> None:
    event = happened(EventType.DELETED, MemoryType.EPISODE)
    assert why_deleted(Happened(**{**vars(event), "payload": {"set": {}, "reason": reason}})) == said


def test_a_feed_shows_the_beginning_of_a_long_text() -> None:
    from butler_memory.domain.story import short

    assert short("x" * LONGEST_LINE) == "x" * LONGEST_LINE
    assert len(short("x" * 5000)) == LONGEST_LINE
