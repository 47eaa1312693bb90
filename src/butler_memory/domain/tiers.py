"""Tiers are a view over the types (J4): nothing is stored of them."""

from __future__ import annotations

from uuid import UUID

from butler_memory.domain.kinds import Maturity, MemoryType, Permanence, Tier

LASTING = frozenset({Permanence.PERMANENT, Permanence.STABLE})
TYPES_OF = {
    Tier.EDEN: (MemoryType.EPISODE,),
    Tier.MID: (MemoryType.FACT, MemoryType.RULE),
    Tier.LONG: (MemoryType.FACT, MemoryType.RULE),
}
# What a note for a tier is stored as.
PERMANENCE_OF = {Tier.MID: Permanence.STANDARD, Tier.LONG: Permanence.STABLE}


def tier_of(kind: MemoryType, permanence: Permanence | None, maturity: Maturity | None) -> Tier:
    if kind == MemoryType.EPISODE:
        return Tier.EDEN
    lasts = maturity != Maturity.CANDIDATE if kind == MemoryType.RULE else permanence in LASTING
    return Tier.LONG if lasts else Tier.MID


def source_of(kind: MemoryType, episode: UUID | None, session: UUID | None) -> str:
    """Where it came from, in the words of the tiers: what was learned from an episode was promoted."""
    if kind is not MemoryType.EPISODE and episode:
        return f"promotion:{episode}"
    return f"session:{session}" if session else "manual"
