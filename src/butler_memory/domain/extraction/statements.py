"""What one sentence states, clause by clause. Only a clause that begins with its subject is read at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import date

from butler_memory.domain.extraction import vocabulary as words
from butler_memory.domain.extraction.patterns import CHANGES, PATTERNS, contents
from butler_memory.domain.extraction.plans import noted_event, plan_in
from butler_memory.domain.extraction.sentences import clauses
from butler_memory.domain.extraction.transcript import Turn
from butler_memory.domain.extraction.traps import CONDITION, MOMENTARY
from butler_memory.domain.extraction.values import bare, one, people, person
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


@dataclass
class People:
    """Whom an episode has told us about."""

    known: set[str] = field(default_factory=set)
    latest: str = ""  # whom "she" is, if anybody


@dataclass(frozen=True)
class _Voice:
    """How to hear a sentence: who "I" is, who "he" is, and how sure to be."""

    me: str
    he: str
    certainty: float
    source_kind: SourceKind


# What may be said of whom: of a stranger only what nobody says of a thing or a company.
_OF_RELATIVES = frozenset(
    (
        "allergy medical_condition medication dietary_restriction birthday birthplace home employer job likes dislikes "
        "language nationality hobby education pet favorite preference"
    ).split()
)
_OF_STRANGERS = frozenset("allergy medical_condition dietary_restriction birthday home".split())
_OF_US = frozenset("home pet owns plan trip anniversary".split())
# "My wife is vegan" is about one person, "my friend is vegan" may be about any of them.
_ONLY_ONE = frozenset({"spouse", "partner", "child", "parent", "sibling"})
_PASSING = frozenset({"likes", "dislikes", "uses", "employer", "job", "preference", "owns", "habit", "home", "pet"})

_LEAD = re.compile(
    r"^(?:(?:hi|hello|hey|well|so|actually|also|and|but|oh|ok|okay|yes|yeah|yep|no|sure|thanks|"
    r"thank you|great|cool|nice|"
    r"perfect|right|sorry|fyi|btw|by the way|just so you know|for the record|for your information|as you know|in fact|"
    r"to be honest|honestly|as I said|like I said|since|as|because|now|currently|nowadays|these days|correction|"
    r"additionally|moreover|hi there|hello there|good morning|one more thing|another thing|first|"
    r"second|last month|last year|"
    r"last week|recently|please note|note|in general|generally|personally|"
    r"(?:please |just )?(?:remember|note|know|keep in mind|be aware)(?: that)?|I (?:should|must|"
    r"have to) (?:mention|say|add)(?: that)?|"
    r"I (?:just )?(?:want|wanted) (?:you to know|to let you know|to mention|to say)(?: that)?|let "
    r"me (?:mention|add|say)(?: that)?|"
    r"I (?:already )?told you(?: already| before)?(?: that)?|the thing is|I would say|ugh|it turns "
    r"out|it is (?:important|good|useful) to (?:note|know)|turns out)\b[,:!]?\s*(?:that\s+)?)+"
    r"(?=\S|$)",
    re.IGNORECASE,
)
_BELIEF = re.compile(
    r"^(?:I|he|she|they|(?:the )?user) (?:thinks?|believes?)(?: that)? |^probably |^I am pretty sure(?: that)? ", re.I
)
_PROBABLY = re.compile(r"\b(?:probably|most likely|I think|I believe)\b ?", re.IGNORECASE)
_REPORT = re.compile(
    r"^(?:(?:the )?user|User) (?:also |has |explicitly |just )*(?:said|says|stated|states|"
    r"mentioned|mentions|told (?:me|us)|"
    r"confirmed|noted|shared|explained|revealed|reported|clarified|added|disclosed|corrected(?: me|"
    r" this| that)?)(?: to me| to us)?[,:]?(?: that)? (?P<what>.+)",
    re.IGNORECASE,
)
_GERUND = {"being": "is", "having": "has", "living": "lives", "working": "works", "liking": "likes", "owning": "owns"}
_HEARSAY = re.compile(
    r"\b(?:says?|said|saying|tells?|told|claims?|claimed|thinks?|thought|believes?|wrote|writes?|"
    r"asked|asks|wonders?|wondered|"
    r"heard|read|goes|reckons?|insists?|according|explained|joked|dreamt|dreamed|swears?|texted)\b",
    re.IGNORECASE,
)
_ADVERBS = re.compile(
    r"^(?P<verb>(?:(?:am|is|are|have|has|do|does|do not|does not|was) )?)(?:(?:really|also|much|"
    r"actually|currently|just|now|still|"
    r"absolutely|truly|simply|definitely|personally|both|already|totally|proudly|recently|happily|mostly|mainly|"
    r"officially|especially|particularly|very much|usually(?= prefer)|generally(?= prefer)|all|quite) )+"
)
_GOES_ON = re.compile(
    r"^(?:am|is|are|lives?|works?|have|has|owns?|uses?|likes?|loves?|hates?|prefers?|speaks?|"
    r"takes?|enjoys?|dislikes?|keeps?|do|does|was|avoids|plays|drives|collects|follows)\b"
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
    r"(?!(?:in|on|at|to|for|from|by|with|without|under|according|if|as|like)\b)[\w'-]+(?: [\w'-]+){0,3}$", re.IGNORECASE
)
_TELLS_YOU = re.compile(r"^I .*\b(?:tell|telling|told) you\b")
_MY = re.compile(r"\b(?:my|our)\b", re.IGNORECASE)
_CALL_ME = re.compile(
    rf"^(?i:please |just |you (?:can|may) (?:just )?|feel free to |(?:everyone|people|my friends|"
    rf"friends) )*(?i:calls?) me "
    rf"(?P<name>{words.PERSON})(?:,? (?:and )?not (?P<wrong>{words.PERSON}))?$"
)
_ELSEWHO = re.compile(
    r"^(?:you|it|this|that|these|those|there|they|he|she|we|please|thanks|let us|can|could|would|will|should)\b", re.I
)
_ASKS = re.compile(rf"^(?:please )?{words.IMPERATIVE}\b", re.I)
_NOT = re.compile(r"^(?P<before>(?:'s [\w ]{2,30}? )?(?:am|is|are|do|does|have|has|will|was)) not (?P<after>.+)$")
_BUT = re.compile(r"^(?P<before>.*?)\bnot (?P<wrong>[^,]{1,60}?),? but (?:rather )?(?P<right>.+)$")
_NOT_TAIL = re.compile(r"(?:,| and| but|, and|, but) not (?P<wrong>[^,]{1,60})$")
_RELATED = re.compile(
    rf"^(?:is|are) (?:my|our|the user's|User's|his|her|their) {words.KIN_WORD}(?=$|[,.;]| (?:and|who)\b)"
)
_HAS_KIN = re.compile(
    rf"^(?:have|has) (?:an?|one|{words.COUNT}) {words.KIN_WORD}(?:,|:)?(?: who is)?(?: (?:named|"
    rf"called)| whose names? (?:is|are))? (?P<names>{words._CAPITAL}.*)$"
)
_KIN_NAMED = re.compile(
    rf"^(?:'s name is|is (?:called|named)|is) (?:not (?P<wrong>{words.PERSON}),? but "
    rf")?(?P<name>{words.PERSON})(?=$|[,.;!]| (?:and|but)\b)"
)


def stated(turn: Turn, sentence: str, known: People, today: date) -> list[Claim]:
    """The claims of a sentence, with what it denies folded into what it asserts."""
    voice, said = _heard(turn, sentence)
    claims = list(_claims(said, voice, known, today))
    denials = {(c.subject, c.predicate): c.content for c in claims if c.denied}
    asserted = [c for c in claims if not c.denied]
    return [c if c.wrong else replace(c, wrong=denials.get((c.subject, c.predicate), "")) for c in asserted]


def _heard(turn: Turn, sentence: str) -> tuple[_Voice, str]:
    if turn.voice == "user":
        return _Voice(USER, "", CERTAIN, SourceKind.USER_STATED), sentence
    if turn.voice == "other":
        return _Voice(turn.name, "", OBSERVED, SourceKind.AGENT_INFERRED), sentence
    report = _REPORT.match(sentence)
    if report is None:
        return _Voice("", "", OBSERVED, SourceKind.AGENT_INFERRED), sentence
    first, _, rest = report["what"].partition(" ")
    told = f"User {_GERUND[first]} {rest}" if first in _GERUND else report["what"]
    return _Voice("", USER, TOLD, SourceKind.USER_STATED), told


def _claims(sentence: str, voice: _Voice, known: People, today: date) -> Iterator[Claim]:
    """Clause by clause, until one cannot be placed: whose words follow is then anybody's guess."""
    subject, carrier, denied_rest, before = "", "", "", ""
    introduced = ""
    for clause in _with_not_tails(clauses(_LEAD.sub("", sentence))):
        bare = _LEAD.sub("", clause).strip(" ,")
        belief = _BELIEF.match(bare)
        bare = bare[belief.end() :] if belief else bare
        certainty = BELIEVED if belief or _PROBABLY.search(bare) else voice.certainty
        bare = _PROBABLY.sub("", bare)
        heard = replace_certainty(voice, certainty)
        if not bare:
            continue
        if CONDITION.search(bare):
            if CONDITION.match(bare):
                break
            continue
        if match := _CALL_ME.match(bare):
            if voice.me == USER and (name := person(match["name"])):
                yield replace(_claim(heard, USER, "preferred_name", name), wrong=match["wrong"] or "")
            continue
        if denied_rest and bare.startswith("it is "):
            yield from _of(heard, subject, denied_rest + " " + bare[6:], known, today)
            continue
        if voice.me == USER and (event := noted_event(bare, today)):
            yield _claim(heard, USER, *event)
            continue
        found = _subject(bare, heard, known)
        if found is None and carrier and _goes_on(before, bare):
            found = _Found(carrier, bare)
        elif found is None and carrier and _STATE.match(bare):
            found = _Found(carrier, f"is {bare}")
        before = bare
        if found is None:
            carrier = ""
            if _ASIDE.match(bare) and not _HEARSAY.search(bare):
                continue
            if not (_ELSEWHO.match(bare) or _ASKS.match(bare)) or _HEARSAY.search(bare):
                break
            continue
        for claim in found.relation:
            introduced = claim.content
            known.latest = introduced
            yield claim
        subject, rest = found.subject, _without_adverbs(found.rest)
        carrier = subject
        made = list(_of(heard, subject, rest, known, today, found.plural)) if subject else []
        yield from made
        negated = _NOT.match(rest)
        denied_rest = negated["before"] if negated and any(c.denied for c in made) else ""
        if not made and not found.relation and _HEARSAY.search(bare) and not _TELLS_YOU.match(bare):
            break
    known.latest = introduced


def _goes_on(before: str, clause: str) -> bool:
    """Is the subject of the clause before that of this one, which has none? Not in "I want to move and have a dog"."""
    verb = _GOES_ON.match(clause)
    if verb is None or _ABOUT_ANOTHER.search(before):
        return False
    return verb[0] in _THIRD_PERSON or not _NOT_YET.search(before)


def _with_not_tails(parts: list[str]) -> list[str]:
    """', not X' belongs to the clause before it, however the sentence was cut."""
    whole: list[str] = []
    for part in parts:
        if whole and re.match(r"(?:and |but )?not \S+(?: \S+){0,4}$", part):
            whole[-1] += f", {part}"
        else:
            whole.append(part)
    return whole


def replace_certainty(voice: _Voice, certainty: float) -> _Voice:
    return replace(voice, certainty=min(voice.certainty, certainty))


@dataclass(frozen=True)
class _Found:
    subject: str  # empty: somebody whom we do not follow
    rest: str
    relation: tuple[Claim, ...] = ()
    plural: bool = False


def _subject(clause: str, voice: _Voice, known: People) -> _Found | None:
    """Who the clause is about, and what follows; nothing where its beginning is not understood."""
    if match := re.match(r"^(I|we)(?= [a-z])", clause, re.I):
        return (
            _Found(voice.me, clause[match.end() :].strip(), plural=match[1].lower() == "we")
            if voice.me
            else _Found("", "")
        )
    if not voice.me and (match := re.match(r"^(?:The user|the user|User|user)(?='s |'s$| [a-z])", clause)):
        return _kin_of(clause, "user's", voice, known) or _Found(USER, clause[match.end() :].lstrip())
    if match := re.match(r"^(he|she|they)(?= [a-z])", clause, re.I):
        who = _who_is(match[1].lower(), voice, known)
        return _Found(who, clause[match.end() :].strip()) if who else None
    mine = "my" if voice.me else "his|her|their" if voice.he else ""
    if mine and (match := re.match(rf"^(?:{mine}|our) ", clause, re.I)):
        related = _kin_of(clause, match[0].strip(), voice, known) if USER in (voice.me, voice.he) else None
        ours = match[0].lower() == "our "
        return related or _Found(voice.me or voice.he, f"'s {clause[match.end() :]}", plural=ours)
    return _named(clause, voice, known) if voice.me in ("", USER) else None


def _who_is(pronoun: str, voice: _Voice, known: People) -> str:
    """Whom a pronoun means: the one person it can, or nobody."""
    candidates = {voice.he, known.latest if pronoun != "they" else ""} - {""}
    return candidates.pop() if len(candidates) == 1 else ""


def _kin_of(clause: str, whose: str, voice: _Voice, known: People) -> _Found | None:
    """'My sister Anna lives in Berlin': about Anna, and that she is the user's sister. The same for a dog."""
    opening = rf"^(?i:(?:the )?{re.escape(whose)}) "
    if pet := re.match(
        rf"{opening}(?:[a-z]+ )?(?P<kind>{words.PET})(?:'s name is|,? (?:who )?is (?:called|named)|,)? "
        rf"(?P<name>{words.PERSON})",
        clause,
    ):
        name = person(pet["name"])
        if not name:
            return _Found("", "")
        claim = _claim(voice, USER, "pet", f"{pet['kind']} named {name}")
        wrong = _NOT_TAIL.search(clause)
        return _Found("", "", (replace(claim, wrong=f"{pet['kind']} named {wrong['wrong']}" if wrong else ""),))
    match = re.match(rf"{opening}{words.KIN_WORD}\b", clause)
    if match is None:
        return None
    predicate, rest = words.KIN[match["kin"].lower()], clause[match.end() :].strip()
    if (said := _KIN_NAMED.match(rest)) and not re.match(_NOT_NAMES, said["name"]) and (name := person(said["name"])):
        known.known.add(name)
        return _Found("", "", (replace(_claim(voice, USER, predicate, name), wrong=said["wrong"] or ""),))
    name = person(rest.removeprefix(", "))
    if name:
        known.known.add(name)
        after = rest.removeprefix(", ")[len(name) :].lstrip(", ")
        return _Found(name, after, (_claim(voice, USER, predicate, name),))
    return _Found(f"user's {match['kin'].lower()}" if predicate in _ONLY_ONE else "", rest)


_NOT_NAMES = rf"(?:{words.NATIONALITY}|{words.any_of('Muslim Catholic Jewish Hindu Buddhist Christian European')})\b"


def _named(clause: str, voice: _Voice, known: People) -> _Found | None:
    match = re.match(rf"^({words.PERSON})(?P<own>'s)?(?= [a-z])", clause)
    name = person(match[1].removesuffix("'s")) if match else ""
    if match is None or not name:
        return None
    own = match[1].endswith("'s") or match["own"]
    rest = clause[match.end() :].strip()
    if not own and (related := _RELATED.match(rest)):
        known.known.add(name)
        return _Found("", "", (_claim(voice, USER, words.KIN[related["kin"]], name),))
    if own or _GOES_ON.match(rest):
        return _Found(name, f"'s {rest}" if own else rest)
    return None


def _of(voice: _Voice, subject: str, rest: str, known: People, today: date, plural: bool = False) -> Iterator[Claim]:
    """Each claim that the words after a subject make, those that they deny among them."""
    rest = _plain_possessive(rest)
    if (match := _BUT.match(rest)) and _BUT.match(rest):
        right, wrong = f"{match['before']}{match['right']}", f"{match['before']}{match['wrong']}"
        yield from _instead(voice, subject, right, wrong, known, today)
    elif match := _NOT_TAIL.search(rest):
        right = rest[: match.start()]
        for claim in _made(voice, subject, right, known, today, plural):
            yield replace(claim, wrong=bare(one(match["wrong"])))
    elif made := list(_made(voice, subject, rest, known, today, plural)):
        yield from made
    elif match := _NOT.match(rest):
        verb = "" if match["before"] in ("do", "does") else f"{match['before']} "
        for claim in _made(voice, subject, f"{verb}{match['after']}", known, today, plural):
            yield replace(claim, denied=True)


def _instead(voice: _Voice, subject: str, right: str, wrong: str, known: People, today: date) -> Iterator[Claim]:
    denied = {claim.predicate: claim.content for claim in _made(voice, subject, wrong, known, today)}
    for claim in _made(voice, subject, right, known, today):
        yield replace(claim, wrong=denied.get(claim.predicate, ""))


def _made(voice: _Voice, subject: str, rest: str, known: People, today: date, plural: bool = False) -> Iterator[Claim]:
    if subject == USER:
        yield from _of_user_alone(voice, rest, today, plural)
    for predicate, pattern, shape in CHANGES:
        if (match := pattern.match(rest)) and (new := shape(match["value"])):
            claim = _claim(voice, subject, predicate, new[0])
            yield replace(claim, wrong=one(match["old"]), only_instead=predicate == "uses" and not new[0][0].isupper())
            return
    allowed = _allowed(subject, known, plural)
    momentary = bool(MOMENTARY.search(re.split(r",| but ", rest)[0]))
    for pattern_row in PATTERNS:
        predicate = pattern_row.predicate
        if (allowed is None or predicate in allowed) and not (momentary and predicate in _PASSING):
            for content in contents(pattern_row, rest):
                yield _claim(voice, subject, predicate, content)


def _of_user_alone(voice: _Voice, rest: str, today: date, plural: bool) -> Iterator[Claim]:
    """Relatives and plans: for others, we would have to know whose."""
    if plan := plan_in(rest, today):
        yield _claim(voice, USER, *plan)
    if not plural and (match := _HAS_KIN.match(rest)):
        for name in people(match["names"]):
            yield _claim(voice, USER, words.KIN[match["kin"]], name)
    whose = "my" if voice.me else "his|her|their"
    for match in re.finditer(rf"\b(?:{whose}) {words.KIN_WORD},? (?P<name>{words.PERSON})", rest):
        if name := person(match["name"]):
            yield _claim(voice, USER, words.KIN[match["kin"]], name)


def _allowed(subject: str, known: People, plural: bool) -> frozenset[str] | None:
    if plural:
        return _OF_US
    if subject == USER:
        return None
    return _OF_RELATIVES if subject in known.known or subject.startswith("user's ") else _OF_STRANGERS


def _claim(voice: _Voice, subject: str, predicate: str, content: str) -> Claim:
    seen_by_others = _MY.sub("their", content) if voice.me else content
    return Claim(subject, predicate, seen_by_others, voice.certainty, voice.source_kind)


def _without_adverbs(rest: str) -> str:
    return _ADVERBS.sub(lambda m: m["verb"], rest)


def _plain_possessive(rest: str) -> str:
    return re.sub(r"\bchanged (?:my|his|her|their) name\b", "changed 's name", rest)
