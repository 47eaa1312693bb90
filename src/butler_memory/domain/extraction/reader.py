"""From episodes to a proposal: each sentence is judged, then read; what is said twice is proposed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from itertools import islice

from butler_memory.domain.extraction.rules import Rule, rules_in
from butler_memory.domain.extraction.sentences import sentences
from butler_memory.domain.extraction.statements import stated
from butler_memory.domain.extraction.subjects import People
from butler_memory.domain.extraction.transcript import Turn, turns
from butler_memory.domain.extraction.traps import Reach, stated_part, trap_in
from butler_memory.domain.extraction.voices import Claim
from butler_memory.domain.kinds import SourceKind
from butler_memory.domain.predicates import Registry
from butler_memory.domain.proposal import MOST_OF_A_KIND, NewFact, NewRule, Proposal, UpdatedFact
from butler_memory.domain.text import meaning, same_form, subject_key


@dataclass(frozen=True)
class Source:
    """One episode. Relative dates count from when it happened."""

    handle: str
    text: str
    occurred_at: datetime


@dataclass(frozen=True)
class Known:
    """A live fact that the memory already has."""

    handle: str
    subject: str
    predicate: str
    content: str


# An episode of 32 kB has some 500 sentences. Short ones cost as much as long ones: their number bounds the work.
MOST_SENTENCES = 800

_ORDINARY_IMPORTANCE = 5.0
# How much is lost when an agent does not know it: first health, then who somebody is and with whom, then taste.
IMPORTANCE: dict[str, float] = {
    **dict.fromkeys(("allergy", "medical_condition", "medication", "blood_type"), 9.0),
    **dict.fromkeys(("name", "full_name", "preferred_name", "pronouns", "birthday", "dietary_restriction"), 8.0),
    **dict.fromkeys(("spouse", "partner", "child", "parent", "sibling", "home", "employer", "job"), 7.0),
    **dict.fromkeys(("native_language", "language", "timezone", "nationality", "birthplace", "marital_status"), 6.0),
    **dict.fromkeys(("hobby", "interest", "habit", "likes", "dislikes", "owns", "uses", "subscription"), 4.0),
}

_BUILTIN = Registry({})
_Found = Claim | Rule


def extract(episodes: Sequence[Source], known: Sequence[Known] = ()) -> Proposal:
    """What the episodes state outright. The same episodes give the same proposal, in the order of the telling."""
    gathered = _Gathered(known)
    for episode in episodes:
        for found in _read(episode):
            gathered.add(found, episode.handle)
    return gathered.proposal()


def _read(episode: Source) -> list[_Found]:
    """What an episode states, turn by turn, without what is taken back in the end."""
    people, today = People(), episode.occurred_at.date()
    told: list[_Told] = []
    sentences_left = MOST_SENTENCES
    for turn in turns(episode.text):
        said = list(islice(sentences(turn.text), sentences_left))
        sentences_left -= len(said)
        now = _told(turn, said, people, today)
        if now.takes_back:
            before = next((earlier for earlier in reversed(told) if earlier.by == turn.voice), None)
            told = [earlier for earlier in told if earlier is not before]
        told.append(now)
        if now.ends_belief:
            break
    return [found for each in told for found in each.found]


@dataclass
class _Told:
    """What one turn states, and what it does to the others."""

    by: str
    found: list[_Found] = field(default_factory=list)
    takes_back: bool = False
    ends_belief: bool = False


def _told(turn: Turn, said: list[str], people: People, today: date) -> _Told:
    told = _Told(turn.voice)
    for number, sentence in enumerate(said):
        trap = trap_in(sentence)
        if trap is None:
            told.found += _stated_in(turn, sentence, people, today)
        elif trap.reach is Reach.BEFORE:
            told.takes_back |= number == 0
            told.found.clear()
        elif trap.reach is not Reach.SENTENCE:
            told.ends_belief = trap.reach is Reach.REST_OF_EPISODE
            if trap.reach is Reach.TURN:
                told.found.clear()
            break
    return told


def _stated_in(turn: Turn, sentence: str, people: People, today: date) -> list[_Found]:
    if rules := rules_in(turn.voice, sentence):
        return [*rules]
    said = stated_part(sentence.replace('"', ""))
    return list(stated(turn, said, people, today)) if said else []


class _Gathered:
    """What was found so far, each thing once, with the episodes that say it."""

    def __init__(self, known: Sequence[Known]) -> None:
        self._facts: dict[tuple[str, ...], NewFact] = {}
        self._updates: dict[tuple[str, ...], UpdatedFact] = {}
        self._rules: dict[tuple[str, ...], NewRule] = {}
        self._known = known

    def add(self, found: _Found, handle: str) -> None:
        if isinstance(found, Rule):
            self._add_rule(found, handle)
        elif old := self._replaced(found):
            self._add_update(found, old, handle)
        elif not found.only_instead:
            self._add_fact(found, handle)

    def proposal(self) -> Proposal:
        return Proposal(
            new_facts=list(self._facts.values())[:MOST_OF_A_KIND],
            updated_facts=list(self._updates.values())[:MOST_OF_A_KIND],
            new_rules=list(self._rules.values())[:MOST_OF_A_KIND],
        )

    def _replaced(self, claim: Claim) -> Known | None:
        """The known fact that the user says is wrong. A change may be of a kind that only the known fact tells."""
        if not claim.wrong or same_form(claim.wrong) == same_form(claim.content):
            return None
        about = [k for k in self._known if subject_key(k.subject) == subject_key(claim.subject)]
        wrong = [k for k in about if same_form(k.content) == same_form(claim.wrong)]
        same_kind = [k for k in wrong if _BUILTIN.find(k.predicate).name == claim.predicate]
        return next(iter(same_kind or (wrong if claim.only_instead else [])), None)

    def _add_fact(self, claim: Claim, handle: str) -> None:
        key = (subject_key(claim.subject), claim.predicate, same_form(claim.content))
        before = self._facts.get(key)
        stated = claim.source_kind is SourceKind.USER_STATED or (
            before and before.source_kind is SourceKind.USER_STATED
        )
        self._facts[key] = NewFact(
            evidence=_with(before.evidence if before else [], handle),
            subject=before.subject if before else claim.subject,
            predicate=claim.predicate,
            content=before.content if before else claim.content,
            importance=IMPORTANCE.get(claim.predicate, _ORDINARY_IMPORTANCE),
            certainty=max(claim.certainty, before.certainty if before else 0.0),
            source_kind=SourceKind.USER_STATED if stated else SourceKind.AGENT_INFERRED,
        )

    def _add_update(self, claim: Claim, old: Known, handle: str) -> None:
        key = (old.handle,)  # the last word on a fact is what holds
        before = self._updates.pop(key, None)
        same = before is not None and same_form(before.content) == same_form(claim.content)
        self._updates[key] = UpdatedFact(
            evidence=_with(before.evidence if before and same else [], handle),
            fact=old.handle,
            content=claim.content,
            certainty=claim.certainty,
            source_kind=claim.source_kind,
        )

    def _add_rule(self, rule: Rule, handle: str) -> None:
        key = (rule.scope, *meaning(rule.content))
        before = self._rules.get(key)
        self._rules[key] = NewRule(
            evidence=_with(before.evidence if before else [], handle),
            content=before.content if before else rule.content,
            scope=rule.scope,
        )


def _with(evidence: list[str], handle: str) -> list[str]:
    return evidence if handle in evidence else [*evidence, handle][:MOST_OF_A_KIND]
