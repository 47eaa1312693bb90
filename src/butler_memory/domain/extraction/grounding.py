"""Which words of an episode are the user's, or a note's about the user: what others of the house may rest on."""

from __future__ import annotations

from butler_memory.domain.extraction.sentences import sentences
from butler_memory.domain.extraction.transcript import turns
from butler_memory.domain.extraction.traps import Reach, trap_in

# A sentence of such a kind says something by itself; it is only not known to be so.
_OWN_ALL_THE_SAME = frozenset({"perhaps", "hypothetical", "past", "joke", "taken back", "secret"})


def own_words(text: str) -> str:
    """Without what was quoted, pasted, shown by a tool, told by an assistant, or addressed to the memory itself."""
    own: list[str] = []
    for turn in turns(text):
        if turn.voice == "other":
            continue
        said: list[str] = []
        for sentence in sentences(turn.text):
            trap = trap_in(sentence)
            if trap is None or trap.name in _OWN_ALL_THE_SAME:
                said.append(sentence)
            elif trap.reach is Reach.TURN:
                said.clear()
                break
            elif trap.reach is not Reach.SENTENCE:
                break
        own += said
    return "\n".join(own)
