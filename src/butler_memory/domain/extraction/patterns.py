"""What a person says of themselves or of another: one row for each way to say it.

A pattern reads what follows the subject ("am allergic to nuts", "'s name is Jo") from its start. `value` is the group
that holds the value; the shape says how the value is taken out of it; `only` is what each value must wholly be.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile

from butler_memory.domain.extraction import values
from butler_memory.domain.extraction import vocabulary as words

Shape = Callable[[str], list[str]]

_BE, _HAVE = "(?:am|is|are|have been|has been)", "(?:have|has|do have)"
_END = (
    r"(?=$|[,.;!(]| (?:and|but|with|in|at|for|since|who|from|near|so|because|as|on|these|too|by|btw|though|now|working|"
    r"of (?:\d|[A-Z]))\b)"
)
_OWN_END = r"(?=$|[,.;!(]| (?:and|but|so|because|since|now|at home)\b)"
_JOB_END = (
    r"(?=$|[,.;!(]| (?:and|but|who|with|since|near|from|so|because|as well|too|now|these|btw|though|working|by "
    r"(?:trade|"
    rf"profession|training))\b| (?:in|at|for|of) (?:the )?(?:\d|[A-Z]|(?:an? )?(?:[\w-]+ )?{words.ORGANISATION}\b))"
)
_DIET_END = (
    r"(?=$|[,.;!(]| (?:and|but|with|since|who|so|because|these|too|btw|by the way|though|now|for (?:\d|\w+ "
    r"(?:reasons|years)))\b)"
)
_STOP = r"(?=$|[,.;!(]| (?:and|but|so|because)\b)"
_MONTHS = "January|February|March|April|May|June|July|August|September|October|November|December"
_DAY = (
    rf"(?:(?:{_MONTHS}) \d{{1,2}}(?:st|nd|rd|th)?|(?:the )?\d{{1,2}}(?:st|nd|rd|th)?(?: of)? (?:{_MONTHS}))"
    rf"(?:,? \d{{4}})?|\d{{4}}-\d\d-\d\d"
)
_UNLIKELY = (  # "a terrible cook", "a big fan of my dentist": no trade
    "of|the|my|your|bit|fan|former|ex|friend|not|like|than|big|great|good|bad|terrible|better|lousy|keen|home|amateur|"
    "hobby|avid|aspiring|natural|born|slow|fast|real|true|total|proud|lucky|happy|horrible|decent|awful|fellow|future|"
    "wannabe|regular|frequent|more|sort|kind|old|armchair|honorary|designated|recovering|self-proclaimed|backseat|"
    "unofficial|closet|would-be|secret|brilliant|mediocre|perfect|typical|fake|pretend|morning|part-time"
)
_OFTEN = (
    r"(?:(?:every|each) (?:other |single )?(?:\w*day|week|weekend|month|year|morning|evening|afternoon|night|summer|"
    r"winter)(?: (?:morning|evening|afternoon|night)\b)?|"
    r"(?:once|twice|\w+ times) (?:a|per) \w+|on (?:weekends|weekdays|\w+days)|daily)"
)
# What one reaches for over months: not "save the file", "quit Vim", "run a query", "write a letter".
_AIM = (
    rf"(?:learn (?:how to |to |the )?(?:{words.LANGUAGE}|{words.GAME}|(?<=to )[a-z]+)\b|become an? (?!member|customer)|"
    r"quit (?:smoking|drinking|vaping|sugar|coffee|caffeine|alcohol)|lose (?:weight|\d+)|save (?:up|money)\b|get fit\b|"
    r"run an? (?:half |full |first )?(?:marathon|half-marathon|\d+ ?k|ultra)|write an? (?:novel|book|memoir|"
    r"screenplay)\b|cut (?:down|back) on|(?:eat|drink) (?:less|more)\b)"
)
_NO_OFFER = (  # what one wants to have now is no interest
    r"(?!.*\b(?:to|for|near|from|under|around|between|with|flights?|tickets?|hotels?|prices?|apartments?|flats?|"
    r"houses?|jobs?|positions?|roles?|offers?|tours?)\b).+"
)
_NOUN = (
    r"(?!(?:and|or|for|on|in|at|with|as|to|when|since|every|over|from|by|all|these|so|but|because|if|too|not)\b)[a-z]"
)
_NO_TONGUE = rf"(?!{words.LANGUAGE}$).+"
_ILL_VERB = (
    rf"(?:(?:was|{_BE}|{_HAVE} been) diagnosed with|{_HAVE}(?: had(?=.* (?:since|for)\b))?|suffers? from|"
    rf"{_BE} (?:living with|suffering from))"
)


# "Driving around the block", "blue for my logo", "it better", "a good plan", "Anna's idea"
_AT_HAND = re.compile(
    r"\bthe (?!way\b|morning|evening|afternoon|sea\b|ocean|outdoors|countryside|mountains|rain|piano)[a-z]| for "
    r"(?:an?|my|our|her|his)\b|\b(?:better|best|more|less)$|^an? |[A-Z]\w+'s [a-z]"
)
_NOW = re.compile(r"\b(?:on|by|until) (?:\w+day|\d+)\b|\blater\b|^to (?:wait|stay|leave|go|skip)\b")
_NARROWED = re.compile(r"^[^,.;(]*? (?:who|that|which)\b")


def _one(text: str) -> list[str]:
    return [values.bare(v)] if (v := values.one(text)) and values.is_general(values.bare(v)) else []


def _things(text: str) -> list[str]:
    return [values.bare(v) for v in values.several(text, closed=True)]


def _liked(text: str) -> list[str]:
    """Stops where something stands that is only here and now: the rest of such a list is no taste either."""
    return list(takewhile(lambda value: not _AT_HAND.search(value), _general(text)))


def _general(text: str) -> list[str]:
    if _NARROWED.search(text):  # "people who ask": not people
        return []
    return list(takewhile(values.is_general, values.several(text)))


def _owned(text: str) -> list[str]:
    return [values.bare(value) for value in _general(text)]


def _wanted(text: str) -> list[str]:
    value = values.one(text)
    meant = value.removeprefix("not ").removeprefix("to ").removesuffix(" this year")
    return [value] if value and values.is_general(meant) else []


def _preferred(text: str) -> list[str]:
    wanted = text.removeprefix("a ").removeprefix("an ")
    return [] if _NOW.search(text) or _AT_HAND.search(wanted) else _wanted(wanted)


def _name(text: str) -> list[str]:
    return [v] if (v := values.person(text)) else []


def _proper(text: str) -> list[str]:
    return [v] if (v := values.proper(text)) else []


def _place(text: str) -> list[str]:
    return [v for v in _proper(text) if not words.NOT_A_HOME.match(v)]


def _propers(text: str) -> list[str]:
    found: list[str] = []
    for part in values.several(text):
        if values.proper(part) != part.removeprefix("the "):
            return found or _proper(part)
        found.append(values.proper(part))
    return found


def _as_said(text: str) -> list[str]:
    return [text.strip(" .,")]


def _no(text: str) -> list[str]:
    return [f"no {value}" for value in _things(text)]


def _animal(text: str) -> list[str]:
    return [re.sub(r",? (?:named|called) ", " named ", text.strip(" .,"))]


@dataclass(frozen=True)
class Pattern:
    predicate: str
    said: re.Pattern[str]
    shape: Shape
    only: re.Pattern[str] | None = None
    written: str = "{}"  # how the value becomes the content


def _row(predicate: str, said: str, shape: Shape, only: str = "", written: str = "{}") -> Pattern:
    said = said.replace("...", "(?P<value>.+)")
    return Pattern(predicate, re.compile(said), shape, re.compile(only) if only else None, written)


# fmt: off
PATTERNS: tuple[Pattern, ...] = (
    # identity
    _row("name", rf"'s name is (?!{words.NATIONALITY}\b)(?P<value>{words.PERSON}){_END}", _name),
    _row("full_name", rf"'s (?:full|legal) name is (?P<value>{words.PERSON}){_END}", _name),
    _row("preferred_name", rf"'s (?:preferred name|nickname) is (?P<value>{words.PERSON}){_END}", _name),
    _row("preferred_name", rf"(?:go|goes) by (?P<value>{words.PERSON}){_STOP}", _name),
    _row("preferred_name", r"(?:prefers?|likes?) to be called ...", _name),
    _row("pronouns", r"(?:'s pronouns are|(?:go|goes) by|uses?(?=.* pronouns)) (?P<value>[a-z]+(?:/[a-z]+){1,2})",
         _as_said),
    _row("birthday", rf"'s (?:birthday|birth date|date of birth) is (?:on )?(?P<value>{_DAY})", _as_said),
    _row("anniversary", rf"'s (?:wedding )?anniversary is (?:on )?(?P<value>{_DAY})", _as_said),
    _row("birthday", rf"(?:was|am|is) born on (?P<value>{_DAY})", _as_said),
    _row("birthplace", r"was born (?:and raised )?in ...", _place),
    _row("birthplace", rf"(?:{_BE} originally from|'s (?:hometown|birthplace) is) ...", _place),
    _row("birthplace", rf"{_BE} from (?P<value>{words.PROPER}) originally", _proper),
    _row("nationality", rf"{_BE} (?:an? )?(?P<value>{words.NATIONALITY}){_STOP}", _as_said),
    _row("native_language", rf"'s (?:native language|first language|mother tongue) is (?P<value>{words.LANGUAGE})",
         _as_said),
    _row("native_language", rf"{_BE} a native (?P<value>{words.LANGUAGE}) speaker", _as_said),
    _row("language", rf"(?:speaks?|{_BE} fluent in|'s languages are) (?:fluent |native |both )?(?P<value>.+)", _things,
         words.LANGUAGE),
    _row("timezone", r"'s time ?zone is (?P<value>[A-Z][\w/+:-]*(?: (?:[A-Z]\w+|time))*)", _as_said),
    _row("timezone", rf"{_BE} (?:in|on) (?:the )?(?P<value>[A-Z][\w/+:-]*(?: [A-Z]\w+)?) time ?(?:zone)?{_STOP}",
         _as_said),
    _row("blood_type", r"'s blood type is (?P<value>(?:AB|A|B|O)(?: ?[+-]| (?:positive|negative))?)(?!\w)", _as_said),
    _row("marital_status", rf"{_BE} (?P<value>married|divorced|widowed|single)(?=$|[.;!(]| (?:and|but)\b)", _as_said),
    # health and diet
    _row("allergy", rf"{_BE} (?:\w+ly |very )?allergic to ...", _things, words.ALLERGEN),
    _row("allergy", rf"(?:{_HAVE} (?:an? )?(?!no )(?:\w+ )?allerg(?:y|ies) to|'s allergies (?:are|include)) ...",
         _things, words.ALLERGEN),
    _row("allergy", rf"{_HAVE} (?:an? )?(?:severe |bad |mild )?(?P<value>[\w-]+(?: [\w-]+)?) allergy{_END}", _one,
         words.ALLERGEN),
    _row("medical_condition", rf"{_BE} (?:an? )?(?P<value>(?:type [12] )?{words.BEING_ILL}){_END}(?! as\b)", _as_said),
    _row("medical_condition", rf"{_ILL_VERB} (?!.* when\b|an? (?:\w+ )*migraine\b|.*\bmigraine (?:today|now|right|"
         rf"again|since))(?:(?:terrible|bad|awful|really bad) )?(?P<value>.+?)(?= (?:last|in \d+|since|as|for|at \d+|"
         rf"a few|two|ago|every)\b|$)", _things, words.ILLNESS),
    _row("medication", rf"(?:takes?|{_BE} taking|{_BE} on|{_BE} prescribed) (?P<value>.+?)(?= (?:for|every|twice|once|"
         rf"each|daily|in|at|a)\b|$)", _things, words.MEDICINE),
    _row("dietary_restriction", rf"{_BE} (?:an? )?(?:strict |lifelong |ethical )?(?P<value>{words.DIET}){_DIET_END}",
         _as_said),
    _row("dietary_restriction", r"(?:(?:do|does) not (?:eat|drink)|cannot (?:eat|have|drink)(?!.* now\b)) ...", _no,
         rf"no {words.FOOD}"),
    _row("dietary_restriction", r"(?:avoids?|never (?:eats?|drinks?)) ...", _no, rf"no {words.FOOD}"),
    _row("dietary_restriction", rf"(?:keeps?|(?:only )?eats?(?: only)?|follows?(?=.* diet)|{_BE} on) (?:an? |strictly "
         rf")?(?P<value>{words.DIET_STYLE})(?: diet| food)?{_END}", _as_said),
    # home and work
    _row("home", rf"(?:lives?|{_BE} (?:living|based|residing)|resides?|{_HAVE} been living|{_HAVE} lived(?=.* (?:for|"
         rf"since|all my)\b)) (?:alone |together )?in ...", _place),
    _row("home", rf"(?:{_HAVE} )?(?:moved|relocated) (?:here )?to ...", _place),
    _row("employer", rf"(?:(?:works?|{_BE} working|{_HAVE} been working|started(?: a new job| work| working)?) "
         rf"(?:part-time |full-time )?(?:at|for)|"
         rf"{_BE} employed (?:at|by)) ...", _proper),
    _row("employer", rf"(?:works?|{_BE} working) (?:(?:at|for)|in(?= an? )) (?P<value>(?:an?|the) (?:[\w-]+ "
         rf"){{0,2}}{words.ORGANISATION}){_END}", _as_said),
    _row("employer", rf"(?:works?|{_BE} working) as (?:an? )?[\w -]{{3,40}}? (?:at|for) ...", _proper),
    _row("employer", rf"(?:have |has )?joined (?P<value>.+?)(?= (?:as an?|in 20\d\d|in (?:{_MONTHS}))\b)", _place),
    _row("job", rf"(?:works?|{_BE} working|{_BE} employed) as (?:an? (?!team\b|unit\b|group\b|pair\b|slave\b|matter\b|"
         rf"result\b)|(?:the )?(?=(?:[\w-]+ ){{0,3}}{words.TRADE}\b))(?P<value>[a-z][\w' -]{{1,50}}?)(?= (?:at|for|in|"
         rf"with|from)\b|$|,)", _one),
    _row("job", rf"(?:works?|{_BE} working) (?:at|for) (?:the )?{words.PROPER} as (?:an? )?(?P<value>[a-z][\w' "
         rf"-]{{1,50}}?)(?= (?:in|with|from)\b|$|,)", _one),
    _row("job", rf"(?:{_BE} an?|'s (?:job|profession|occupation) is) (?!(?:(?!and |who |with |at |for |in )[\w-]+ "
         rf")*(?:{_UNLIKELY})\b)(?P<value>(?:[\w-]+ ){{0,3}}{words.TRADE}){_JOB_END}", _as_said),
    _row("job", rf"{_BE} (?P<value>self-employed|retired|unemployed|freelancing){_STOP}", _as_said),
    _row("education", rf"(?:studied|studies|study|{_BE} studying) (?P<value>[\w ]{{3,40}} at {words.PROPER})", _one),
    _row("education", rf"{_HAVE} an? (?P<value>(?:PhD|doctorate|MBA|MSc|BSc|BA|MA|(?:master's|bachelor's)(?: degree)?|"
         rf"degree) in .+)", _one),
    _row("education", r"graduated from ...", _proper),
    _row("employer", rf"{_BE} an? (?!(?:[\w-]+ )*student)(?:[\w-]+ ){{0,3}}{words.TRADE} (?:at|for) ...", _proper),
    _row("employer", r"'s employer is ...", _proper),
    _row("religion", rf"{_BE} (?:an? )?(?P<value>{words.FAITH}){_STOP}", _as_said),
    _row("member_of", rf"{_BE} a member of ...", _proper),
    # people and animals
    _row("spouse", rf"{_BE} married to ...", _name),
    _row("pet", rf"{_HAVE} (?:an? |one )?(?:[\w-]+[ -](?:year|month)s?[ -]old )?(?:{words.PET_LOOKS} )?"
         rf"(?P<value>{words.PET}(?:,? (?:named|called) {words.PERSON})?){_OWN_END}", _animal),
    _row("pet", rf"{_HAVE} (?P<value>{words.COUNT} {words.PETS}){_OWN_END}", _as_said),
    # tastes, hobbies, things
    _row("likes", rf"(?:likes?|loves?|enjoys?|adores?|{_BE} (?:an? )?(?:big |huge |great )?fan of|{_BE} fond of) "
         rf"(?!to\b)...", _liked),
    _row("likes", r"(?:likes?|loves?) (?P<value>to (?!be\b|hear\b|see\b|know\b|think\b|say\b|bother\b).+)", _wanted),
    _row("preference", r"(?:likes?|takes?|drinks?) (?:my|his|her|their) (?P<value>(?:coffee|tea|steak|eggs|burgers?|"
         r"pizza) (?!shop|cup|mug|place|machine|maker|pot|break).+)", _one),
    _row("dislikes", rf"(?:hates?|dislikes?|detests?|loathes?|cannot stand(?! (?:up|still|on|by|in|straight)\b)|(?:do|"
         rf"does) not (?:like|enjoy)|{_BE} not a (?:big )?fan of) ...", _liked),
    _row("preference", r"prefers? (?!to be called|that\b|not to (?:say|answer|talk|discuss|share|comment|disclose|"
         r"go)\b)...", _preferred),
    _row("preference", r"(?:expressed|has|stated) an? (?:strong |clear )?preference for ...", _preferred),
    _row("interest", r"expressed (?:an? )?(?:strong )?interest in (?!an? |book|buy|rent|see|hear|know)...", _liked,
         _NO_OFFER),
    _row("favorite", r"'s fav(?:ou?rite)? (?!part|bit|moment|thing|option|one|version|scene|line)(?P<what>[\w ]{2,30}?)"
         r" (?:is|are) ...", _one, written="{what}: {}"),
    _row("hobby", r"'s (?:main |biggest |favou?rite )?hobb(?:y|ies) (?:is|are|include) ...", _liked),
    _row("hobby", r"plays? (?P<value>.+?)(?= (?:every|on|with|in|at|for|twice|once|since)\b|$)", _things, words.GAME),
    _row("hobby", r"collects? ...", _liked, rf"(?:[\w-]+ ){{0,3}}{words.COLLECTED}", "collecting {}"),
    _row("interest", rf"{_BE} (?:very |really )?(?:into|interested in|passionate about) (?!an? |book|buy|rent|see|hear|"
         rf"know|sell|hir|join|apply|mov|work|try|week|day|month|year|hour)...", _liked, _NO_OFFER),
    _row("interest", rf"{_BE} learning (?:how )?...", _things, rf"(?:{words.LANGUAGE}|{words.GAME}|to [a-z]+(?: (?:the "
         rf")?(?!my|your)[a-z]+)?)", "learning {}"),
    _row("owns", r"owns? (?!up\b)...", _owned),
    _row("owns", rf"{_HAVE} an? (?P<value>(?!rent|hire|loan|borrow|toy|dream|company)(?:[\w-]+ "
         rf")?{words.BELONGING}){_OWN_END}", _as_said),
    _row("uses", rf"(?:uses? (?:an? )?|(?:drives?|rides?) an? )(?!{words.PROPER} {_NOUN})...", _propers, _NO_TONGUE),
    _row("uses", rf"uses? (?P<value>{words.TOOL_IN_SMALL}){_STOP}", _as_said),
    _row("uses", rf"{_BE} on (?P<value>{words.SYSTEM}(?: \d+(?:\.\d+)*+)?+){_END}(?! for\b)", _as_said),
    _row("uses", rf"(?:have |has )?switched to (?P<value>{words.PROPER})", _propers, _NO_TONGUE),
    _row("subscription", rf"(?:subscribes? to|{_BE} subscribed to) (?P<value>(?:The )?{words.PROPER})", _as_said,
         r".*(?<!'s)"),
    _row("subscription", rf"{_HAVE} an? (?P<value>{words.PROPER}) (?:subscription|membership){_END}", _as_said),
    _row("habit", rf"(?P<value>(?:usually|normally|typically|generally) {words.ROUTINE}.*)", _one),
    _row("habit", rf"(?!(?:run|train) (?:into|out|the|an?|tests?|over|off|low|late|errands|models?|"
         rf"my)\b)(?P<value>{words.ROUTINE}\b.{{0,40}}? ?\b{_OFTEN})", _one),
    _row("goal", rf"(?:'s (?:\w+ )?goal (?:this year |for 20\d\d )?is to|{_BE} (?:trying|aiming|hoping) to(?= {_AIM})) "
         rf"...", _wanted),
    _row("goal", rf"(?:wants?|would like) to (?P<value>{_AIM}.*)", _wanted),
)
# fmt: on

# What replaces what. Where no known fact has the old value, only the last two rows say of what kind the new one is.
CHANGES: tuple[tuple[str, re.Pattern[str], Shape], ...] = (
    ("home", re.compile(r"(?:have |has )?(?:moved|relocated) from (?P<old>.+?) to (?P<value>.+)"), _place),
    ("employer", re.compile(r"(?:have |has )?left (?P<old>.+?) (?:for|to join) (?P<value>.+)"), _proper),
    ("name", re.compile(r"(?:have |has )?changed 's name from (?P<old>.+?) to (?P<value>.+)"), _name),
    ("uses", re.compile(r"(?:have |has )?(?:switched|changed|migrated) from (?P<old>.+?) to (?P<value>.+)"), _one),
)
OF_THEM = [pattern for pattern in PATTERNS if not pattern.said.pattern.startswith("'s")]


def contents(pattern: Pattern, rest: str) -> list[str]:
    match = pattern.said.match(rest)
    if match is None:
        return []
    given = match.groupdict()
    found = pattern.shape(given.pop("value"))
    fit = [value for value in found if pattern.only is None or pattern.only.fullmatch(value)]
    return [pattern.written.format(value, **given) for value in fit if value]
