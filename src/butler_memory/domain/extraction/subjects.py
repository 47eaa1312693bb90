"""Whom a clause is about. People are the user, those whom the user calls theirs, and those who are called by name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from butler_memory.domain.extraction import vocabulary as words
from butler_memory.domain.extraction.values import people, person
from butler_memory.domain.extraction.voices import USER, Claim, Voice, claim_of

# "My wife is vegan" is about one person, "my friend is vegan" may be about any of them.
_ONLY_ONE = frozenset({"spouse", "partner", "child", "parent", "sibling"})
_RELATED = re.compile(
    rf"^(?:is|are) (?:my|our|the user's|User's|his|her|their) {words.KIN_WORD}(?=$|[,.;]| (?:and|who)\b)"
)
_KIN_NAMED = re.compile(
    rf"^(?:'s name is|is (?:called|named)|is) (?:not (?P<wrong>{words.PERSON}),? but "
    rf")?(?P<name>{words.PERSON})(?=$|[,.;!]| (?:and|but)\b)"
)
_NOT_NAMES = re.compile(rf"(?:{words.NATIONALITY}|{words.FAITH}|Christian)\b")
NOT_TAIL = re.compile(r"(?:,| and| but|, and|, but) not (?P<wrong>[^,]{1,60})$")
GOES_ON = re.compile(
    r"^(?:am|is|are|lives?|works?|have|has|owns?|uses?|likes?|loves?|hates?|prefers?|speaks?|"
    r"takes?|enjoys?|dislikes?|keeps?|do|does|was|avoids|plays|drives|collects|follows)\b"
)


@dataclass
class People:
    """Whom an episode has told us about."""

    known: set[str] = field(default_factory=set)
    latest: str = ""  # whom "she" is, if anybody


@dataclass(frozen=True)
class Found:
    subject: str  # empty: somebody whom we do not follow
    rest: str
    relation: tuple[Claim, ...] = ()
    plural: bool = False


def subject_of(clause: str, voice: Voice, known: People) -> Found | None:
    """Who the clause is about, and what follows; nothing where its beginning is not understood."""
    if match := re.match(r"^(I|we)(?= [a-z])", clause, re.I):
        is_plural = match[1].lower() == "we"
        return Found(voice.me, clause[match.end() :].strip(), plural=is_plural) if voice.me else Found("", "")
    if not voice.me and (match := re.match(r"^(?:The user|the user|User|user)(?='s |'s$| [a-z])", clause)):
        return _kin_of(clause, "user's", voice, known) or Found(USER, clause[match.end() :].lstrip())
    if match := re.match(r"^(he|she|they)(?= [a-z])", clause, re.I):
        who = _who_is(match[1].lower(), voice, known)
        return Found(who, clause[match.end() :].strip()) if who else None
    mine = "my" if voice.me else "his|her|their" if voice.he else ""
    if mine and (match := re.match(rf"^(?:{mine}|our) ", clause, re.I)):
        related = _kin_of(clause, match[0].strip(), voice, known) if USER in (voice.me, voice.he) else None
        ours = match[0].lower() == "our "
        return related or Found(voice.me or voice.he, f"'s {clause[match.end() :]}", plural=ours)
    return _named(clause, voice, known) if voice.me in ("", USER) else None


def _who_is(pronoun: str, voice: Voice, known: People) -> str:
    """Whom a pronoun means: the one person it can, or nobody."""
    candidates = {voice.he, known.latest if pronoun != "they" else ""} - {""}
    return candidates.pop() if len(candidates) == 1 else ""


def _kin_of(clause: str, whose: str, voice: Voice, known: People) -> Found | None:
    """'My sister Anna lives in Berlin': about Anna, and that she is the user's sister. The same for a dog."""
    opening = rf"^(?i:(?:the )?{re.escape(whose)}) "
    if pet := re.match(
        rf"{opening}(?:[a-z]+ )?(?P<kind>{words.PET})(?:'s name is|,? (?:who )?is (?:called|named)|,)? "
        rf"(?P<name>{words.PERSON})",
        clause,
    ):
        name = person(pet["name"])
        if not name:
            return Found("", "")
        claim = claim_of(voice, USER, "pet", f"{pet['kind']} named {name}")
        wrong = NOT_TAIL.search(clause)
        return Found("", "", (replace(claim, wrong=f"{pet['kind']} named {wrong['wrong']}" if wrong else ""),))
    match = re.match(rf"{opening}{words.KIN_WORD}\b", clause)
    if match is None:
        return None
    predicate, rest = words.KIN[match["kin"].lower()], clause[match.end() :].strip()
    if (said := _KIN_NAMED.match(rest)) and not _NOT_NAMES.match(said["name"]) and (name := person(said["name"])):
        known.known.add(name)
        return Found("", "", (replace(claim_of(voice, USER, predicate, name), wrong=said["wrong"] or ""),))
    said = re.match(r"(?:are(?: called| named|(?= [A-Z]\w+,? and [A-Z]))|'s names are|names are) (?P<names>.+)", rest)
    if said and not _NOT_NAMES.match(said["names"]):
        return Found("", "", tuple(claim_of(voice, USER, predicate, name) for name in people(said["names"])))
    name = person(rest.removeprefix(", "))
    if name and (rest[0] != "," or rest.count(",") > 1):  # not "my sister, Bob and I"
        known.known.add(name)
        after = rest.removeprefix(", ")[len(name) :].lstrip(", ")
        return Found(name, after, (claim_of(voice, USER, predicate, name),))
    return Found(f"user's {match['kin'].lower()}" if predicate in _ONLY_ONE else "", rest)


def _named(clause: str, voice: Voice, known: People) -> Found | None:
    match = re.match(rf"^({words.PERSON})(?P<own>'s)?(?= [a-z])", clause)
    name = person(match[1].removesuffix("'s")) if match else ""
    if match is None or not name:
        return None
    own = match[1].endswith("'s") or match["own"]
    rest = clause[match.end() :].strip()
    if not own and (related := _RELATED.match(rest)):
        known.known.add(name)
        return Found("", "", (claim_of(voice, USER, words.KIN[related["kin"]], name),))
    verb = GOES_ON.match(rest)
    if own or (verb and verb[0].endswith("s")):  # pandas live in China
        return Found(name, f"'s {rest}" if own else rest)
    return None
