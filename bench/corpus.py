"""Made-up memories and prompts for the speed bench: varied enough that words and vectors spread as real ones do.

A few thousand sentences go through the real model. Further ones take their head from one of those and their tail
from another, and their vector from between the two.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import numpy.typing as npt

from butler_memory.domain.kinds import Cardinality
from butler_memory.domain.predicates import Registry
from butler_memory.domain.sentence import line_of_fact
from butler_memory.domain.text import key, subject_key
from butler_memory.embedding.ports import Embedder

Vectors = npt.NDArray[np.float32]

EMBEDDED_FACTS = 3000
EPISODES = 240
RULES = 120
PROMPTS = 200
EMBED_AT_ONCE = 100
TAIL_SHARE = 0.3  # of a mixed vector
NOISE = 0.15  # its length, against a vector of length one

FIRST = (
    "Maria Jonas Amira Tomas Priya Lukas Elena Kwame Sofia Henrik Mei Diego Fatima Oskar Nadia Ravi Clara Yusuf "
    "Ingrid Pavel Aiko Bruno Leila Marek Chiara Sven Zeynep Andre Greta Hassan Ines Viktor Rosa Emil Tara Milan "
    "Judit Omar Freya Dario Hana Simon Alba Niko Wanda Cyril Paula Idris"
).split()
LAST = (
    "Novak Berger Haddad Okafor Lindqvist Moreau Tanaka Silva Kowalski Iyer Petrov Marino Demir Olsen Castillo Weber "
    "Nakamura Fischer Dubois Horvath Mensah Rossi Janssen Kaplan Svoboda Araujo Keller Bianchi Larsen Medina Popescu "
    "Adeyemi Schmid Vargas Laine Costa Brandt Yilmaz Fontaine Sato"
).split()
PROJECTS = (
    "the garden shed", "the newsletter", "the billing service", "the mobile app", "the data store", "the choir tour",
    "the kitchen renovation", "the search team", "the allotment", "the summer festival", "the onboarding guide",
    "the old Volvo", "the design system", "the book club", "the payment gateway", "the school trip",
)  # fmt: skip

# One value per subject: predicates of nobody's registry, and a few built-in ones.
SINGLE = {
    "employer": ["a shipping company in Rotterdam", "the city library", "a small robotics start-up", "the opera house"],
    "job": ["backend engineer for payments", "paediatric nurse on night shifts", "landscape architect", "tax adviser"],
    "coffee_order": ["a flat white with oat milk", "two espressos and a glass of water", "filter coffee, black"],
    "preferred_airline": ["whichever flies direct to Lisbon", "Finnair because of the seats", "the night train"],
    "car": ["a grey electric estate car", "a twenty year old diesel van", "no car but two cargo bicycles"],
    "code_editor": ["Neovim with a light theme", "PyCharm on the big monitor", "VS Code with three extensions"],
    "deploy_day": ["Tuesday before lunch", "any day but Friday", "Thursday after the load test"],
    "manager": ["the head of platform in Dublin", "somebody new since the reorganisation", "the founder herself"],
    "dentist": ["the practice next to the tram stop", "a clinic in the old harbour", "the one with Saturday hours"],
    "insurance": ["a family policy with high excess", "the cooperative one from Bern", "travel cover for skiing"],
    "meeting_rhythm": ["a short call every Monday at nine", "one long review each month", "written updates only"],
    "first_pet": ["a tortoise named Admiral", "a rescued greyhound", "three goldfish in a bathtub"],
    "thesis_topic": ["sediment transport in alpine rivers", "type inference for query languages", "early jazz"],
    "phone_model": ["an old phone with a cracked corner", "a repairable phone from Amsterdam", "a folding phone"],
    "gym_routine": ["rowing and free weights at dawn", "bouldering twice a week", "swimming a mile in the lake"],
    "budget_limit": ["four hundred euros a month for food", "twelve thousand for the kitchen", "nothing above plan"],
    "on_call_week": ["the second week of each month", "shared with the Lisbon office", "only during the release"],
    "database_choice": ["PostgreSQL with logical replication", "a columnar store for reports", "SQLite on the device"],
    "favourite_restaurant": ["the ramen bar behind the station", "a trattoria without a menu", "the market canteen"],
    "holiday_house": ["a cabin without electricity", "two rooms above a bakery in Trieste", "a farm near Evora"],
    "bicycle": ["a steel touring bike with a dynamo", "a folding bike for the train", "a racing bike"],
    "music_teacher": ["a cellist from the radio orchestra", "nobody since the pandemic", "an organist in the suburb"],
    "vaccination_status": ["boosters up to date until next autumn", "rabies course finished", "tetanus due soon"],
    "review_policy": ["two approvals for anything in billing", "one reviewer within a day", "pairing"],
}  # fmt: skip
# Many values side by side.
MANY = {
    "likes": ["long walks along the river", "crossword puzzles in German", "blue cheese with pears", "slow Sundays"],
    "dislikes": ["open plan offices", "surprise phone calls", "coriander in anything", "meetings without an agenda"],
    "allergy": ["peanuts and most tree nuts", "penicillin", "grass pollen", "nickel in watch straps"],
    "hobby": ["restoring wooden boats", "astrophotography from the roof", "baking sourdough", "birdwatching at dawn"],
    "owns": ["a letterpress from 1931", "a share in a vineyard", "four beehives", "a workshop full of planes"],
    "habit": ["reads the minutes before breakfast", "cooks for the week on Sunday", "answers mail after lunch"],
    "works_with": ["the translators in Porto", "an external auditor", "the hospital's data office", "two apprentices"],
    "skill": ["negotiating with suppliers", "writing migration scripts", "conversational Portuguese", "lead climbing"],
    "goal": ["finish the marathon in under four hours", "pay off the loan early", "publish the field guide"],
    "uses": ["a paper notebook for sketches", "Grafana for the dashboards", "a label printer", "Terraform for staging"],
    "opinion": ["the new pricing page confuses people", "trains should be cheaper than planes", "tests are design"],
    "knows": ["the mayor's speech writer", "how to graft apple trees", "the maintainers of the parser", "Morse code"],
}  # fmt: skip
TIMES = (
    "since the winter of 2019", "until the end of the quarter", "for the last three years", "from next March on",
    "as agreed in September", "ever since the move to Vienna", "after the second interview", "during the school year",
    "whenever the weather allows it", "before the new contract starts", "at least until the audit", "most weekends",
    "on weekday evenings", "while the office is rebuilt", "every spring", "on the doctor's advice",
)  # fmt: skip
REASONS = (
    "because the commute got shorter", "mainly to save money", "which the family voted for", "on a friend's advice",
    "though it may change soon", "and wants to be reminded of it", "despite the doubts of the team", "with some pride",
    "which came up twice already", "and has the receipts in a folder", "as the old one broke", "without telling HR yet",
    "and asked not to share it", "which the contract allows", "since it helps with sleep", "to learn something new",
)  # fmt: skip
PLACES = (
    "near the harbour in Split", "at the clinic in Graz", "in the attic in Leuven", "on the coast by Aveiro",
    "at the airport hotel in Oslo", "beside the canal in Utrecht", "in the hills above Granada", "in central Nairobi",
    "with the cousins in Winnipeg", "at the campus in Lund", "on the ferry to Tallinn", "in the valley near Aosta",
    "behind the market in Lyon", "at the depot in Dresden", "in a suburb of Osaka", "on the island of Skye", "in Quito",
)  # fmt: skip
ORDERS = (
    "Always answer in short sentences", "Never book anything before nine", "Ask before sending a message",
    "Prefer the train over a flight", "Show the sum in euros", "Write dates with the weekday", "Check the calendar",
    "Keep the tone formal", "Quote the source of a number", "Offer two options at most",
)  # fmt: skip
OCCASIONS = (
    "when travel is planned", "in messages to customers", "for anything about health", "while the release is frozen",
    "if money is involved", "in the family calendar", "when the request is vague", "for the weekly report",
    "after six in the evening", "when a child is mentioned", "for suppliers abroad", "in every summary",
)  # fmt: skip
ASKS = (
    "What do we know about {who} and {what}?",
    "Draft a friendly note to {who} about {what}, {why}.",
    "Plan next week around {what}; keep in mind what {who} told us {when}.",
    "Why did {who} choose {what}, and is that still true {when}?",
    "Compare {what} with {other} for {who}, and tell me what you would do.",
    "I have a call with {who} in ten minutes. Summarise {what}, {other} and whatever else matters, {why}.",
    "Remind me: {what}?",
    "Book dinner for {who} and me. We talked about {what} {when}, and there was something about {other}.",
)


@dataclass(frozen=True)
class Fact:
    """A sentence in parts: subject, predicate, what is said, and the clause that follows."""

    subject: str
    predicate: str
    thing: str
    tail: str
    values: int = 1  # how many live values its key may hold: 1, or any number (0)

    @property
    def content(self) -> str:
        return f"{self.thing}, {self.tail}"

    @property
    def line(self) -> str:
        return line_of_fact(self.subject, self.predicate, self.content)

    @property
    def place(self) -> tuple[str, ...]:
        """No two live facts of a tenant share this."""
        keys = (subject_key(self.subject), key(self.predicate))
        return keys if self.values else (*keys, self.content)


@dataclass
class Corpus:
    facts: list[Fact]
    fact_vectors: Vectors
    episodes: list[str]
    episode_vectors: Vectors
    rules: list[str]
    rule_vectors: Vectors
    prompts: list[str] = field(default_factory=list)


async def make_corpus(embedder: Embedder, size: int, seed: int, advance: Callable[[int], None]) -> Corpus:
    """`size` facts, and episodes, rules and prompts around them."""
    rng = random.Random(seed)
    facts = spread(seed, min(size, EMBEDDED_FACTS))
    episodes = [_episode(rng, facts) for _ in range(EPISODES)]
    rules = rng.sample([f"{order} {occasion}." for order in ORDERS for occasion in OCCASIONS], RULES)
    made = await _embed(embedder, [*(fact.line for fact in facts), *episodes, *rules], advance)
    own, of_episodes, of_rules = np.split(made, [len(facts), len(facts) + len(episodes)])
    facts, vectors = _with_mixed(facts, own, size, rng)
    return Corpus(facts, vectors, episodes, of_episodes, rules, of_rules, make_prompts(seed))


def make_prompts(seed: int, count: int = PROMPTS) -> list[str]:
    rng = random.Random(seed + 1)
    prompts: dict[str, None] = {}
    while len(prompts) < count:
        prompts[_prompt(rng)] = None
    return list(prompts)


def spread(seed: int, count: int) -> list[Fact]:
    """Facts of which no two share a place."""
    return list(islice(_distinct(_facts(random.Random(seed))), count))


def _facts(rng: random.Random) -> Iterator[Fact]:
    while True:
        many = rng.random() < 0.5
        predicate = rng.choice(list(MANY if many else SINGLE))
        single = Registry({}).find(predicate).cardinality is Cardinality.ONE
        things = (MANY if many else SINGLE)[predicate]
        yield Fact(_subject(rng, many=many), predicate, rng.choice(things), _tail(rng), int(single))


def _distinct(facts: Iterator[Fact]) -> Iterator[Fact]:
    seen: set[tuple[str, ...]] = set()
    for fact in facts:
        if fact.place not in seen:
            seen.add(fact.place)
            yield fact


def _subject(rng: random.Random, *, many: bool) -> str:
    """Often the user where a key holds many values; somebody or something else where it holds one."""
    chance = rng.random()
    if many and chance < 0.5:
        return "user"
    return rng.choice(PROJECTS) if chance > 0.9 else f"{rng.choice(FIRST)} {rng.choice(LAST)}"


def _tail(rng: random.Random) -> str:
    when, why, where = rng.choice(TIMES), rng.choice(REASONS), rng.choice(PLACES)
    return rng.choice([when, why, f"{when}, {why}", f"{where}, {when}", f"{where}, {why}"])


def _episode(rng: random.Random, facts: Sequence[Fact]) -> str:
    one, other = rng.sample(facts, 2)
    return (
        f"The user asked about {one.thing} and we went through it {rng.choice(TIMES)}. {one.line}. "
        f"Later the talk turned to {other.subject}: {other.thing}, {other.tail}."
    )


def _prompt(rng: random.Random) -> str:
    things = [rng.choice(things) for _, things in rng.sample([*SINGLE.items(), *MANY.items()], 2)]
    return rng.choice(ASKS).format(
        who=_subject(rng, many=False), what=things[0], other=things[1], when=rng.choice(TIMES), why=rng.choice(REASONS)
    )


async def _embed(embedder: Embedder, texts: Sequence[str], advance: Callable[[int], None]) -> Vectors:
    made = []
    for start in range(0, len(texts), EMBED_AT_ONCE):
        batch = texts[start : start + EMBED_AT_ONCE]
        made += await embedder.embed(batch)
        advance(len(batch))
    return np.array(made, np.float32)


def _with_mixed(facts: list[Fact], vectors: Vectors, size: int, rng: random.Random) -> tuple[list[Fact], Vectors]:
    """Further facts up to `size`: the head of one, the tail of another, a vector between theirs."""
    parents: dict[tuple[str, ...], tuple[int, int]] = {fact.place: (n, n) for n, fact in enumerate(facts)}
    grown = list(facts)
    while len(grown) < size:
        head, tail = rng.randrange(len(facts)), rng.randrange(len(facts))
        like = facts[head]
        subject = _subject(rng, many=not like.values)
        child = Fact(subject, like.predicate, like.thing, facts[tail].tail, like.values)
        if child.place not in parents:
            parents[child.place] = (head, tail)
            grown.append(child)
    pairs = np.array([parents[fact.place] for fact in grown[len(facts) :]], int).reshape(-1, 2)
    return grown, np.concatenate([vectors, mixed(vectors, pairs, rng.randrange(2**32))])


def mixed(vectors: Vectors, pairs: npt.NDArray[np.int_], seed: int) -> Vectors:
    noise = np.random.default_rng(seed).standard_normal((len(pairs), vectors.shape[1]), np.float32)
    noise *= NOISE / np.sqrt(vectors.shape[1])
    between = (1 - TAIL_SHARE) * vectors[pairs[:, 0]] + TAIL_SHARE * vectors[pairs[:, 1]] + noise
    unit: Vectors = (between / np.linalg.norm(between, axis=1, keepdims=True)).astype(np.float32)
    return unit
