"""From episodes to a proposal: each sentence is judged, then read; what is said twice is proposed once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime

from butler_memory.domain.extraction.rules import Rule, rule_in
from butler_memory.domain.extraction.sentences import sentences
from butler_memory.domain.extraction.statements import Claim, People, stated
from butler_memory.domain.extraction.transcript import Turn, turns
from butler_memory.domain.extraction.traps import Reach, stated_part, trap_in
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
    people, today = People(), episode.occurred_at.date()
    found: list[_Found] = []
    last_of_user = 0
    for turn in turns(episode.text):
        before = len(found) if turn.voice != "user" else last_of_user
        read = _Turn(turn, people, today)
        goes_on = read.read()
        if read.takes_back_what_was_before:
            del found[before:]
        if turn.voice == "user":
            last_of_user = len(found)
        found += read.found
        if not goes_on:
            break
    return found


@dataclass
class _Turn:
    """One speaker's turn, as it is read."""

    turn: Turn
    people: People
    today: date
    found: list[_Found] = field(default_factory=list)
    takes_back_what_was_before: bool = False

    def read(self) -> bool:
        """Whether what comes after the turn may be believed."""
        for number, sentence in enumerate(sentences(self.turn.text)):
            trap = trap_in(sentence)
            match trap.reach if trap else None:
                case None:
                    self.found += self._in(sentence)
                case Reach.SENTENCE:
                    continue
                case Reach.BEFORE:
                    self.takes_back_what_was_before |= number == 0
                    self.found.clear()
                case Reach.TURN:
                    self.found.clear()
                    return True
                case Reach.REST_OF_TURN:
                    return True
                case Reach.REST_OF_EPISODE:
                    return False
        return True

    def _in(self, sentence: str) -> Iterator[_Found]:
        if rule := rule_in(self.turn.voice, sentence):
            yield rule
        elif said := stated_part(sentence):
            yield from stated(self.turn, said, self.people, self.today)


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
