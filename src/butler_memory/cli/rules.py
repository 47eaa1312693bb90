"""rule promote, demote, disable, enable, undo: what a person decides about a rule (R1, R4)."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text

from butler_memory.cli import screen, words
from butler_memory.cli.session import Session, run
from butler_memory.domain.kinds import Standing

_HELP = {
    Standing.PROMOTE: "One level up (candidate, established, proven), held until a harmful mark or your next word.",
    Standing.DEMOTE: "One level down, held likewise.",
    Standing.DISABLE: "Stop following a rule: it is not served, and no agent can learn it again.",
    Standing.ENABLE: "Follow a disabled rule again.",
    Standing.UNDO: "A warning was wrong: the rule as it was said becomes a new candidate.",
}


def of(standing: Standing) -> Callable[..., None]:
    """The command for one decision."""

    def decide(session: Session, id_: words.Id) -> None:
        run(_decide(session, standing, str(id_)))

    decide.__doc__ = _HELP[standing]
    return decide


async def _decide(session: Session, standing: Standing, rule_id: str) -> None:
    async with session.memory(embeds=standing is Standing.UNDO) as (engine, who):
        written = await engine.memory.set_standing(who, {"rule_id": rule_id, "standing": standing})
        row = (await engine.memory.get(who, {"type": "rule", "id": written["id"]}))["memory"]
    now = Text(f"now {row['status']}, {row['maturity']}{', pinned' if row['pinned'] else ''}")
    session.answer(written, screen.safe(f"rule {written['id']}", "bold"), now)
