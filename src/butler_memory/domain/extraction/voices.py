"""Whose words a sentence is in, and how sure that makes what it says."""

from __future__ import annotations

import re
from dataclasses import dataclass

from butler_memory.domain.extraction.transcript import Turn
from butler_memory.domain.kinds import SourceKind

USER = "user"
CERTAIN, TOLD, OBSERVED, BELIEVED = 1.0, 0.9, 0.8, 0.6


@dataclass(frozen=True)
class Claim:
    subject: str
    predicate: str
    content: str
    certainty: float
    source_kind: SourceKind
    wrong: str = ""  # what it is said to be instead of
    denied: bool = False
    only_instead: bool = False  # says too little alone: taken only where `wrong` is known


@dataclass(frozen=True)
class Voice:
    """How to hear a sentence: who "I" is, who "he" is, and how sure to be."""

    me: str
    he: str
    certainty: float
    source_kind: SourceKind


_REPORT = re.compile(
    r"^(?:(?:the )?user|User) (?:also |has |explicitly |just )*(?:said|says|stated|states|mentioned|mentions|told "
    r"(?:me|us)|confirmed|noted|shared|explained|revealed|reported|clarified|added|disclosed|corrected(?: me| this| "
    r"that)?)(?: to me| to us)?[,:]?(?: that)? (?P<what>.+)",
    re.IGNORECASE,
)
_GERUND = {"being": "is", "having": "has", "living": "lives", "working": "works", "liking": "likes", "owning": "owns"}
_MY = re.compile(r"\b(?:my|our)\b", re.IGNORECASE)


def heard(turn: Turn, sentence: str) -> tuple[Voice, str]:
    if turn.voice == "user":
        return Voice(USER, "", CERTAIN, SourceKind.USER_STATED), sentence
    if turn.voice == "other":
        return Voice(turn.name, "", OBSERVED, SourceKind.AGENT_INFERRED), sentence
    report = _REPORT.match(sentence)
    if report is None:
        return Voice("", "", OBSERVED, SourceKind.AGENT_INFERRED), sentence
    first, _, rest = report["what"].partition(" ")
    told = f"User {_GERUND[first]} {rest}" if first in _GERUND else report["what"]
    return Voice("", USER, TOLD, SourceKind.USER_STATED), told


def claim_of(voice: Voice, subject: str, predicate: str, content: str) -> Claim:
    """What was said, so that others can read it: "my" parents are somebody's."""
    seen_by_others = _MY.sub("their", content) if voice.me else content
    return Claim(subject, predicate, seen_by_others, voice.certainty, voice.source_kind)
