"""What one sentence states, clause by clause. Only a clause that begins with its subject is read at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date

from butler_memory.domain.extraction import vocabulary as words
from butler_memory.domain.extraction.assertions import claims_about, denied_verb, kin_in
from butler_memory.domain.extraction.plans import noted_event
from butler_memory.domain.extraction.sentences import LEAD, clauses
from butler_memory.domain.extraction.subjects import GOES_ON, Found, People, subject_of
from butler_memory.domain.extraction.transcript import Turn
from butler_memory.domain.extraction.traps import CONDITION
from butler_memory.domain.extraction.values import LONGEST_VALUE, person
from butler_memory.domain.extraction.voices import BELIEVED, USER, Claim, Voice, claim_of, heard
from butler_memory.domain.text import subject_key

_BELIEF = re.compile(
    r"^(?:I|he|she|they|(?:the )?user) (?:thinks?|believes?)(?: that)? |^probably |^I am pretty sure(?: that)? ", re.I
)
_OWN_BELIEF = re.compile(_BELIEF.pattern.replace("|he|she|they", ""), re.I)  # "they think I live in Rome"
_PROBABLY = re.compile(r"\b(?:probably|most likely|I think|I believe)\b ?", re.IGNORECASE)
_HEARSAY = re.compile(
    r"\b(?:says?|said|saying|tells?|told|claims?|claimed|thinks?|thought|believes?|wrote|writes?|asked|asks|wonders?|"
    r"wondered|heard|read|goes|reckons?|insists?|according|explained|joked|dreamt|dreamed|swears?|texted)\b",
    re.IGNORECASE,
)
_ADVERBS = re.compile(
    r"^(?P<verb>(?:(?:am|is|are|have|has|do|does|do not|does not|was) )?)(?:(?:really|also|much|"
    r"actually|currently|just(?! love)|now|still|"
    r"absolutely|truly|simply|definitely|personally|both|already|totally|proudly|recently|happily|mostly|mainly|"
    r"officially|especially|particularly|very much|(?:usually|generally|always)(?= prefer)|all|quite) )+"
)
_THIRD_PERSON = frozenset(
    "is has lives works owns uses likes loves hates prefers speaks takes enjoys dislikes keeps "
    "avoids plays drives collects follows".split()
)
_ABOUT_ANOTHER = re.compile(r"\b(?:who|whom|whose|that|which|where)\b")
_NOT_YET = re.compile(r"\b(?:to|will|would|can|could|should|must|may|let|help|make|need|want)\b")
_STATE = re.compile(r"(?:based|living|working) (?:in|at|for|as)\b")
# "Quick intro," and "long story short," say nothing of what follows; "on paper," and "for the interview," do.
_ASIDE = re.compile(
    r"(?!(?:today|tonight|this|in|on|at|to|for|from|by|with|without|under|according|if|as|like)\b)[\w'-]+(?: "
    r"[\w'-]+){0,3}$",
    re.IGNORECASE,
)
_TELLS_YOU = re.compile(r"^I .*\b(?:tell|telling|told) you\b")
_CALL_ME = re.compile(
    rf"^(?i:please |just |you (?:can|may) (?:just )?|feel free to |(?:everyone|people|my friends|friends) "
    rf")*(?i:calls?) me (?P<name>{words.PERSON})(?:,? (?:and )?not (?P<wrong>{words.PERSON})|,? (?:please|for short|"
    rf"everyone|everybody|most people|they all|all my)\b.*)?$"
)
_ELSEWHO = re.compile(
    r"^(?:you|it|this|that|these|those|there|they|he|she|we|please|thanks|let us|can|could|would|will|should)\b", re.I
)
_ASKS = re.compile(rf"^(?:please )?(?:{words.IMPERATIVE}|rework|drop|swap|take|find|help|tell)\b", re.I)
_FOR_KIN = re.compile(rf"\b(?:for|with|from) my {words.KIN_WORD} {words.PERSON}(?=$|,| (?:and|on|at|in|to|who)\b)")
_REMARK = re.compile(r"^(?:no|great|nice|cool|perfect|sorry|thanks|thank you|good)\b", re.I)


def stated(turn: Turn, sentence: str, known: People, today: date) -> list[Claim]:
    """The claims of a sentence, with what it denies folded into what it asserts."""
    voice, said = heard(turn, sentence)
    claims = list(_Reading(voice, known, today).of(said))
    denials = {(c.subject, c.predicate): c.content for c in claims if c.denied}
    asserted = [c for c in claims if not c.denied and _is_sayable(c)]
    return [c if c.wrong else replace(c, wrong=denials.get((c.subject, c.predicate), "")) for c in asserted]


def _is_sayable(claim: Claim) -> bool:
    """Names and values have a length; what is longer was never one. One character may become 18 when it is compared."""
    return len(claim.content) <= LONGEST_VALUE and len(subject_key(claim.subject)) <= LONGEST_VALUE


class _Reading:
    """One sentence while it is read: what the clauses so far leave for the next."""

    def __init__(self, voice: Voice, known: People, today: date) -> None:
        self._voice, self._known, self._today = voice, known, today
        self._introduced = ""
        self._before = ""
        self._carried = ""  # the subject of the clause before, for one that has none
        self._denied = ("", "")  # whom, and with which verb: "is" where the name is not Jon
        self._is_over = False
        self._is_noted = False  # in a diary's style: not "no meeting today"

    def of(self, sentence: str) -> Iterator[Claim]:
        """Until a clause cannot be placed: whose words follow is then anybody's guess."""
        self._is_noted = not _REMARK.match(sentence)
        for clause in _with_not_tails(clauses(LEAD.sub("", sentence))):
            said, voice = self._weighed(LEAD.sub("", clause).strip(" ,"))
            if said:
                yield from self._in_clause(said, voice)
            if self._is_over:
                break
        self._known.latest = self._introduced

    def _weighed(self, clause: str) -> tuple[str, Voice]:
        """The clause without "I think", and a voice that is as sure."""
        belief = (_BELIEF if self._voice.he else _OWN_BELIEF).match(clause)
        said = clause[belief.end() :] if belief else clause
        if belief is None and not _PROBABLY.search(said):
            return said, self._voice
        return _PROBABLY.sub("", said), replace(self._voice, certainty=min(self._voice.certainty, BELIEVED))

    def _in_clause(self, clause: str, voice: Voice) -> Iterator[Claim]:
        if CONDITION.search(clause):
            self._is_over = CONDITION.match(clause) is not None
        elif match := _CALL_ME.match(clause):
            if voice.me == USER and (name := person(match["name"])):
                yield replace(claim_of(voice, USER, "preferred_name", name), wrong=match["wrong"] or "")
        elif self._denied[1] and clause.startswith("it is "):
            whom, verb = self._denied
            yield from claims_about(Found(whom, f"{verb} {clause[6:]}"), voice, self._known, self._today)
        elif voice.me == USER and self._is_noted and (event := noted_event(clause, self._today)):
            yield claim_of(voice, USER, *event)
        elif found := subject_of(clause, voice, self._known) or self._going_on(clause):
            yield from self._about(found, clause, voice)
        else:
            if voice.me == USER and _ASKS.match(clause) and (named := _FOR_KIN.search(clause)):
                yield from kin_in(named[0], voice)
            self._pass_over(clause)
        self._before, self._is_noted = clause, False

    def _going_on(self, clause: str) -> Found | None:
        """Is its subject that of the clause before? Not in "I want to move and have a dog"."""
        if not self._carried or _ABOUT_ANOTHER.search(self._before):
            return None
        if _STATE.match(clause):
            return Found(self._carried, f"is {clause}")
        verb = GOES_ON.match(clause)
        is_finite = verb and (verb[0] in _THIRD_PERSON or not _NOT_YET.search(self._before))
        return Found(self._carried, clause) if is_finite else None

    def _about(self, found: Found, clause: str, voice: Voice) -> Iterator[Claim]:
        for claim in found.relation:
            self._introduced = self._known.latest = claim.content
            yield claim
        about = replace(found, rest=_without_adverbs(found.rest))
        made = list(claims_about(about, voice, self._known, self._today)) if found.subject else []
        yield from made
        self._carried = found.subject
        self._denied = (found.subject, denied_verb(about.rest) if any(c.denied for c in made) else "")
        is_news = made or found.relation
        self._is_over = not is_news and bool(_HEARSAY.search(clause)) and not _TELLS_YOU.match(clause)

    def _pass_over(self, clause: str) -> None:
        """Of a clause without a subject that we follow, only some kinds leave what comes after as it is."""
        self._carried = ""
        is_harmless = any(kind.match(clause) for kind in (_ASIDE, _ELSEWHO, _ASKS, words.EVERY_AGENT))
        self._is_over = not is_harmless or bool(_HEARSAY.search(clause))


def _with_not_tails(parts: list[str]) -> list[str]:
    """', not X' belongs to the clause before it, however the sentence was cut."""
    whole: list[str] = []
    for part in parts:
        if whole and re.match(r"(?:and |but )?not \S+(?: \S+){0,4}$", part):
            whole[-1] += f", {part}"
        else:
            whole.append(part)
    return whole


def _without_adverbs(rest: str) -> str:
    return _ADVERBS.sub(lambda m: m["verb"], rest)
