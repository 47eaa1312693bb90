"""What a reader of episodes proposes (K3): checked completely before anything of it is written.

Memories and episodes are named as the reader was shown them: by a short handle (`E2`, `F7`, `R1`) or by their id.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from butler_memory.domain.kinds import ApplicationOutcome, Permanence, SourceKind
from butler_memory.domain.requests import Confidence, Content, Importance, Name, Reason, Tags

# A reader that proposes more than this of one kind is not reading but inventing.
MOST_OF_A_KIND = 200

Handle = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=40)]
Evidence = Annotated[list[Handle], Field(min_length=1, max_length=MOST_OF_A_KIND)]
# `butler`: the one whose episodes these are.
Scope = Annotated[str, StringConstraints(pattern=r"^(global|butler)$")]


def _stated_or_inferred(kind: object) -> object:
    return SourceKind.AGENT_INFERRED if kind is None else kind


Source = Annotated[SourceKind, BeforeValidator(_stated_or_inferred)]


class Proposed(BaseModel):
    """Something with the episodes that are evidence for it."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    evidence: Evidence


class NewFact(Proposed):
    subject: Name
    predicate: Name
    content: Content
    permanence: Permanence | None = None
    importance: Importance = 5.0
    certainty: Confidence = 0.8
    tags: Tags = []
    scope: Scope = "global"
    source_kind: Source = SourceKind.AGENT_INFERRED


class UpdatedFact(Proposed):
    """A known fact that holds no more, and what holds instead."""

    fact: Handle
    content: Content
    permanence: Permanence | None = None
    importance: Importance | None = None
    certainty: Confidence = 0.8
    source_kind: Source = SourceKind.AGENT_INFERRED


class NewRule(Proposed):
    content: Content
    tags: Tags = []
    scope: Scope = "butler"


class Confirmation(Proposed):
    memory: Handle


class Pair(Proposed):
    """Two known memories that contradict, or of which the first supports the second."""

    first: Handle
    second: Handle


class RuleOutcome(Proposed):
    """How it went to follow a rule that the session was served."""

    rule: Handle
    outcome: ApplicationOutcome
    reason: Reason | None = None


class Proposal(BaseModel):
    """All that one reading of a batch found. Nothing at all is a good answer."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    new_facts: Annotated[list[NewFact], Field(max_length=MOST_OF_A_KIND)] = []
    updated_facts: Annotated[list[UpdatedFact], Field(max_length=MOST_OF_A_KIND)] = []
    new_rules: Annotated[list[NewRule], Field(max_length=MOST_OF_A_KIND)] = []
    confirmations: Annotated[list[Confirmation], Field(max_length=MOST_OF_A_KIND)] = []
    contradictions: Annotated[list[Pair], Field(max_length=MOST_OF_A_KIND)] = []
    supports: Annotated[list[Pair], Field(max_length=MOST_OF_A_KIND)] = []
    outcomes: Annotated[list[RuleOutcome], Field(max_length=MOST_OF_A_KIND)] = []
