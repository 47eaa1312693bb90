"""A proposal with all its handles resolved and its sources checked: what will be tried, in order (K3, K9, F9).

A reader may be mistaken, or may have obeyed what an episode said. So what it claims that the user said must be found
in the user's own words: pages, tools, other people and assistants are not the user, and what stands nowhere was said
by nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from butler_memory.consolidation.batch import Batch, UnknownHandle
from butler_memory.domain.extraction import own_statements
from butler_memory.domain.kinds import ApplicationOutcome, Relation, SourceKind
from butler_memory.domain.proposal import NewFact, NewRule, Proposal, Proposed, RuleOutcome, UpdatedFact
from butler_memory.domain.records import Episode, Fact, Rule
from butler_memory.domain.requests import StoreFact, StoreRule, parse
from butler_memory.domain.text import affirmed, denies, named, stems
from butler_memory.security.principal import GLOBAL

# Of the words of what is proposed, so many must stand in a text for it to be said there.
SAID_SHARE = 0.5
# Of a rule more: a rule is followed. And it may name nobody and nothing that the user did not name.
RULE_SHARE = 0.6
# What the user has not said is never as sure as what they have (F8).
SUREST_INFERENCE = 0.8

# Predicates of what somebody has nothing to do with: "I do not like tea" says that they dislike it.
_DOES_WITHOUT = stems("dislikes hates avoids allergy intolerance restriction diet")
_ROOT = 6  # letters that "allergy" and "allergic" share

NOT_THE_USERS_WORDS = "not_the_users_words"
MARKED_ALREADY = "marked_already"


@dataclass(frozen=True)
class Evidence:
    """The episodes that are said to show something, in order."""

    episodes: tuple[Episode, ...]
    sessions: tuple[UUID, ...]

    @property
    def ids(self) -> tuple[UUID, ...]:
        return tuple(episode.id for episode in self.episodes)

    @property
    def said_at(self) -> datetime:
        return max(episode.occurred_at for episode in self.episodes)

    @property
    def session_id(self) -> UUID | None:
        """The session of the last of them, where it has a name."""
        return self.episodes[-1].session_id


@dataclass(frozen=True)
class PlannedFact:
    request: StoreFact
    evidence: Evidence
    replaces: Fact | None = None


@dataclass(frozen=True)
class PlannedRule:
    request: StoreRule
    scope: str
    evidence: Evidence
    refused: str = ""


@dataclass(frozen=True)
class PlannedConfirmation:
    memory: Fact | Rule
    evidence: Evidence
    refused: str = ""


@dataclass(frozen=True)
class PlannedLink:
    first: Fact | Rule
    second: Fact | Rule
    relation: Relation
    evidence: Evidence
    refused: str = ""


@dataclass(frozen=True)
class PlannedMark:
    rule: Rule
    outcome: ApplicationOutcome
    reason: str | None
    session: UUID
    evidence: Evidence
    refused: str = ""


Planned = PlannedFact | PlannedRule | PlannedConfirmation | PlannedLink | PlannedMark


def plan(batch: Batch, proposal: Proposal) -> list[Planned]:
    """Corrections first, so that what takes their place is known; raises UnknownHandle."""
    checked = _Checker(batch)
    return [
        *map(checked.updated, proposal.updated_facts),
        *map(checked.new, proposal.new_facts),
        *map(checked.rule, proposal.new_rules),
        *(PlannedConfirmation(memory, evidence, why) for memory, evidence, why in map(checked.confirmed,
          proposal.confirmations)),
        *(checked.link(pair, Relation.CONTRADICTS) for pair in proposal.contradictions),
        *(checked.link(pair, Relation.SUPPORTS) for pair in proposal.supports),
        *(mark for outcome in proposal.outcomes for mark in checked.marks(outcome)),
    ]  # fmt: skip


class _Checker:
    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        clauses = {e.id: own_statements(e.content or "") for e in batch.episodes}
        self._own = {episode: [stems(clause) for clause in said] for episode, said in clauses.items()}
        self._affirmed = {episode: [stems(affirmed(clause)) for clause in said] for episode, said in clauses.items()}
        self._all = {episode.id: stems(episode.content or "") for episode in batch.episodes}

    def new(self, proposed: NewFact) -> PlannedFact:
        evidence = self._evidence(proposed)
        source = self._source(proposed, proposed.predicate, evidence)
        request = _request(StoreFact, proposed, evidence, self._scope(proposed.scope), subject=proposed.subject,
                           predicate=proposed.predicate, tags=proposed.tags, importance=proposed.importance,
                           source_kind=source, confidence=_certainty(proposed, source),
                           permanence=proposed.permanence)  # fmt: skip
        return PlannedFact(request, evidence)

    def updated(self, proposed: UpdatedFact) -> PlannedFact:
        evidence, old = self._evidence(proposed), self._batch.fact(proposed.fact)
        source = self._source(proposed, "", evidence)  # which retires something: said outright, or not at all
        request = _request(StoreFact, proposed, evidence, old.scope, subject=old.subject, predicate=old.predicate,
                           importance=proposed.importance, source_kind=source,
                           confidence=_certainty(proposed, source), permanence=proposed.permanence)  # fmt: skip
        return PlannedFact(request, evidence, replaces=old)

    def rule(self, proposed: NewRule) -> PlannedRule:
        """Only where the user said it (K9)."""
        evidence = self._evidence(proposed)
        scope = self._scope(proposed.scope)
        request = _request(StoreRule, proposed, evidence, scope, tags=proposed.tags)
        said = any(self._gives_rule(proposed.content, episode) for episode in evidence.episodes)
        return PlannedRule(request, scope, evidence, "" if said else NOT_THE_USERS_WORDS)

    def confirmed(self, proposed: Any) -> tuple[Fact | Rule, Evidence, str]:
        """The user said it again: all of it, in a session that was shown it (F9)."""
        evidence, memory = self._evidence(proposed), self._batch.memory(proposed.memory)
        said = any(self._says_again(memory, episode) for episode in evidence.episodes)
        return memory, evidence, "" if said else NOT_THE_USERS_WORDS

    def _says_again(self, memory: Fact | Rule, episode: Episode) -> bool:
        if isinstance(memory, Rule):
            return self._gives_rule(memory.content or "", episode)
        was_shown = memory.id in self._batch.served.get(self._session(episode), set())
        return self._says(memory.line if was_shown else memory.content or "", memory.line, episode)

    def link(self, pair: Any, relation: Relation) -> PlannedLink:
        first, second = self._batch.memory(pair.first), self._batch.memory(pair.second)
        if first.id == second.id:
            raise UnknownHandle
        evidence = self._evidence(pair)
        said = any(self._mentions(memory, episode) for memory in (first, second) for episode in evidence.episodes)
        return PlannedLink(first, second, relation, evidence, "" if said else NOT_THE_USERS_WORDS)

    def _mentions(self, memory: Fact | Rule, episode: Episode) -> bool:
        """To deny a memory is to speak of it, too."""
        return _share(stems(memory.content or ""), _all_of(self._own[episode.id])) >= SAID_SHARE

    def marks(self, outcome: RuleOutcome) -> list[PlannedMark]:
        """One for each session that was served the rule and has not marked it itself (R6)."""
        evidence, rule = self._evidence(outcome), self._batch.rule(outcome.rule)
        foreign = self._is_foreign(outcome.reason or "", evidence, harmful=outcome.outcome == "harmful")
        return [
            PlannedMark(rule, outcome.outcome, outcome.reason, session, evidence,
                        self._why_no_mark(session, rule, outcome.reason, foreign))
            for session in dict.fromkeys(evidence.sessions)
        ]  # fmt: skip

    def _why_no_mark(self, session: UUID, rule: Rule, reason: str | None, foreign: bool) -> str:
        if rule.id not in self._batch.served.get(session, set()):
            return "not_served"
        if (session, rule.id) in self._batch.marked:
            return MARKED_ALREADY
        if not reason:
            return "no_reason"
        return NOT_THE_USERS_WORDS if foreign else ""

    def _evidence(self, proposed: Proposed) -> Evidence:
        named = dict.fromkeys(self._batch.episode(handle).id for handle in proposed.evidence)
        episodes = tuple(episode for episode in self._batch.episodes if episode.id in named)
        return Evidence(episodes, tuple(self._session(episode) for episode in episodes))

    def _session(self, episode: Episode) -> UUID:
        return self._batch.sessions.get(episode.id) or episode.session_id or episode.id

    def _scope(self, scope: str) -> str:
        return GLOBAL if scope == GLOBAL else self._batch.butler

    def _source(self, proposed: NewFact | UpdatedFact, predicate: str, evidence: Evidence) -> SourceKind:
        claimed = proposed.source_kind is SourceKind.USER_STATED
        fact = f"{predicate} {proposed.content}"
        stated = claimed and any(self._says(proposed.content, fact, episode) for episode in evidence.episodes)
        return SourceKind.USER_STATED if stated else SourceKind.AGENT_INFERRED

    def _says(self, content: str, fact: str, episode: Episode) -> bool:
        """The user says it there, in these words or nearly, and not that it is otherwise: "I do not live in Berlin"
        has all the words of a fact about Berlin. A fact that itself denies something may be said by denying it, and an
        allergy by "no nuts", but not by "not allergic"."""
        meant = stems(fact.replace("_", " "))
        own, without = self._own[episode.id], _roots(meant & _DOES_WITHOUT)
        if without:
            own = [said for said in own if not denies(said) or without.isdisjoint(_roots(said))]
        elif not denies(meant):
            own = self._affirmed[episode.id]
        return _share(stems(content), _all_of(own)) >= SAID_SHARE

    def _gives_rule(self, content: str, episode: Episode) -> bool:
        """As it was given: "do not forward it" has all the words of "forward it", and does not say so."""
        wanted = stems(content)
        alike = _all_of([said for said in self._own[episode.id] if denies(wanted) or not denies(said)])
        return named(content) <= alike and _share(wanted, alike) >= RULE_SHARE

    def _is_foreign(self, text: str, evidence: Evidence, *, harmful: bool) -> bool:
        """Its words stand in the episodes, but not in what the user says there. What takes trust from a rule must stand
        in the user's own words: a page in another language complains in words that stand nowhere."""
        wanted = stems(text)
        own = max(_share(wanted, _all_of(self._own[episode.id])) for episode in evidence.episodes)
        anywhere = max(_share(wanted, self._all[episode.id]) for episode in evidence.episodes)
        return own < SAID_SHARE and (harmful or anywhere >= SAID_SHARE)


def _all_of(said: Sequence[frozenset[str]]) -> frozenset[str]:
    return frozenset[str]().union(*said)


def _roots(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word[:_ROOT] for word in words)


def _share(wanted: frozenset[str], there: frozenset[str]) -> float:
    return len(wanted & there) / len(wanted) if wanted else 0.0


def _certainty(proposed: NewFact | UpdatedFact, source: SourceKind) -> float:
    inferred = source is SourceKind.AGENT_INFERRED
    return min(proposed.certainty, SUREST_INFERENCE) if inferred else proposed.certainty


def _request(model: Any, proposed: Any, evidence: Evidence, scope: str, **more: Any) -> Any:
    session = evidence.session_id
    lineage = {"session_id": str(session)} if session else {}
    given = {"content": proposed.content, "scope": scope, "request_context": lineage, **more}
    return parse(model, given)
