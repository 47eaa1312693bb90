"""Which words of an episode are the user's: what others of the house may rest on."""

from __future__ import annotations

import re

from butler_memory.domain.extraction.sentences import QUOTED, clauses, sentences
from butler_memory.domain.extraction.transcript import Turn, turns
from butler_memory.domain.extraction.traps import Reach, stated_part, trap_in
from butler_memory.domain.extraction.vocabulary import any_of

# A sentence of such a kind says something by itself; it is only not known to be so.
_OWN_ALL_THE_SAME = frozenset({"perhaps", "hypothetical", "past", "joke", "taken back", "secret"})

_SAYS = any_of(
    "says said tells told asks asked wants wanted claims claimed demands demanded insists insisted requests requested "
    "instructs instructed suggests suggested recommends recommended writes wrote orders ordered expects expected"
)
_SAYING = re.compile(rf"([\w'’{QUOTED}]+)(?: (?:just|also|always|never|explicitly|has|have|had))* {_SAYS}\b", re.I)
_HIMSELF = frozenset({"i", "we", "user"})
_TELLS = any_of("states stated mentions mentioned confirmed prefers explained corrected")
# A note is its writer's word, but for what it says that the user said.
_TOLD_OF_USER = re.compile(
    rf"^(?:the )?user(?: \w+){{0,2}} (?:{_SAYS}|{_TELLS})\b",
    re.IGNORECASE,
)


def own_statements(text: str) -> list[str]:
    """Clause by clause, without questions, and without what was quoted, passed on, pasted or shown by a tool, told by
    an assistant, or addressed to the memory itself."""
    return [clause for turn in turns(text) if turn.voice in ("user", "note") for clause in _own_in(turn)]


def _own_in(turn: Turn) -> list[str]:
    said: list[str] = []
    for sentence in sentences(turn.text):
        trap = trap_in(sentence)
        if trap is None or trap.name in _OWN_ALL_THE_SAME:
            said += _own_of(turn, sentence)
        elif trap.reach is Reach.TURN:
            return []
        elif trap.reach is not Reach.SENTENCE:
            break
    return said


def _own_of(turn: Turn, sentence: str) -> list[str]:
    told = stated_part(sentence.replace('"', ""))
    if QUOTED in told or _is_anothers(told) or (turn.voice == "note" and not _TOLD_OF_USER.match(told)):
        return []
    return clauses(told)


def _is_anothers(sentence: str) -> bool:
    """ "The page says ...", "my boss told me ...": not the user's word, though it is the user who passes it on."""
    return any(said[1].lower() not in _HIMSELF for said in _SAYING.finditer(sentence))
