"""Search and recall over a real database: exact, filtered before the limit, and never an error (S1 to S10)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import Role
from butler_memory.security.principal import Principal
from caller import refused
from conftest import Hands, MakePrincipal, OpenEngine

NOTES = [
    "The dentist appointment was moved to Friday morning",
    "The garage code is 4711",
    "Maria prefers casual birthday messages",
    "The car needs winter tyres before November",
    "Coffee beans are bought from the roaster on Hill Street",
    "The dentist recommended a softer toothbrush",
]


async def note(engine: Engine, who: Principal, text: str, **more: Any) -> str:
    written = await engine.memory.store_fact(who, {"subject": "user", "predicate": "note", "content": text, **more})
    return str(written["id"])


async def contents(engine: Engine, who: Principal, tool: str = "search", **arguments: Any) -> list[str]:
    answer = await getattr(engine.memory, tool)(who, arguments)
    return [result["content"] for result in answer["results"]]


@pytest.fixture
async def notes(engine: Engine, who: Principal) -> None:
    for text in NOTES:
        await note(engine, who, text)


@pytest.mark.usefixtures("notes")
async def test_s3_a_missing_word_does_not_empty_the_keyword_search(engine: Engine, who: Principal) -> None:
    found = await contents(engine, who, query="When exactly is my dentist appointment, please?", mode="keyword")
    assert found[0] == NOTES[0]
    assert NOTES[1] not in found


@pytest.mark.usefixtures("notes")
@pytest.mark.parametrize(
    "query",
    [
        "the of and",
        "?!...",
        "a & | ! <-> 'x' :* ()",
        '"quoted" \\ back',
        "🙂",
        "歯医者の予約",
        "it's o'clock & y'all",
        "x" * 8000,
    ],
)
async def test_odd_questions_are_answered_and_never_an_error(engine: Engine, who: Principal, query: str) -> None:
    for mode in ("hybrid", "semantic", "keyword"):
        answer = await engine.memory.search(who, {"query": query, "mode": mode})
        assert answer["status"] == "ok"
        if mode != "keyword":
            assert len(answer["results"]) == len(NOTES)
    assert (await engine.memory.recall(who, {"topic": query}))["status"] == "ok"


@pytest.mark.usefixtures("notes")
async def test_s4_filters_work_before_the_limit_and_alone_browse(engine: Engine, who: Principal) -> None:
    await note(engine, who, "The old dentist retired", tags=["health"])
    assert await contents(engine, who, query="dentist", tags=["health"], limit=1) == ["The old dentist retired"]
    assert (await contents(engine, who, tags=["health"])) == ["The old dentist retired"]
    assert len(await contents(engine, who, predicate="notes", limit=3)) == 3
    assert await contents(engine, who, subject="Maria") == []


@pytest.mark.parametrize("given", [{"subject": "Maria"}, {"predicate": "note"}, {"valid_at": "2026-03-01T09:30:00Z"}])
async def test_s4_a_filter_for_facts_is_refused_where_no_facts_are_asked_for(
    engine: Engine, who: Principal, given: dict[str, str]
) -> None:
    with refused("bad_filter"):
        await engine.memory.search(who, {"types": ["rule"], **given})


async def test_s4_a_butler_sees_its_own_scopes_and_an_admin_all(engine: Engine, principal: MakePrincipal) -> None:
    health, travel = await principal("health"), await principal("travel")
    desk = await principal("desk", Role.ADMIN)
    await note(engine, health, "Blood pressure is checked on Mondays", scope="health")
    await note(engine, travel, "The passport expires in June", scope="travel")
    assert await contents(engine, health, query="passport blood") == ["Blood pressure is checked on Mondays"]
    assert len(await contents(engine, desk, query="passport blood", scope="*")) == 2


async def test_s5_what_decayed_is_hidden_with_a_count_by_the_formula(
    engine: Engine, who: Principal, hands: Hands
) -> None:
    await note(engine, who, "The umbrella is in the hall", permanence="standard")
    hands.pass_(days=210)
    answer = await engine.memory.search(who, {"query": "umbrella"})
    assert (answer["results"], answer["hidden"]["decayed"]) == ([], 1)
    assert await contents(engine, who, query="umbrella", min_confidence=0) == ["The umbrella is in the hall"]


async def test_s4_a_project_is_no_door_to_other_butlers_episodes(
    engine: Engine, principal: MakePrincipal, admin: Principal
) -> None:
    health, travel = await principal("health", project="alpha"), await principal("travel")
    await engine.memory.store_episode(travel, {"content": "the travel butler's own episode"})
    await engine.memory.store_episode(health, {"content": "the health butler's own episode"})
    for scope in ("project:alpha", "global", "health", None):
        assert await contents(engine, health, query="own episode", scope=scope) == ["the health butler's own episode"]
        assert await contents(engine, health, types=["episode"], scope=scope) == ["the health butler's own episode"]
    assert await contents(engine, admin, types=["episode"], scope="project:alpha") == []
    assert len(await contents(engine, admin, types=["episode"], scope="*")) == 2


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({"since": "2026-03-01T12:30:00Z"}, ["second", "third"]),
        ({"until": "2026-03-01T12:30:00Z"}, ["first"]),
        ({"since": "2026-03-01T13:00:00Z", "until": "2026-03-01T14:00:00Z"}, ["second"]),
        ({"since": "2026-03-02T00:00:00Z"}, []),
    ],
)
async def test_s4_the_time_range_is_by_when_it_was_stored_or_happened(
    engine: Engine, who: Principal, hands: Hands, filters: dict[str, str], found: list[str]
) -> None:
    for word in ("first", "second", "third"):
        await note(engine, who, f"umbrella {word}")
        await engine.memory.store_rule(who, {"content": f"Take the umbrella {word}"})
        await engine.memory.store_episode(
            who, {"content": f"Saw an umbrella {word}", "occurred_at": hands.now.isoformat()}
        )
        hands.pass_(hours=1)
    for kind in ("fact", "rule", "episode"):
        for query in ("umbrella", ""):
            said = await contents(engine, who, query=query, types=[kind], **filters)
            assert sorted(text.split()[-1] for text in said) == found


@pytest.mark.parametrize(
    ("valid_at", "found"),
    [
        ("2019-12-31T00:00:00Z", []),
        ("2020-01-01T00:00:00Z", ["Acme"]),
        ("2024-12-31T23:59:59Z", ["Acme"]),
        ("2025-01-01T00:00:00Z", []),
    ],
)
async def test_l4_valid_at_asks_when_a_fact_held_from_its_first_moment_to_before_its_last(
    engine: Engine, who: Principal, valid_at: str, found: list[str]
) -> None:
    held = {"valid_from": "2020-01-01T00:00:00Z", "valid_to": "2025-01-01T00:00:00Z"}
    await engine.memory.store_fact(who, {"subject": "user", "predicate": "employer", "content": "Acme", **held})
    for query in ("employer", ""):
        assert await contents(engine, who, query=query, valid_at=valid_at) == found


async def test_s9_recall_gives_as_many_as_are_asked_for(engine: Engine, who: Principal) -> None:
    for number in range(60):
        await note(engine, who, f"umbrella {number}")
    assert len(await contents(engine, who, "recall", topic="umbrella", limit=60)) == 60


async def test_s5_what_decayed_is_counted_by_meaning_too(engine: Engine, who: Principal, hands: Hands) -> None:
    await note(engine, who, "the umbrella is in the hall", permanence="volatile")
    hands.pass_(days=90)
    answer = await engine.memory.search(who, {"query": "the is in", "mode": "semantic"})  # no word but stop words
    assert (answer["results"], answer["hidden"]["decayed"]) == ([], 1)


async def tone(engine: Engine, who: Principal, content: str, **more: Any) -> None:
    await engine.memory.store_fact(who, {"subject": "user", "predicate": "tone", "content": content, **more})


async def test_f12_what_is_hidden_itself_hides_nothing(engine: Engine, who: Principal, hands: Hands) -> None:
    await tone(engine, who, "formal", scope="global", permanence="permanent")
    await tone(engine, who, "casual", scope="health", permanence="ephemeral", valid_from="2026-02-01T00:00:00Z")
    assert await contents(engine, who, query="tone") == ["casual"]
    assert await contents(engine, who, query="tone", valid_at="2026-01-01T00:00:00Z") == ["formal"]
    hands.pass_(days=60)
    assert await contents(engine, who, query="tone") == ["formal"]


async def test_f12_of_three_scopes_the_nearest_is_seen(engine: Engine, principal: MakePrincipal) -> None:
    who = await principal("health", project="alpha")
    for scope in ("global", "health", "project:alpha"):
        await tone(engine, who, f"of {scope}", scope=scope)
    answer = await engine.memory.search(who, {"query": "tone"})
    assert [r["content"] for r in answer["results"]] == ["of project:alpha"]
    assert answer["hidden"]["shadowed"] == 2
    assert await contents(engine, await principal("health"), query="tone") == ["of health"]
    assert await contents(engine, await principal("travel"), query="tone") == ["of global"]


async def test_f12_a_nearer_fact_hides_the_global_one(engine: Engine, who: Principal) -> None:
    await engine.memory.store_fact(who, {"subject": "user", "predicate": "tone", "content": "formal"})
    await engine.memory.store_fact(
        who, {"subject": "user", "predicate": "tone", "content": "casual", "scope": "health"}
    )
    answer = await engine.memory.search(who, {"query": "tone"})
    assert [r["content"] for r in answer["results"]] == ["casual"]
    assert answer["hidden"]["shadowed"] == 1


@pytest.mark.usefixtures("notes")
async def test_s7_reading_is_counted(engine: Engine, who: Principal) -> None:
    answer = await engine.memory.search(who, {"query": "garage code", "limit": 1})
    first = answer["results"][0]
    await engine.reader.references.flush()
    read = await engine.memory.get(who, {"type": "fact", "id": first["id"]})
    assert read["memory"]["reference_count"] == 1


@pytest.mark.usefixtures("notes")
async def test_s8_a_result_explains_itself(engine: Engine, who: Principal) -> None:
    answer = await engine.memory.recall(who, {"topic": "dentist appointment", "explain": True})
    best = answer["results"][0]
    assert best["content"] == NOTES[0]
    assert set(best["signals"]) >= {"relevance", "importance", "recency", "confidence", "cosine", "coverage"}
    assert best["ranks"]["keyword"] == 1
    assert best["score_kind"] == "composite"


async def test_a_fact_is_found_by_other_words_for_its_predicate(engine: Engine, who: Principal) -> None:
    await engine.memory.store_fact(who, {"subject": "user", "predicate": "employer", "content": "Acme"})
    assert await contents(engine, who, "recall", topic="where do I work?") == ["Acme"]


@pytest.mark.usefixtures("notes")
async def test_s10_recall_prefers_silence_to_noise(engine: Engine, who: Principal) -> None:
    answer = await engine.memory.recall(who, {"topic": "quantum chromodynamics lattice"})
    assert answer["results"] == []
    assert answer["hidden"]["below_floor"] == len(NOTES)


@pytest.mark.usefixtures("notes")
async def test_s10_a_long_question_is_not_less_about_a_memory_for_all_else_that_it_says(
    engine: Engine, who: Principal
) -> None:
    padding = "zebra quantum violin harvest glacier magnet origami tundra walnut pylon saffron trombone"
    topic = f"{padding}: is the dentist appointment still on friday morning?"
    assert (await contents(engine, who, "recall", topic=topic))[0] == NOTES[0]


async def test_s12_without_a_model_search_goes_by_keywords_and_says_so(open_engine: OpenEngine) -> None:
    from butler_memory.embedding.fake import FakeEmbedder

    engine = await open_engine(FakeEmbedder(available=False))
    secret, _ = await engine.access.create_token("home", "health", Role.BUTLER)
    who = await engine.access.authenticate(secret)
    await note(engine, who, NOTES[1])
    answer = await engine.memory.recall(who, {"topic": "garage code"})
    assert [r["content"] for r in answer["results"]] == [NOTES[1]]
    assert answer["degraded"] == ["no_embedding_model"]


QUERY = "word1 word2 word3 word4"


def texts(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    words = [f"word{n}" for n in range(30)]
    return [" ".join(rng.choice(words, size=int(rng.integers(2, 7)), replace=False)) for _ in range(count)]


async def test_s1_the_hybrid_order_of_facts_equals_a_brute_force_computation(engine: Engine, who: Principal) -> None:
    """Exact, ties included; the same formula in numpy over the same rows."""
    for text in texts(120, 7):
        await note(engine, who, text)
    rows = (await engine.memory.search(who, {"limit": 200}))["results"]
    signals = await _brute_signals(engine, QUERY, rows, also_indexed=1)  # "notes", another word for the predicate
    _same_order(await top(engine, who), {row["id"]: score for row, score in zip(rows, signals, strict=True)})


async def test_s1_the_hybrid_order_of_episodes_equals_a_brute_force_computation(
    engine: Engine, who: Principal, hands: Hands
) -> None:
    """An episode gets a tenth of its neighbours' scores within its session."""
    for number, text in enumerate(texts(120, 8)):
        hands.pass_(minutes=1)
        await engine.memory.store_episode(who, {"content": text, "session_id": f"s{number % 5}"})
    rows = (await engine.memory.search(who, {"limit": 200}))["results"]
    own = await _brute_signals(engine, QUERY, rows)
    expected = {row["id"]: float(score) for row, score in zip(rows, own, strict=True)}
    for session in {row["metadata"]["session_ref"] for row in rows}:
        inside = [n for n, row in enumerate(rows) if row["metadata"]["session_ref"] == session]
        for place, n in enumerate(inside):
            beside = inside[max(0, place - 1) : place] + inside[place + 1 : place + 2]
            expected[rows[n]["id"]] += sum(0.1 * own[other] for other in beside)
    _same_order(await top(engine, who), expected)


async def test_s1_the_order_by_ranks_equals_a_brute_force_computation(open_engine: OpenEngine) -> None:
    engine = await open_engine(BUTLER_MEMORY_RETRIEVAL__FUSION="rrf")
    secret, _ = await engine.access.create_token("home", "health", Role.BUTLER)
    who = await engine.access.authenticate(secret)
    for text in texts(120, 9):
        await note(engine, who, text)
    answer = await engine.memory.search(who, {"query": QUERY, "limit": 20, "explain": True})
    rows = (await engine.memory.search(who, {"limit": 200}))["results"]
    cosines, lexical = await _measured(engine, QUERY, rows, also_indexed=1)
    by_meaning, by_words = _ranks(cosines), _ranks(lexical)
    expected = {
        row["id"]: 1 / (60 + by_meaning[n]) + (1 / (60 + by_words[n]) if lexical[n] > 0 else 0)
        for n, row in enumerate(rows)
    }
    _same_order([(r["id"], r["score"]) for r in answer["results"]], expected)


def _ranks(values: Any) -> list[int]:
    """Equal values share the better rank; half precision blurs what is closer than a thousandth."""
    rounded = np.round(np.asarray(values, dtype=np.float64), 4)
    return [1 + int((rounded > value).sum()) for value in rounded]


async def test_s6_ties_go_to_the_newer_and_then_by_id(engine: Engine, who: Principal, hands: Hands) -> None:
    made: list[tuple[int, str]] = []
    for tick in range(3):
        for _ in range(10):
            written = await engine.memory.store_episode(who, {"content": "the same words word1 word2"})
            made.append((-tick, str(written["id"])))
        hands.pass_(minutes=1)
    for mode in ("hybrid", "semantic", "keyword"):
        answer = await engine.memory.search(who, {"query": "word1 same", "mode": mode, "limit": 20})
        assert len({result["score"] for result in answer["results"]}) == 1
        assert [result["id"] for result in answer["results"]] == [identity for _, identity in sorted(made)[:20]]


async def top(engine: Engine, who: Principal) -> list[tuple[str, float]]:
    answer = await engine.memory.search(who, {"query": QUERY, "limit": 20})
    return [(r["id"], r["score"]) for r in answer["results"]]


def _same_order(given: list[tuple[str, float]], expected: dict[str, float]) -> None:
    assert [score for _, score in given] == pytest.approx([expected[identity] for identity, _ in given], abs=HALF)
    left_out = set(expected) - {identity for identity, _ in given}
    assert max(expected[identity] for identity in left_out) <= given[-1][1] + HALF
    assert [score for _, score in given] == sorted((score for _, score in given), reverse=True)


# pgvector adds half-precision products in single precision.
HALF = 1e-4


async def _brute_signals(engine: Engine, query: str, rows: list[dict[str, Any]], also_indexed: int = 0) -> list[float]:
    nearness, lexical = await _measured(engine, query, rows, also_indexed)
    dense = (nearness - nearness.min()) / (nearness.max() - nearness.min())
    return [float(score) for score in 0.5 * dense + 0.5 * lexical / lexical.max()]


async def _measured(engine: Engine, query: str, rows: list[dict[str, Any]], also_indexed: int) -> tuple[Any, Any]:
    """Both signals of each row, unscaled."""
    said = [row["content"] for row in rows]
    vectors = np.array([v.astype(np.float16) for v in await engine.embedder.embed(said)], dtype=np.float64)
    asked = (await engine.embedder.embed([query]))[0].astype(np.float16).astype(np.float64)
    middle = vectors.mean(axis=0).astype(np.float16).astype(np.float64)
    nearness = vectors @ asked - 0.5 * (vectors @ middle)
    wanted = set(query.split())
    bags = [set(text.split()) for text in said]
    frequency = {word: sum(word in bag for bag in bags) for word in wanted}
    idf = {w: np.log(1 + (len(bags) - n + 0.5) / (n + 0.5)) for w, n in frequency.items()}
    lexical = np.array([sum(idf[w] for w in bag & wanted) / np.sqrt(len(bag) + also_indexed) for bag in bags])
    return nearness, lexical
