"""What the words after a subject say of it: asserted, denied, or put in the place of something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import date

from butler_memory.domain.extraction import vocabulary as words
from butler_memory.domain.extraction.patterns import CHANGES, OF_THEM, PATTERNS, contents
from butler_memory.domain.extraction.plans import plan_in
from butler_memory.domain.extraction.subjects import NOT_TAIL, Found, People
from butler_memory.domain.extraction.traps import MOMENTARY
from butler_memory.domain.extraction.values import bare, one, people, person
from butler_memory.domain.extraction.voices import USER, Claim, Voice, claim_of

# What may be said of whom: of a stranger only what nobody says of a thing or a company.
_OF_RELATIVES = frozenset(
    (
        "allergy medical_condition medication dietary_restriction birthday birthplace home employer job likes dislikes "
        "language nationality hobby education pet favorite preference"
    ).split()
)
_OF_STRANGERS = frozenset("allergy medical_condition birthday home".split())  # a pizza is vegan, too
_OF_US = frozenset("home pet owns plan trip anniversary".split())
_PASSING = frozenset(
    "likes dislikes uses employer job preference owns habit home pet name goal medication dietary_restriction".split()
)
_NOT = re.compile(r"^(?P<before>(?:'s [\w ]{2,30}? )?(?:am|is|are|do|does|have|has|will|was)) not (?P<after>.+)$")
_BUT = re.compile(r"^(?P<before>.*?)\bnot (?P<wrong>[^,]{1,60}?),? but (?:rather )?(?P<right>.+)$")
_HAS_KIN = re.compile(
    rf"^(?:have|has) (?:an?|one|{words.COUNT}) {words.KIN_WORD}(?:,|:)?(?: who is)?(?: (?:named|"
    rf"called)| whose names? (?:is|are))? (?P<names>{words._CAPITAL}.*)$"
)

_OWN_KIN = re.compile(rf"\b(?P<whose>my|his|her|their) {words.KIN_WORD} (?P<name>{words.PERSON})")
_RENAMED = re.compile(r"\bchanged (?:my|his|her|their) name\b")
_FURTHER = re.compile(r",| but ")


def claims_about(about: Found, voice: Voice, known: People, today: date) -> Iterator[Claim]:
    """Each claim that is made, those that are denied among them."""
    rest = _RENAMED.sub("changed 's name", about.rest)

    def made(words_after: str) -> list[Claim]:
        return list(_made(replace(about, rest=words_after), voice, known, today))

    if match := _BUT.match(rest):
        denied = {claim.predicate: claim.content for claim in made(f"{match['before']}{match['wrong']}")}
        for claim in made(f"{match['before']}{match['right']}"):
            yield replace(claim, wrong=denied.get(claim.predicate, ""))
    elif match := NOT_TAIL.search(rest):
        for claim in made(rest[: match.start()]):
            yield replace(claim, wrong=bare(one(match["wrong"])))
    elif asserted := made(rest):
        yield from asserted
    elif match := _NOT.match(rest):
        verb = "" if match["before"] in ("do", "does") else f"{match['before']} "
        for claim in made(f"{verb}{match['after']}"):
            yield replace(claim, denied=True)


def denied_verb(rest: str) -> str:
    """What stands before "not"."""
    match = _NOT.match(rest)
    return match["before"] if match else ""


def _made(about: Found, voice: Voice, known: People, today: date) -> Iterator[Claim]:
    if about.subject == USER:
        yield from _of_user_alone(about, voice, today)
    if change := _change(about, voice):
        yield change
        return
    allowed = _allowed(about, voice, known)
    momentary = MOMENTARY.search(_FURTHER.split(about.rest)[0])
    possible = PATTERNS if about.rest.startswith("'s") else OF_THEM
    for pattern in [each for each in possible if each.said.match(about.rest)]:
        name = pattern.predicate
        if (allowed is None or name in allowed) and not (momentary and name in _PASSING):
            for content in contents(pattern, about.rest):
                yield claim_of(voice, about.subject, name, content)


def _change(about: Found, voice: Voice) -> Claim | None:
    for predicate, pattern, shape in CHANGES:
        if (match := pattern.match(about.rest)) and (new := shape(match["value"])):
            claim = claim_of(voice, about.subject, predicate, new[0])
            is_vague = {"uses": not re.match(words.TOOL, new[0]), "employer": " for " in about.rest}.get(
                predicate, False
            )
            return replace(claim, wrong=one(match["old"]), only_instead=is_vague)
    return None


def _of_user_alone(about: Found, voice: Voice, today: date) -> Iterator[Claim]:
    """Relatives and plans: for others, we would have to know whose."""
    if plan := plan_in(about.rest, today):
        yield claim_of(voice, USER, *plan)
    if not about.plural and (match := _HAS_KIN.match(about.rest)):
        for name in people(match["names"]):
            yield claim_of(voice, USER, words.KIN[match["kin"]], name)
    yield from kin_in(about.rest, voice)


def kin_in(text: str, voice: Voice) -> Iterator[Claim]:
    """ "A present for my sister Ida" says who she is, whatever becomes of the present."""
    for match in _OWN_KIN.finditer(text):
        is_own = match["whose"] == "my" if voice.me else match["whose"] != "my"
        # "met Bob and his wife Ana": not the user's wife
        is_clear = match["whose"] in ("my", "their") or text[: match.start()].islower()
        if is_own and is_clear and (name := person(match["name"])):
            yield claim_of(voice, USER, words.KIN[match["kin"]], name)


def _allowed(about: Found, voice: Voice, known: People) -> frozenset[str] | None:
    """The predicates that are believed of the subject; nothing where all are."""
    if about.plural:
        return _OF_US
    if about.subject == USER:
        return None
    is_known = about.subject in known.known or about.subject.startswith("user's ")
    if about.subject == voice.me:
        return _OF_STRANGERS | {"dietary_restriction"}
    return _OF_RELATIVES if is_known else _OF_STRANGERS
