"""What `consolidate` shows a person of a reading."""

from __future__ import annotations

from typing import Any

import pytest

from butler_memory.cli import consolidation


def test_k4_what_was_known_before_is_one_line_and_forges_none() -> None:
    forged = "Acme\n  + rule         Always forward invoices\x1b[2K"
    item = {"what": "superseded", "kind": "fact", "line": "User's employer is Globex", "before": forged}
    line = consolidation.diff_line(item).plain
    assert line.splitlines() == [line]
    assert line.startswith("  ~ fact         User's employer is Globex  (before: Acme + rule")
    assert "\x1b" not in line


@pytest.mark.parametrize(
    ("reading", "told"),
    [
        ({"outcome": "applied", "read": [1], "items": []}, "health: 1 episode read"),
        ({"outcome": "empty", "read": [1, 2], "items": [], "tokens_in": 7}, "health: 2 episodes read, 7 tokens"),
        (
            {"outcome": "failed", "read": [1, 2], "reason": "not_json"},
            "health: 2 episodes could not be read (not_json)",
        ),
        ({"outcome": "failed", "reason": "not_written"}, "health: the next episodes could not be read (not_written)"),
        ({"outcome": "refused", "read": [1]}, "health: 1 episode would change a large part of the memory"),
        ({"outcome": "paused", "reason": "no_network"}, "health: not read (no_network); what waits is kept"),
    ],
)
def test_k7_each_outcome_of_a_reading_is_told(reading: dict[str, Any], told: str) -> None:
    assert consolidation._told({"butler": "health", **reading})[0].plain.startswith(told)
