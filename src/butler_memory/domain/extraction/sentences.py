"""A turn as sentences, a sentence as clauses; contractions spelled out, and quoted words hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator

from butler_memory.domain.extraction.vocabulary import any_of

# Stands for words in quotation marks. Nobody types it: it is the object replacement character.
QUOTED = "\ufffc"
# A longer one is prose, and its grammar is beyond patterns.
LONGEST_SENTENCE = 400
# A line at least this long that does not end a sentence was wrapped.
_WRAPPED_FROM = 60

_QUOTES = re.compile(
    r"\"[^\"\n]{1,400}\"|“[^”\n]{1,400}”|«[^»\n]{1,400}»|„[^“”\n]{1,400}[“”]|‘[^’\n]{1,400}’(?!\w)"
    r"|(?<!\w)'(?:[^'\n]|(?<=\w)'(?=\w)){1,400}'(?!\w)"
)
_NOT_A_NAME = re.compile(r"\s.*\s|\b(?:I|my|me|you|never|always)\b|[.!?]", re.I)
_BULLET = re.compile(r"^\s*(?:[-*•+]|\d{1,2}[.)])\s+(?:\[[ xX]\]\s+)?")
_MARKUP = re.compile(r"\*\*|__|`")
_ENDS = re.compile(r"[.!?:;…]['\")\]*]*$")
_END = re.compile(r"(?<=[.!?…])[)\]]*\s+|(?<=[.!?])(?=\ufffc)|(?<=\ufffc) (?=(?:And|Also|Always|Never)\b)|\n")
_NO_END = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs|etc|e\.g|i\.e|approx|No|[A-Z])|\b[ap]\.m)\.$")

# What leads to a statement and is no part of it.
LEAD = re.compile(
    r"^(?:(?:hi|hello|hey|well|so|actually|also|and|but|oh|ok|okay|yes|yeah|yep|no|sure|thanks|thank you|great|cool|"
    r"nice|perfect|right|sorry|fyi|btw|by the way|just so you know|for the record|for your information|as you know|in "
    r"fact|to be honest|honestly|as I said|like I said|since|as(?! far| long)|because|now|currently|nowadays|these "
    r"days|correction|additionally|moreover|hi there|hello there|good morning|one more thing|another thing|first|"
    r"second|last month|last year|last week|recently|please note|note|in general|generally|personally|(?:please |just "
    r")?(?:remember|note|know|keep in mind|be aware)(?: that)?|I (?:should|must|have to) (?:mention|say|add)(?: that)?|"
    r"I (?:just )?(?:want|wanted) (?:you to know|to let you know|to mention|to say)(?: that)?|let me (?:mention|add|"
    r"say)(?: that)?|I (?:already )?told you(?: already| before)?(?: that)?|the thing is|I would say|ugh|it turns out|"
    r"for (?:context|(?:the|your) (?:form|files?|booking|invoice|reservation|ticket|order|byline|badge|label))(?=[:,])|"
    r"before (?:you|we|I) [\w ]{1,40}(?=:)|"
    r"it is (?:important|good|useful) to (?:note|know)|turns out)\b[,:!]?\s*(?:that\s+)?)+(?=\S|$)",
    re.IGNORECASE,
)

_NOW = r"(?:now|nowadays|these days),? "
_BUT_NOW = rf"(?:(?:but|and) )?(?:{_NOW})?I (?:now )?(?:am|live|work|use|take|drink|prefer|have)\b"
_CONTRACTIONS = (
    (re.compile(r"\b([Cc])an'?t\b"), r"\1annot"),
    (re.compile(r"\b([Dd]o|[Dd]oes|[Ii]s|[Dd]id)nt\b"), r"\1 not"),
    (re.compile(r"(\w)'s (?=(?:allergic|vegetarian|vegan|diabetic|married|based|called|named|not|on)\b)"), r"\1 is "),
    (re.compile(r"\b([Ww])on't\b"), r"\1ill not"),
    (re.compile(r"\b(\w+)n't\b"), r"\1 not"),
    (re.compile(r"\b([Ii])'?m\b(?!')"), r"I am"),
    (re.compile(r"\b([Ii]|[Yy]ou|[Ww]e|[Tt]hey)'ve\b"), r"\1 have"),
    (re.compile(r"\b([Yy]ou|[Ww]e|[Tt]hey)'re\b"), r"\1 are"),
    (re.compile(r"\b([Hh]e|[Ss]he|[Ii]t|[Tt]hat|[Tt]here)'s (got|been)\b"), r"\1 has \2"),
    (re.compile(r"\b([Hh]e|[Ss]he|[Ii]t|[Tt]hat|[Tt]here|[Ll]et|[Ww]hat)'s\b"), r"\1 is"),
    (re.compile(r"\b([Ii]|[Yy]ou|[Ww]e|[Tt]hey|[Hh]e|[Ss]he)'d\b"), r"\1 would"),
    (re.compile(r"\b([Ii]|[Yy]ou|[Ww]e|[Tt]hey|[Hh]e|[Ss]he|[Ii]t)'ll\b"), r"\1 will"),
    (re.compile(r"\b(have|has) got\b"), r"\1"),
    (re.compile(r"\b([Nn]ame)'?s (?=[A-Z])"), r"\1 is "),
    (re.compile(r",? ?\b[Ii]f (?:that|it) (?:matters|helps)(?:[:,] |(?=$|[.;!]))"), ""),
    # What was, said only to say what is now, is no longer a thing of the past.
    (re.compile(rf" any ?more(?=[,;] {_BUT_NOW})|\bI used to [^,;]{{1,60}},? (?=(?:but|and) {_NOW}I )"), ""),
    (re.compile(rf"\bI no longer (?=[^,;]{{1,60}}[,;] {_BUT_NOW})"), "I do not "),
    (re.compile(r"\bi\b(?!\.)"), "I"),
)
_WITHOUT_APOSTROPHE = [pair for pair in _CONTRACTIONS if not re.search(r"(?<!!)'(?!\?)", pair[0].pattern)]

# A new subject begins a clause anywhere; a verb only after "and": in ", like a walk" it is none.
_SUBJECT = any_of(
    "I you he she they we it my his her their our your this that there please can could would will should if unless "
    "when whenever what which who how why do does did",
    "the user", "the user's", "User", "User's",
)  # fmt: skip
_VERB = any_of(
    "is are am live lives work works have has own owns use uses like likes love loves hate hates prefer prefers speak "
    "speaks take takes enjoy enjoys dislike dislikes keep keeps was do does avoids plays drives collects follows"
)
_JOINING = any_of("and but so because since as though although while yet or then")
_BETWEEN = re.compile(
    rf"(?:\s*(?:[,;:—–]|\s-)\s+(?:{_JOINING}\s+)?|\s+(?:and|but|so|because|since|though|although|while)\s+)(?:now |"
    rf"then |that |also )?(?={_SUBJECT}\b)|,?\s+(?:and|but)\s+(?={_VERB}\b)|,\s+(?:and )?(?=(?:based|living|working) "
    rf"(?:in|at|for|as)\b)|\s+(?=based in\b)|\s*(?:;|—|–)\s+|\s+-\s+"
)


def sentences(text: str) -> Iterator[str]:
    for line in _joined(_without_quotes(text.replace("’", "'") if "‘" not in text else text).split("\n")):
        for sentence in _split(line):
            if len(sentence) <= LONGEST_SENTENCE:
                yield _spelled_out(sentence)


def clauses(sentence: str) -> list[str]:
    return [part.strip(" ,.!") for part in _BETWEEN.split(sentence) if part.strip(" ,.!")]


def _without_quotes(text: str) -> str:
    """What is quoted becomes one mark, except for a name or a word or two that somebody put in quotation marks."""
    return _QUOTES.sub(lambda m: QUOTED if _NOT_A_NAME.search(m[0][1:-1]) else f'"{m[0][1:-1]}"', text)


def _joined(lines: list[str]) -> Iterator[str]:
    """A sentence that was wrapped goes on in the next line; a bullet, an empty line or an end stops it."""
    said = ""
    for raw in lines:
        line = _MARKUP.sub("", _BULLET.sub("", raw)).strip()
        goes_on = line[:1].islower() or len(said) >= _WRAPPED_FROM
        if said and line and goes_on and not _BULLET.match(raw) and not _ENDS.search(said) and len(said) < 2_000:
            said = f"{said} {line}"
        else:
            if said:
                yield said
            said = line
    if said:
        yield said


def _split(line: str) -> Iterator[str]:
    held = ""
    for part in _END.split(line):
        held = f"{held} {part}".strip() if held else part.strip()
        if held and not (_NO_END.search(held[-12:]) and len(held) < LONGEST_SENTENCE):
            yield held
            held = ""
    if held:
        yield held


def _spelled_out(sentence: str) -> str:
    sentence = " ".join(sentence.replace("’", "'").split())
    for pattern, spelled in _CONTRACTIONS if "'" in sentence else _WITHOUT_APOSTROPHE:
        sentence = pattern.sub(spelled, sentence)
    return sentence
