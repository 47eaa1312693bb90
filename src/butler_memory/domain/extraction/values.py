"""The value in what follows a verb: short, faithful, and only where it is one."""

from __future__ import annotations

import re
from itertools import takewhile

from butler_memory.domain.extraction.vocabulary import IMPERATIVE, NOT_A_PERSON, PERSON, PROPER, any_of

LONGEST_VALUE = 120
_MOST_WORDS = 9
_KEPT_WHOLE = re.compile(
    r"\b(mac and cheese|rock and roll|fish and chips|salt and vinegar|arts and crafts|gin and tonic|bed and breakfast|"
    r"drum and bass|rhythm and blues|black and white|peanut butter and jelly|Dungeons and Dragons)\b",
    re.IGNORECASE,
)
# What begins another thought.
_CUT = re.compile(
    rf"(?:,\s+(?:and |then |please )*(?:no need|{IMPERATIVE} (?:the|an?|me|my|it|us|to|them)\b)|"
    r"\s*(?:[;!?()\[\]—–]|:(?!\d)|\.\s|\.$|\s-\s)|,?\s+(?:but|so|because|since|which|who|whom|that|when|whenever|"
    r"while|if|although|though|unless|as|until|please|thanks|especially|particularly|except|even|too|hence|therefore|"
    r"than any\w+|more than|the most|most of all|a lot|very much|so much|these days|nowadays|right now|currently|at "
    r"the moment|by the way|btw|you know|anyway|now|just|and (?:more|so on|others|stuff)|etc|for what|as well|to death|"
    r"unfortunately|sadly|luckily|obviously|on top of|to boot|after all|of all things|"
    r"with (?:my|all|a passion))\b).*",
    re.IGNORECASE | re.DOTALL,
)
_SEPARATOR = re.compile(r"\s*,\s*(?:(?:and|or|&)\s+)?(?:also\s+)?|\s+(?:and|or|&)\s+(?:also\s+|to\s+)?")
_ENDS_LIST = re.compile(r",? (?:and|or|&) [^,]+$")
_GERUND = re.compile(r"\w{2,}ing\b")
_ACTIVITY = re.compile(r"\w{2,}ing \w")  # with an object
_COMPLETE = re.compile(r"(?:^[A-Z][\w ]*|\ws)$")  # a name or a plural: nothing of it can follow the comma
_GLUE = "\x1f"
_ARTICLE = re.compile(r"^(?:(?:an?|the|some|any|all|both|mostly|mainly|my own) )+")
# Words by which a value points at something that was just there, or is a clause of its own.
_POINTING = re.compile(
    r"\b(?:it|this|that|these|those|you|your|yours|him|them|me|I|myself|one|ones|everything|mine|ours|theirs|"
    r"everywhere|somewhere|sometimes|forever|nothing|anything|something|"
    r"everyone|anyone|someone|how|what|when|where|why|whatever|is|are|was|were|am|will|would|can|could|should|might|"
    r"has|had|did|does|mistake|same|second|first|third|last|option|options|answer|here|there|lot|bit)\b"
)
_BEGINS_BADLY = re.compile(
    r"^(?:the|all|both|these|more|most|many|so|also|my|our|his|her|their|not|being|having|to|at|in|"
    r"on|for|with|from|going|getting|doing|without|of|by|no|zero|none|neither|hardly|barely|another|enough|lots|half|"
    r"part|every|each|either|waiting|queu\w+|paying for|losing|missing|asking|nagging|complaining|bothering)\b"
    # What is chosen from what there is now: "Tuesday", "3pm", "B", "version 2".
    r"|^(?:(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day|tomorrow|tonight|today|later|\d[\d:.]*(?: ?[ap]m)?|[A-Z]|"
    r"(?:version|plan|number|variant|draft|design|choice|layout|slide|page|table|seat|room|paragraph|chapter|"
    r"section|line|step) \w+)$"
)
_NO_WORD = re.compile(r"[\ufffc@{}<>|\\]|://|\d{5}")


def one(text: str) -> str:
    """The first thing named in a text, or nothing."""
    value = _CUT.sub("", text).split(",")[0].strip(" .'\"-")
    return value if _fits(value) else ""


def several(text: str, *, closed: bool = False) -> list[str]:
    """Each thing of a list, up to where it stops being one.

    Commas make a list only where "and" or "or" ends it: in "a safe, quiet place" they do not. What follows "and" in
    "reading books and papers" is read, too. Where the values are words of a closed list, all that does not matter.
    """
    kept = _KEPT_WHOLE.sub(lambda m: m[0].replace(" and ", _GLUE), _CUT.sub("", text))
    parts = _SEPARATOR.split(kept)
    if not closed and "," in kept and not _ENDS_LIST.search(kept):
        parts = parts[:1] if _COMPLETE.search(parts[0]) else []
    elif _ACTIVITY.match(parts[0]) and not all(_GERUND.match(part) for part in parts):
        parts = [kept] if "," not in kept else []
    values = [part.replace(_GLUE, " and ").strip(" .'\"-") for part in parts]
    return list(takewhile(_fits, values))


def bare(value: str) -> str:
    """Without its article: 'a peanut' and 'the cello' name what 'peanut' and 'cello' do."""
    return _ARTICLE.sub("", value)


def is_general(value: str) -> bool:
    """Is it a thing as such, and not this one here?"""
    points_back = _BEGINS_BADLY.match(value) and not re.match(r"the [A-Z]", value)
    return not points_back and not _POINTING.search(value)


def proper(text: str) -> str:
    """The name of a place or an organisation at the start of a text."""
    match = re.match(rf"(?:the )?({PROPER})", text)
    value = match[1].rstrip(".'’&-+ ") if match else ""
    return "" if not value or _NO_PLACE.match(value) or value.endswith("'s") else value


def person(text: str) -> str:
    match = re.match(rf"({PERSON})(?=$|[\s,.;)])", text)
    value = match[1].rstrip(".'’- ") if match else ""
    return "" if not value or NOT_A_PERSON.match(value) or value.endswith("'s") else value


def people(text: str) -> list[str]:
    found = []
    for part in _SEPARATOR.split(_CUT.sub("", text)):
        name = person(part)
        if not name or name != part.strip(" .'"):
            break
        found.append(name)
    return found


_NO_PLACE = re.compile(
    any_of(
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August "
        "September October November December Mondays Fridays Saturdays Sundays Christmas Easter Noon Midnight Peanuts "
        "Free Money Night God Dad Mom Mum Full I My The A An This That Peace Fear Hope Hell Heaven"
    )
    + r"(?!\w)"
)


def _fits(value: str) -> bool:
    return 0 < len(value) <= LONGEST_VALUE and len(value.split()) <= _MOST_WORDS and not _NO_WORD.search(value)
