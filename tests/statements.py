"""The labelled statements of `tests/data`: what is written there, and how what was read compares with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from butler_memory.domain.extraction import Known, Source, extract
from butler_memory.domain.predicates import Registry
from butler_memory.domain.proposal import Proposal
from butler_memory.domain.text import same_form, subject_key

DATA = Path(__file__).parent / "data"
WHEN = datetime(2026, 4, 15, 9, tzinfo=UTC)
_KNOWN = re.compile(r"^\[(F\d+) ([^|\]]+)\|([^|\]]+)\|([^\]]+)\] ")
_BUILTIN = Registry({})

Item = tuple[str, ...]


@dataclass(frozen=True)
class Labelled:
    section: str
    text: str
    known: tuple[Known, ...]
    expected: frozenset[Item]

    @property
    def is_trap(self) -> bool:
        return not self.expected

    def found(self) -> frozenset[Item]:
        return items(extract([Source("E1", self.text, WHEN)], self.known))


@dataclass(frozen=True)
class Score:
    right: int
    proposed: int
    wanted: int

    @property
    def precision(self) -> float:
        return self.right / self.proposed if self.proposed else 1.0

    @property
    def recall(self) -> float:
        return self.right / self.wanted if self.wanted else 1.0

    def __str__(self) -> str:
        return (
            f"precision {self.precision:.3f} ({self.right} of {self.proposed} proposed), "
            f"recall {self.recall:.3f} ({self.right} of {self.wanted} wanted)"
        )


def labelled(name: str) -> list[Labelled]:
    return list(_entries((DATA / name).read_text(encoding="utf-8").splitlines()))


def score(entries: list[Labelled]) -> Score:
    pairs = [(entry.expected, entry.found()) for entry in entries]
    return Score(
        sum(len(wanted & found) for wanted, found in pairs),
        sum(len(found) for _, found in pairs),
        sum(len(wanted) for wanted, _ in pairs),
    )


def items(proposal: Proposal) -> frozenset[Item]:
    """Each thing that was proposed, in the form in which two of them are the same."""
    facts = (_fact(f.subject, f.predicate, f.content) for f in proposal.new_facts)
    updates = ((u.fact, same_form(u.content)) for u in proposal.updated_facts)
    rules = (("rule*" if r.scope == "global" else "rule", same_form(r.content)) for r in proposal.new_rules)
    return frozenset([*facts, *updates, *rules])


def _entries(lines: list[str]) -> Iterator[Labelled]:
    section = ""
    for line in lines:
        if line.startswith(("# ", "#\n")) or line in ("#", ""):
            section = line.removeprefix("# --- ") if line.startswith("# --- ") else section
            continue
        text, _, label = line.rpartition(" => ")
        known = _KNOWN.match(text)
        yield Labelled(
            section,
            (text[known.end() :] if known else text).replace("⏎", "\n"),
            (Known(*(part.strip() for part in known.groups())),) if known else (),
            frozenset() if label == "nothing" else frozenset(_item(part) for part in label.split(" & ")),
        )


def _item(label: str) -> Item:
    if " := " in label:
        handle, _, content = label.partition(" := ")
        return handle.strip(), same_form(content)
    kind, *rest = (part.strip() for part in label.split(" | "))
    return _fact(kind, *rest) if len(rest) == 2 else (kind, same_form(rest[0]))


def _fact(subject: str, predicate: str, content: str) -> Item:
    return subject_key(subject), _BUILTIN.find(predicate).name, same_form(content)
