"""Words of the command line that need more than typer's own types."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import typer

from butler_memory.domain.kinds import EpisodeState, MemoryType, Permanence, RuleStatus, Validity
from butler_memory.domain.lifecycle import state_from_text

_PLURAL = {f"{kind}s": kind for kind in MemoryType}
STATES: dict[MemoryType, list[str]] = {
    MemoryType.FACT: [state.value for state in Validity],
    MemoryType.RULE: [state.value for state in RuleStatus],
    MemoryType.EPISODE: [state.value for state in EpisodeState],
}
LIVE = ["active", "fading"]
ALL = "all"


def memory_type(word: str) -> MemoryType:
    """'fact' or 'facts', however it is capitalised."""
    plain = word.strip().lower()
    found = _PLURAL.get(plain) or _PLURAL.get(f"{plain}s")
    if found is None:
        raise typer.BadParameter("must be fact, rule or episode")
    return found


def state(word: str) -> str:
    known = [*sorted({name for names in STATES.values() for name in names}), ALL]
    plain = state_from_text(word.strip().lower())
    if plain not in known:
        raise typer.BadParameter(f"must be one of {', '.join(known)}")
    return plain


def states_of(kind: MemoryType, asked: list[str]) -> list[str]:
    """What `--state` means for this type; an empty list means that it has none of them."""
    if ALL in asked:
        return STATES[kind]
    return [name for name in STATES[kind] if name in (asked or LIVE)]


def split_tags(given: list[str] | None) -> list[str] | None:
    """`--tags a,b --tags c`; an empty word clears them."""
    if given is None:
        return None
    return [tag.strip() for words in given for tag in words.split(",") if tag.strip()]


Type = Annotated[MemoryType, typer.Argument(parser=memory_type, metavar="TYPE", help="fact, rule or episode")]
Id = Annotated[UUID, typer.Argument(metavar="ID", help="As 'remember' and 'list' show it.", show_default=False)]
Tags = Annotated[list[str] | None, typer.Option("--tags", metavar="A,B", help="Comma separated, or repeated.")]
Importance = Annotated[float | None, typer.Option("--importance", help="1 to 10.", show_default=False)]
Lasting = Annotated[Permanence | None, typer.Option("--permanence", help="How fast it fades.", show_default=False)]
Where = Annotated[str | None, typer.Option("--scope", metavar="SCOPE", help="global, a butler's name or project:SLUG.")]
