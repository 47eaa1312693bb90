"""How well a memory fits a question: relevance, the floor under it, and the composite above it (S1, S2, S9, S10)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from math import inf, nextafter
from typing import Any
from uuid import UUID

from butler_memory.domain.clock import days_between
from butler_memory.domain.kinds import USER_KINDS, Maturity, MemoryType, Permanence
from butler_memory.domain.predicates import Registry
from butler_memory.domain.text import stems, subject_key
from butler_memory.settings import FloorSettings, ScoreWeights

RECENCY_HALF_LIFE_DAYS = 30.0
IMPORTANCE_SCALE = 10.0

# What a rule's standing adds to or takes from its score (R7).
MATURITY_WEIGHT = {
    Maturity.CANDIDATE: 0.8,
    Maturity.ESTABLISHED: 1.0,
    Maturity.PROVEN: 1.15,
    Maturity.ANTI_PATTERN: 1.0,
}
# In what order rules are served: what has proved itself, then what must not be done again (C2).
TRUST_ORDER = (Maturity.PROVEN, Maturity.ANTI_PATTERN, Maturity.ESTABLISHED, Maturity.CANDIDATE)

CORE_IMPORTANCE = 8.0
# A question that calls a memory by its name is about it, however much else it says.
NAMED_COVERS = 0.5
# Cosine without a shared word must be that much over the floor. Of unrelated pairs 1 to 2 % reach .35 (decision 0006).
MEANING_ALONE_COSTS = 0.1
# Cosine that alone is over the default floor.
CLEARLY_NEAR = FloorSettings().relevance + MEANING_ALONE_COSTS


class Fusion(StrEnum):
    CONVEX = "convex"
    RRF = "rrf"


@dataclass(frozen=True)
class Recipe:
    """How the two signals become one; chosen by benchmark, on record in docs/decisions."""

    fusion: Fusion = Fusion.CONVEX
    k: int = 60
    dense_share: float = 0.5
    mean_shift: float = 0.5
    neighbours: float = 0.1
    cited: float = 0.4


@dataclass(frozen=True)
class Candidate:
    """A row with everything that ranking and rendering need."""

    type: MemoryType
    id: UUID
    created_at: datetime
    fused: float
    cosine: float | None
    lexical: float
    coverage: float | None
    dense_rank: int | None
    lexical_rank: int | None
    effective_confidence: float
    last_referenced_at: datetime | None
    row: dict[str, Any]
    named: float = 0.0

    @property
    def absolute(self) -> float:
        """The one signal that can be compared between questions: mean of cosine and covered IDF (S10).

        A question of stop words has no IDF to cover, a missing model no cosine: then the other one speaks alone.
        And what is clearly near in meaning may share no word at all.
        """
        covered = None if self.coverage is None else max(self.coverage, NAMED_COVERS * self.named)
        given = [max(0.0, signal) for signal in (self.cosine, covered) if signal is not None]
        mean = sum(given) / len(given) if given else 0.0
        return max(mean, (self.cosine or 0.0) - MEANING_ALONE_COSTS)

    @property
    def names(self) -> list[frozenset[str]]:
        """What a question may call this memory by: its tags, whom it is about, and a predicate of somebody's own.

        The built-in predicates are words of every day: "I would like to" does not ask for what somebody likes.
        """
        subject, predicate = self.row["subject"] or "", self.row["predicate"] or ""
        own = [name for name, usual in ((subject, is_user(subject)), (predicate, is_usual(predicate))) if not usual]
        return [words for name in (*self.row["tags"], *own) if (words := name_words(name))]

    @property
    def is_core(self) -> bool:
        """What every session should know: lasting and important facts, proven rules for all (C9)."""
        if self.type is MemoryType.RULE:
            return self.maturity is Maturity.PROVEN and self.row["scope"] == "global"
        lasting = self.row["permanence"] == Permanence.PERMANENT
        return self.type is MemoryType.FACT and lasting and self.row["importance"] >= CORE_IMPORTANCE

    @property
    def is_contested(self) -> bool:
        return self.type is MemoryType.FACT and bool(self.row.get("contested"))

    @property
    def is_users_word(self) -> bool:
        return self.row["source_kind"] in USER_KINDS

    @property
    def about(self) -> tuple[str, str, str]:
        """What a fact is an answer to."""
        return (self.row["scope"], subject_key(self.row["subject"]), Registry({}).find(self.row["predicate"]).name)

    @property
    def maturity(self) -> Maturity | None:
        return Maturity(self.row["maturity"]) if self.row.get("maturity") else None


@dataclass(frozen=True)
class Scored:
    candidate: Candidate
    score: float
    signals: dict[str, float]


def recency(last_referenced_at: datetime | None, created_at: datetime, now: datetime) -> float:
    """Halves every 30 days since it was last of use; a new memory counts from its making."""
    return float(2.0 ** (-days_between(last_referenced_at or created_at, now) / RECENCY_HALF_LIFE_DAYS))


def with_names(candidates: list[Candidate], question: str) -> list[Candidate]:
    """Marks the memories that the question names; a name that many share says little about each."""
    words = stems(question)
    names = [frozenset(candidate.names) for candidate in candidates]
    sharers = Counter(name for own in names for name in own)

    def named(own: frozenset[frozenset[str]]) -> float:
        return max((1 / sharers[name] for name in own if name <= words), default=0.0)

    return [replace(candidate, named=named(own)) for candidate, own in zip(candidates, names, strict=True)]


@lru_cache(maxsize=16_384)
def name_words(name: str) -> frozenset[str]:
    return stems(name.replace("_", " ").replace("-", " "))


def is_user(subject: str) -> bool:
    return not subject or subject_key(subject) == "user"


@lru_cache(maxsize=4096)
def is_usual(predicate: str) -> bool:
    return not predicate or Registry({}).find(predicate).builtin


def above_floor(candidates: list[Candidate], floor: FloorSettings) -> list[Candidate]:
    """Silence is better than noise: an absolute bar, and one relative to the best (S10)."""
    if not candidates:
        return []
    best = max(candidate.absolute for candidate in candidates)
    bar = max(floor.relevance, floor.of_best * best)
    return [candidate for candidate in candidates if candidate.absolute >= bar]


def by_composite(
    candidates: list[Candidate], weights: ScoreWeights, now: datetime, *, scale: list[Candidate] | None = None
) -> list[Scored]:
    """The contract's formula inside the gate; relevance is the fused score, min-max over the gate (S2, S9).

    `scale` names the gate where the candidates hold more than it: core memory comes in from outside.
    """
    gate = [candidate.fused for candidate in scale or candidates]
    if not gate:
        return []
    low, high = min(gate), max(gate)

    def relevance(fused: float) -> float:
        return min(1.0, max(0.0, (fused - low) / (high - low))) if high > low else float(fused >= low)

    return in_order([_scored(c, relevance(c.fused), weights, now) for c in candidates])


def in_order(scored: list[Scored]) -> list[Scored]:
    """Score, then the newer one, then the id: never by chance (S6)."""
    by_rank = [_below_what_it_contests(each, scored) for each in scored]
    return sorted(by_rank, key=lambda s: (-s.score, -s.candidate.created_at.timestamp(), s.candidate.id))


def _below_what_it_contests(claim: Scored, among: list[Scored]) -> Scored:
    """What was only inferred never stands above what the user said otherwise, however well its words fit (F8)."""
    if not claim.candidate.is_contested or claim.candidate.is_users_word:
        return claim
    about = claim.candidate.about
    stated = [s.score for s in among if s.candidate.is_contested and s.candidate.is_users_word
              and s.candidate.about == about]  # fmt: skip
    return replace(claim, score=nextafter(min(stated), -inf)) if stated and min(stated) <= claim.score else claim


def in_order_of_trust(scored: list[Scored]) -> list[Scored]:
    """Rules by maturity, and in the order given within each; other memories stay as they are."""
    return sorted(scored, key=lambda s: TRUST_ORDER.index(s.candidate.maturity) if s.candidate.maturity else 0)


def _scored(candidate: Candidate, relevance: float, weights: ScoreWeights, now: datetime) -> Scored:
    signals = {
        "relevance": relevance,
        "importance": candidate.row["importance"] / IMPORTANCE_SCALE,
        "recency": recency(candidate.last_referenced_at, candidate.created_at, now),
        "confidence": candidate.effective_confidence,
    }
    score = sum(getattr(weights, name) * value for name, value in signals.items())
    if candidate.maturity:
        score *= MATURITY_WEIGHT[candidate.maturity]
    return Scored(candidate, score, signals)
