"""Plans, trips and appointments: what will be, with its day."""

from __future__ import annotations

import re
from datetime import date

from butler_memory.domain.extraction.dates import split_date
from butler_memory.domain.extraction.values import LONGEST_VALUE, is_general, proper
from butler_memory.domain.extraction.vocabulary import EVENT, IMPERATIVE, JOURNEY, NOT_A_HOME, any_of

_BE = "(?:am|is|are|will be)"
# The plain form of the few verbs in which plans are told.
_PLAIN = {
    "flying": "fly", "going": "go", "off": "go", "travelling": "travel", "traveling": "travel", "heading": "head",
    "driving": "drive", "expecting": "expect", "switching": "switch",
    "moving": "move", "getting": "get", "starting": "start", "visiting": "visit", "hosting": "host", "running": "run",
    "leaving": "leave", "taking": "take", "presenting": "present", "launching": "launch", "graduating": "graduate",
    "retiring": "retire", "seeing": "see", "attending": "attend", "meeting": "meet", "relocating": "relocate",
    "marrying": "marry", "returning": "return", "adopting": "adopt", "sailing": "sail", "giving": "give",
}  # fmt: skip
_TRAVEL_WORDS = "off flying going travelling traveling heading driving sailing".split()
_TRAVEL = any_of("", *_TRAVEL_WORDS)
_TRIP = re.compile(rf"(?:{_BE} (?P<verb>{_TRAVEL})|(?P<will>fly|travel|go)) (?P<rest>(?:back )?to .+)")
_STAY = re.compile(r"will (?P<rest>be in .+)")
_DOING = re.compile(
    rf"{_BE} (?P<verb>{any_of('', *sorted(set(_PLAIN) - set(_TRAVEL_WORDS)))}) (?!to\b|late\b|the [^A-Z])(?P<rest>.+)"
)
_MOVING = re.compile(rf"{_BE} (?P<verb>moving|relocating) (?P<rest>to .+)")
_MEANT = re.compile(r"(?:plans? to|(?:am|is|are) planning to|intends? to|(?:am|is|are) planning on) (?P<rest>.+)")
_GOING_TO = re.compile(
    r"(?:am|is|are) going to (?P<rest>(?!be\b|bed\b|need\b|have to\b|die\b|cry\b|scream\b|explode\b|miss\b|regret\b|"
    r"lose my\b|go crazy\b)[a-z]+ .+)"
)
# "No meeting", "to cancel dinner", "failed my test": no appointment.
_NO_LEAD = (
    r"(?!(?:to|no|not|never|the|an?|my|our|of|for|with|about|after|before|at|in|on|and|or|been|had|any|lots|zero|"
    r"missed|failed|skipped|moved|cancel\w+|reschedul\w+|postpon\w+|attended|finished|passed)\b)"
)
_JUDGED = "(?!(?:good|great|nice|long|last|lovely|boring|bad|awful|ready|another|every|same|busy|back|re|prep)\\b)"
_EVENT = rf"(?:{_NO_LEAD}[\w'-]+ ){{0,3}}{EVENT}(?: (?:with|at|for) [\w' .-]{{2,40}}?)?"
_HAVING = re.compile(rf"(?:have|has|am having|is having) (?:an? |my |the |another )?(?P<what>{_EVENT})")
_OWN = re.compile(
    rf"'s (?P<what>(?:[\w'-]+ ){{0,2}}(?:{EVENT}|(?P<journey>{JOURNEY}))(?: to [\w ]{{2,30}}?)?) (?:is|are)"
    r"(?: booked| scheduled)?(?: for)?"
)
_FRAGMENT = re.compile(rf"(?!(?i:I|my|the|user|{IMPERATIVE})\b)(?i:{_JUDGED})(?P<what>(?i:{_EVENT}))")

_OPEN_END = re.compile(r" (?:for|by|before|after|about|until|till|since|than|from|around|like|of)$")

Plan = tuple[str, str]  # predicate, content


def plan_in(rest: str, today: date) -> Plan | None:
    """What follows a subject, read as a plan."""
    if (match := _MOVING.match(rest)) and _is_home(match["rest"].removeprefix("to ")):
        return _dated("plan", f"{_PLAIN[match['verb']]} {match['rest']}", today)
    if match := _TRIP.match(rest):
        goes_somewhere = proper(match["rest"].removeprefix("back ").removeprefix("to "))
        if goes_somewhere:
            return _dated("trip", f"{match['will'] or _PLAIN[match['verb']]} {match['rest']}", today)
    if (match := _STAY.match(rest)) and proper(match["rest"].removeprefix("be in ")):
        return _dated("trip", match["rest"], today)
    if match := _MEANT.match(rest):
        return _dated("plan", match["rest"], today)
    if match := _GOING_TO.match(rest):
        return _dated("plan", match["rest"], today)
    if event := _event(rest, today):
        return event
    if match := _DOING.match(rest):
        return _dated("plan", f"{_PLAIN[match['verb']]} {match['rest']}", today)
    return None


def _is_home(text: str) -> bool:
    return text.startswith("a ") or (bool(proper(text)) and not NOT_A_HOME.match(text))


def noted_event(clause: str, today: date) -> Plan | None:
    """'Dentist next Tuesday at 10': a diary's style, with no verb."""
    found = split_date(clause, today)
    if found is None or found.after or not (match := _FRAGMENT.fullmatch(found.before)):
        return None
    return "appointment", f"{match['what'][:1].lower()}{match['what'][1:]} {found.day}"


def _event(text: str, today: date) -> Plan | None:
    found = split_date(text, today)
    if found is None:
        return None
    if match := _HAVING.fullmatch(found.before):
        return "appointment", f"{match['what']} {found.day}"
    if match := _OWN.fullmatch(found.before):
        return "trip" if match["journey"] else "appointment", f"{match['what']} {found.day}"
    return None


def _dated(predicate: str, text: str, today: date) -> Plan | None:
    found = split_date(text, today)
    if found is None or " " not in found.before or "," in found.before or not is_general(found.before):
        return None
    if _OPEN_END.search(found.before) or (predicate == "plan" and found.day == f"on {today}"):
        return None  # "get ready for Friday"; "I am giving up today" is a mood
    content = f"{found.before} {found.day}"
    return (predicate, content) if len(content) <= LONGEST_VALUE else None
