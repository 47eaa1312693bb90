"""What every read works with: the question's vector, the filters of the caller, and who is told what was read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from butler_memory.domain.kinds import MemoryType, SearchMode
from butler_memory.domain.ranking import Recipe
from butler_memory.embedding.counting import TokenCounter
from butler_memory.embedding.models import Models
from butler_memory.embedding.ports import Vector
from butler_memory.errors import Unavailable
from butler_memory.postgres.database import Database
from butler_memory.postgres.search import Asked, Filters, Found, Gating, Question
from butler_memory.retrieval.references import References
from butler_memory.retrieval.served_log import ServedLog
from butler_memory.security.principal import GLOBAL, Principal, readable_scopes
from butler_memory.settings import MemorySettings

# A reader waits longer than a writer: an answer by keywords alone is worse than one a moment later.
PATIENCE_SECONDS = 1.0
# And longer for each further text: about what the model takes for one of full length (docs/decisions/0002).
FURTHER_TEXT_SECONDS = 0.05
LONGEST_PATIENCE_SECONDS = 10.0

NO_MODEL = "no_embedding_model"
EMBEDDING_TIMEOUT = "embedding_timeout"
# The tenant answers from vectors of a model that is not here any more, until those of the new one are made (L5).
REEMBEDDING = "reembedding"
# Asking again is needed when a tenant's vectors were swapped, which does not happen twice within a question.
TRIES = 3


@dataclass(frozen=True)
class Embedded(Asked):
    """A question, and why it has no vector where it should have one."""

    lacking: str = ""


@dataclass(frozen=True)
class Reader:
    database: Database
    models: Models
    settings: MemorySettings
    references: References
    served: ServedLog
    counter: TokenCounter
    recipe: Recipe

    async def answer(
        self, tenant: str, text: str, ask: Callable[[Embedded], Awaitable[Found]]
    ) -> tuple[Embedded, Found]:
        """The question with the vector it was asked with, and what was found; one version for both (L5)."""
        for _ in range(TRIES):
            asked = (await self.asked_many(tenant, [text]))[0]
            found = await ask(asked)
            if self.was_current(tenant, asked, found):
                break
        return asked, found

    def was_current(self, tenant: str, asked: Asked, found: Found) -> bool:
        """False where the tenant's vectors are of another version by now: the question is to be asked with that."""
        self.models.learn(tenant, found.version)
        return asked.version == found.version

    async def asked_many(self, tenant: str, texts: Sequence[str]) -> list[Embedded]:
        """Each question with its vector, or without one if the model is missing or slow (S12) or nothing is asked."""
        wanted = list(dict.fromkeys(text for text in texts if text))
        version = self.models.version_of(tenant)
        made, lacking = await self._embedded(version, wanted) if wanted else ([], "")
        vectors = dict(zip(wanted, made, strict=False))
        return [Embedded(text, vectors.get(text), version, lacking if text else "") for text in texts]

    async def _embedded(self, version: str, texts: Sequence[str]) -> tuple[list[Vector], str]:
        """Their vectors, or why there are none."""
        model = self.models.of(version)
        if model is None:
            return [], REEMBEDDING
        try:
            return await asyncio.wait_for(model.embed(texts), patience(len(texts))), ""
        except TimeoutError:
            return [], EMBEDDING_TIMEOUT
        except Unavailable:
            return [], NO_MODEL

    def question(
        self, asked: Asked, filters: Filters, mode: SearchMode, gate: int, gating: Gating = Gating.BEST
    ) -> Question:
        """Without a vector only words can be compared."""
        usable = SearchMode.KEYWORD if asked.vector is None else mode
        return Question(asked, filters, self.recipe, usable, gate, self.settings.retrieval.text_config, gating)

    def filters(
        self,
        who: Principal,
        scope: str | None,
        types: tuple[MemoryType, ...],
        now: datetime,
        asked: float | None = None,
    ) -> Filters:
        """Who names a confidence gets that; else the threshold holds, but for what is too important to be lost (J3)."""
        usual = self.settings.facts.retrieval_confidence_threshold
        plain = filters_for(who, scope, types, now, usual if asked is None else asked)
        return replace(plain, unconfirmed=asked is None)


def patience(texts: int) -> float:
    return min(LONGEST_PATIENCE_SECONDS, PATIENCE_SECONDS + FURTHER_TEXT_SECONDS * max(0, texts - 1))


def filters_for(
    who: Principal, scope: str | None, types: tuple[MemoryType, ...], now: datetime, min_confidence: float
) -> Filters:
    """What this caller may look at: own scopes for facts and rules, own butler for episodes (S4)."""
    scopes = readable_scopes(who, scope)
    butlers = None
    if scopes is not None:
        # Episodes belong to a butler, not to a project or to all: without a butler's name they are the caller's own.
        named = tuple(each for each in scopes if each != GLOBAL and ":" not in each)
        butlers = named or (who.butler,)
    return Filters(types, scopes, butlers, now, min_confidence)
