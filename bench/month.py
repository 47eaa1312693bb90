"""A made-up month of one user and eight butlers, lived through by an engine whose clock is moved (SPEC 7, E2, E3).

Sessions come all day, and the engine's own jobs run as they would. The user says the same things again and again, in
different words and to different butlers, moves house and changes jobs; most of what is told is worth nothing. A page
cannot be read whatever is tried, and for two days nothing at all can be read. `broken` says which laws did not hold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

from butler_memory.bootstrap import Engine
from butler_memory.consolidation.batch import Batch
from butler_memory.consolidation.readers import OfflineReader
from butler_memory.domain.kinds import Role
from butler_memory.domain.text import same_form
from butler_memory.llm.ports import BackendDown, Bad, BadOutput, Down, Reply
from butler_memory.security.principal import Principal

TENANT = "home"
BUTLERS = ("chef", "health", "house", "office", "post", "shopping", "travel", "tutor")
BEGINS = datetime(2026, 3, 2, 0, 30, tzinfo=UTC)  # a Monday
UNREADABLE = "~~ unreadable ~~"
FORMS = (
    "User: {}\nAssistant: I see.",
    "User: Hello.\nAssistant: Hello.\nUser: {}\nAssistant: Very well.",
    "User: By the way, {}",
    '{{"role": "user", "content": "{}"}}',
)
# What is told again and again: each with the places that its value takes in turn, one a week.
LASTING: Mapping[str, Sequence[str]] = {
    "I live in {}.": ("Utrecht", "Leiden"),
    "I work at {}.": ("Brightwater", "Globex", "Initech"),
    "my name is {}.": ("Nora Velde",),
}
# What is told of several values, which stand side by side.
MANY: Mapping[str, Sequence[str]] = {
    "I'm allergic to {}.": ("penicillin", "hazelnuts", "latex", "shellfish"),
    "I like {}.": ("green tea", "long walks", "jazz", "crossword puzzles", "old maps", "dark chocolate"),
    "I speak {}.": ("Dutch", "Portuguese", "Danish"),
    "I have a dog named {}.": ("Pip", "Bruno"),
    "always answer in {}.": ("short sentences", "plain words"),
    "never call me before {} am.": ("8", "9"),
}
WORTHLESS = (
    "what is the weather like?", "thanks, that worked.", "am I allergic to wool?", "if I lived in Rome, I would walk.",
    "translate this: I work at Acme.", "maybe I will take the train.", "my neighbour says that I like opera.",
    "please book the window seat this time.", "show me the list again.", "I used to like sugar.",
)  # fmt: skip
SAID_SHARE, UNREADABLE_SHARE = 0.3, 0.004


@dataclass
class Hands:
    now: datetime = BEGINS

    def __call__(self) -> datetime:
        return self.now


class TroubledReader:
    """The reader without a model, as a backend would be: away for a while, and helpless before some content."""

    name = "troubled"

    def __init__(self, hands: Hands, away_from: datetime, away_until: datetime) -> None:
        self._hands, self._away = hands, (away_from, away_until)
        self._inner = OfflineReader()

    async def read(self, batch: Batch) -> Reply:
        if self._away[0] <= self._hands.now < self._away[1]:
            raise BackendDown(Down.NO_NETWORK)
        if any(UNREADABLE in (episode.content or "") for episode in batch.episodes):
            raise BadOutput(Bad.NOT_JSON)
        return await self._inner.read(batch)

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Month:
    """`days` of life with so many episodes; the backend is away from the third of its days for two."""

    episodes: int
    days: int
    seed: int = 7
    away_for: timedelta = timedelta(days=2)

    @property
    def away_from(self) -> datetime:
        return BEGINS + timedelta(days=self.days) / 3

    def reader(self, hands: Hands) -> TroubledReader:
        return TroubledReader(hands, self.away_from, self.away_from + self.away_for)

    def told(self) -> Iterator[Told]:
        """In the order of time."""
        dice = random.Random(self.seed)
        span = timedelta(days=self.days)
        for moment in sorted(BEGINS + dice.random() * span for _ in range(self.episodes)):
            yield moment, dice.choice(BUTLERS), dice.choice(FORMS).format(self._line(dice, moment))

    def _line(self, dice: random.Random, moment: datetime) -> str:
        chance = dice.random()
        if chance < UNREADABLE_SHARE:
            return f"{UNREADABLE} {dice.random()}"
        if chance > SAID_SHARE:
            return dice.choice(WORTHLESS)
        if dice.random() < 0.2:
            shape, values = dice.choice(list(LASTING.items()))
            return shape.format(values[int((moment - BEGINS) / timedelta(days=self.days) * len(values))])
        shape, values = dice.choice(list(MANY.items()))
        return shape.format(dice.choice(values))


Told = tuple[datetime, str, str]  # when, to whom, what
Stored = dict[str, str]  # the text of each episode by its id
Ask = Callable[[str], Awaitable[list[dict[str, Any]]]]  # asks the database as its owner


async def live(engine: Engine, hands: Hands, month: Month, step: timedelta) -> Stored:
    """Until two days after the last episode: through everything that has to be tried again."""
    stored: Stored = {}
    who, told = await butlers(engine), list(month.told())
    ends = BEGINS + timedelta(days=month.days + 2)
    while hands.now < ends:
        hands.now += step
        come = [each for each in told if each[0] <= hands.now]
        del told[: len(come)]
        stored |= await store(engine, who, come)
        await engine.workers.run_due()
    return stored


async def butlers(engine: Engine) -> dict[str, Principal]:
    return {name: await _butler(engine, name) for name in BUTLERS}


async def store(engine: Engine, who: Mapping[str, Principal], told: Sequence[Told]) -> Stored:
    """Each in a session of its own."""
    stored: Stored = {}
    for moment, butler, text in told:
        said = {"content": text, "session_id": moment.isoformat(), "occurred_at": moment.isoformat()}
        stored[(await engine.memory.store_episode(who[butler], said))["id"]] = text
    return stored


async def _butler(engine: Engine, name: str) -> Principal:
    secret, _ = await engine.access.create_token(TENANT, name, Role.BUTLER)
    return await engine.access.authenticate(secret)


# --- the laws --------------------------------------------------------------------------------------------------------

ENDS = {"consolidated", "dead_letter"}


async def broken(engine: Engine, rows: Ask, stored: Stored) -> list[str]:
    """Which laws do not hold of what is there now."""
    return [
        *await _ends(rows, stored),
        *await _duplicates(rows),
        *await _bounds(rows),
        *await _sources(rows),
        *await _replay(engine),
    ]


async def _ends(rows: Ask, stored: Stored) -> list[str]:
    """Each episode is in exactly one terminal state, and only what cannot be read was given up."""
    left = await rows("SELECT id::text, consolidation_status AS status FROM memory.episodes")
    gone = await rows("SELECT id::text, reason AS status FROM memory.episode_tombstones")
    counts = Counter(row["id"] for row in [*left, *gone])
    wrong = [f"{key} is there {counts[key]} times" for key in stored if counts[key] != 1]
    wrong += [f"{row['id']} is {row['status']}" for row in left if row["status"] not in ENDS]
    given_up = {row["id"] for row in left if row["status"] == "dead_letter"}
    unreadable = {key for key, text in stored.items() if UNREADABLE in text}
    read = await rows("SELECT entity_id::text AS id, count(*) AS n FROM memory.memory_events"
                      " WHERE event_type = 'consolidated' GROUP BY 1")  # fmt: skip
    wrong += [f"{row['id']} was read {row['n']} times" for row in read if row["n"] != 1]
    if given_up != unreadable:
        wrong.append(f"given up: {len(given_up)}, unreadable: {len(unreadable)}")
    if {row["id"] for row in read} != stored.keys() - unreadable:
        wrong.append(f"read: {len(read)} of {len(stored) - len(unreadable)}")
    return wrong


async def _duplicates(rows: Ask) -> list[str]:
    """Nothing is known twice: neither what holds, nor what held once."""
    found = await rows("SELECT scope, subject_key, predicate_key, content, validity FROM memory.facts")
    found += await rows("SELECT scope, '' AS subject_key, '' AS predicate_key, content, status AS validity"
                        " FROM memory.rules")  # fmt: skip
    counts = Counter(
        (row["scope"], row["subject_key"], row["predicate_key"], same_form(row["content"]), row["validity"])
        for row in found
    )
    return [f"{count} times {key}" for key, count in counts.items() if count > 1]


async def _bounds(rows: Ask) -> list[str]:
    """However often it was told, there is no more than what was told."""
    values = sum(len(each) for each in [*LASTING.values(), *MANY.values()])
    [facts] = await rows("SELECT count(*) AS n FROM memory.facts")
    [rules] = await rows("SELECT count(*) AS n FROM memory.rules")
    wrong = [f"{facts['n']} facts of {values} values"] if facts["n"] > values else []
    most_rules = sum(1 for _ in product(BUTLERS, ("short", "plain", "8", "9")))
    return [*wrong, *([f"{rules['n']} rules"] if rules["n"] > most_rules else [])]


async def _sources(rows: Ask) -> list[str]:
    """Every fact and rule has a source, and what an episode is a source of stands in it."""
    bare = await rows(
        "SELECT f.content FROM (SELECT tenant_id, id, content FROM memory.facts UNION ALL"
        " SELECT tenant_id, id, content FROM memory.rules) f WHERE NOT EXISTS (SELECT 1 FROM memory.memory_links l"
        " WHERE (l.tenant_id, l.source_id) = (f.tenant_id, f.id) AND l.relation = 'derived_from')"
    )
    foreign = await rows(
        "SELECT f.content FROM memory.facts f JOIN memory.memory_links l"
        " ON (l.tenant_id, l.source_id) = (f.tenant_id, f.id) AND l.relation = 'derived_from'"
        " JOIN memory.episodes e ON (e.tenant_id, e.id) = (l.tenant_id, l.target_id)"
        " WHERE f.predicate_key <> 'pet' AND position(f.content IN e.content) = 0"
    )
    wrong = [f"no source: {row['content']}" for row in bare]
    return [*wrong, *(f"a source that does not say it: {row['content']}" for row in foreign)]


async def _replay(engine: Engine) -> list[str]:
    who = Principal(TENANT, "desk", Role.ADMIN, next(iter(await engine.access.tokens(TENANT))).id)
    found = await engine.memory.replay(who, verify=True, progress=lambda _: None)
    return [str(each) for each in found["listed"]]


async def waits(rows: Ask, month: Month) -> list[float]:
    """Hours from the coming of an episode to its reading, but for those that came while nothing could be read."""
    found = await rows(
        "SELECT v.occurred_at AS read_at, c.occurred_at AS came_at FROM memory.memory_events v"
        " JOIN memory.memory_events c ON (c.tenant_id, c.entity_id) = (v.tenant_id, v.entity_id)"
        " WHERE (v.event_type, c.event_type) = ('consolidated', 'created')"
    )
    away = (month.away_from - timedelta(hours=6), month.away_from + month.away_for + timedelta(hours=6))
    return [
        (row["read_at"] - row["came_at"]).total_seconds() / 3600
        for row in found
        if not away[0] <= row["came_at"] <= away[1]
    ]
