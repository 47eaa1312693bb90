"""`facts.many_valued = false`, `003` to the letter: one live value per (tenant, scope, subject, predicate) (F3)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import Cardinality, Permanence, Role
from butler_memory.domain.predicates import BUILTIN, Predicate
from butler_memory.errors import SetupError
from butler_memory.postgres.provision import Urls
from butler_memory.security.principal import Principal
from caller import Caller, Json, conflict
from conftest import Hands, MakePrincipal, OpenEngine, rows

pytestmark = pytest.mark.usefixtures("ledger")

SINGLE = {"BUTLER_MEMORY_FACTS__MANY_VALUED": "false"}
WRITERS = 32
# Where the registry would otherwise let values join each other.
MANY = [entry.name for entry in BUILTIN if entry.cardinality is Cardinality.MANY]
DATED = [entry.name for entry in BUILTIN if entry.temporal]


@pytest.fixture
async def engine(open_engine: OpenEngine) -> Engine:
    made: Engine = await open_engine(**SINGLE)
    return made


@pytest.fixture
def boss(ask: Caller, admin: Principal) -> Caller:
    return ask.as_(admin)


async def live(urls: Urls, predicate: str = "%") -> list[str]:
    """What holds now, on one key or on all."""
    query = "SELECT content FROM memory.facts WHERE validity IN ('active', 'fading') AND predicate_key LIKE %s"
    return sorted(row["content"] for row in await rows(urls, query, predicate.replace("_", r"\_")))


async def places(urls: Urls) -> set[tuple[str, str]]:
    found = await rows(urls, "SELECT predicate_key, slot FROM memory.facts")
    return {(row["predicate_key"], row["slot"]) for row in found}


async def chain(ask: Caller, newest: Json) -> list[str]:
    """Contents from the live fact back to the first, along `supersedes_id`; every step must have its link too."""
    row = await ask.row(newest)
    contents = [row["content"]]
    while row["supersedes_id"]:
        older = {"type": "fact", "id": row["supersedes_id"]}
        shape = await ask.shape(older)
        assert [(x["relation"], x["id"]) for x in shape["links"]["in"]] == [("supersedes", row["id"])]
        row = shape["memory"]
        assert (row["validity"], row["superseded_at"] is not None) == ("superseded", True)
        contents.append(row["content"])
    return contents


async def test_f3_every_predicate_holds_one_value(ask: Caller, urls: Urls) -> None:
    assert {"allergy", "likes", "owns", "weight"} <= set(MANY)
    for name in MANY:
        first, second = [await ask.fact(f"{name} {value}", name) for value in ("one", "two")]
        assert (first["outcome"], second["outcome"]) == ("created", "superseded"), name
        assert second["superseded_id"] == first["id"], name
        assert await live(urls, name) == [f"{name} two"], name
    assert await places(urls) == {(name, "") for name in MANY}


async def test_f3_the_chain_of_values_is_whole(ask: Caller, urls: Urls, hands: Hands) -> None:
    for number in range(6):
        newest = await ask.fact(f"value {number}", "likes")
        hands.pass_(hours=1)
    assert await chain(ask, newest) == [f"value {number}" for number in reversed(range(6))]
    assert await live(urls) == ["value 5"]


async def test_f5_a_corrected_allergy_inherits_what_the_caller_did_not_say(ask: Caller) -> None:
    await ask.fact("nuts", "allergy", importance=9, tags=["health"])
    row = await ask.row(await ask.fact("hazelnuts", "allergy"))
    assert (row["permanence"], row["decay_rate"], row["fades_at"]) == ("permanent", 0.0, None)
    assert (row["importance"], row["tags"]) == (9, ["health"])
    row = await ask.row(await ask.fact("walnuts", "allergy", permanence="volatile", importance=2, tags=[]))
    assert (row["permanence"], row["importance"], row["tags"]) == ("volatile", 2, [])


@pytest.mark.parametrize("predicate", ["allergy", "weight", "employer"])
async def test_f5_f9_the_same_content_again_confirms(ask: Caller, urls: Urls, hands: Hands, predicate: str) -> None:
    first = await ask.in_session("one").user_says("Some thing", predicate)
    assert (await ask.in_session("one").user_says("some  thing.", predicate))["outcome"] == "duplicate"
    hands.pass_(days=3)
    again = await ask.in_session("two").user_says("SOME THING", predicate)
    assert (again["id"], again["outcome"]) == (first["id"], "confirmed")
    assert (await ask.row(first))["last_confirmed_at"] == "2026-03-04T12:00:00Z"
    assert await live(urls) == ["Some thing"]


async def test_f11_other_words_for_the_same_are_a_new_value(ask: Caller) -> None:
    """Only equal content is the same here: near-duplicates are a matter of many-valued keys."""
    first = await ask.fact("reads books in the evening", "habit")
    second = await ask.fact("reading a book in evenings", "habit")
    assert (second["outcome"], second["superseded_id"]) == ("superseded", first["id"])
    assert [link["relation"] for link in second["links"]] == ["supersedes"]


@pytest.mark.parametrize("predicate", ["owns", "weight"])
async def test_f3_concurrent_writers_all_succeed_in_some_order(ask: Caller, urls: Urls, predicate: str) -> None:
    texts = [f"thing number {number}" for number in range(WRITERS)]
    written = await asyncio.gather(*(ask.in_session(text).user_says(text, predicate) for text in texts))
    outcomes = sorted(answer["outcome"] for answer in written)
    assert outcomes == ["created"] + ["superseded"] * (WRITERS - 1)
    [survivor] = await live(urls)
    newest = next(answer for answer, text in zip(written, texts, strict=True) if text == survivor)
    assert sorted(await chain(ask, newest)) == sorted(texts)


async def test_f5_concurrent_writers_of_one_content_make_one_row(ask: Caller, urls: Urls) -> None:
    sessions = [ask.in_session(f"session {number}") for number in range(WRITERS)]
    written = await asyncio.gather(*(session.user_says("a boat", "owns") for session in sessions))
    assert len({answer["id"] for answer in written}) == 1
    assert sorted(answer["outcome"] for answer in written) == ["confirmed"] * (WRITERS - 1) + ["created"]
    assert len(await rows(urls, "SELECT 1 FROM memory.facts")) == 1


@pytest.mark.parametrize("predicate", ["allergy", "employer"])
async def test_f3_concurrent_corrections_and_statements_leave_one_live_row(
    ask: Caller, urls: Urls, predicate: str
) -> None:
    """A person edits while agents store: whoever comes too late is told so, and the chain has no fork."""
    first = await ask.fact("value", predicate)
    edits = [ask.edit(first, content=f"corrected {number}") for number in range(4)]
    stores = [ask.fact(f"stated {number}", predicate) for number in range(12)]
    answers = await asyncio.gather(*edits, *stores, return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert {getattr(error, "reason", error) for error in refused} <= {"not_live"}
    written = [answer for answer in answers if isinstance(answer, dict)]
    assert len(written) >= len(stores)
    [survivor] = await rows(urls, "SELECT 'fact' AS type, id::text FROM memory.facts WHERE validity = 'active'")
    assert len(await chain(ask, survivor)) == 1 + len(written)


@pytest.mark.parametrize(
    ("one", "other"),
    [("mother", "father"), ("son", "daughter"), ("allergy", "allergic_to"), ("home", "city"), ("likes", "loves")],
)
async def test_f4_aliases_do_not_share_a_key(ask: Caller, urls: Urls, one: str, other: str) -> None:
    for predicate in (one, other):
        assert (await ask.fact(f"the {predicate}", predicate))["outcome"] == "created"
    assert await live(urls) == sorted([f"the {one}", f"the {other}"])
    assert await places(urls) == {(one, ""), (other, "")}
    assert (await ask.fact("somebody else", other))["outcome"] == "superseded"
    assert await live(urls, one) == [f"the {one}"]


async def test_f10_ways_to_write_one_predicate_are_one_key(ask: Caller, urls: Urls) -> None:
    for predicate in ("Dietary Restriction", "dietary-restriction", " DIETARY_RESTRICTION "):
        await ask.fact(f"said as {predicate.strip()}", predicate, "me")
    assert await live(urls) == ["said as DIETARY_RESTRICTION"]


async def test_f4_an_alias_still_knows_how_long_it_lasts(ask: Caller) -> None:
    assert (await ask.row(await ask.fact("nuts", "allergic_to")))["permanence"] == "permanent"


async def test_f3_one_value_for_each_scope_subject_and_tenant(
    ask: Caller, principal: MakePrincipal, urls: Urls
) -> None:
    neighbours = ask.as_(await principal(tenant="next door"))
    for caller, subject, scope in [
        (ask, "user", "global"),
        (ask, "user", "health"),
        (ask, "Maria", "global"),
        (neighbours, "user", "global"),
    ]:
        for value in ("first", "last"):
            written = await caller.fact(f"{value} of {subject}", "hobby", subject, scope=scope)
        assert written["outcome"] == "superseded"
    assert await live(urls) == ["last of Maria", *["last of user"] * 3]


async def test_f12_the_nearer_value_hides_the_global_one(ask: Caller) -> None:
    await ask.fact("chess", "hobby", scope="global")
    await ask.fact("golf", "hobby", scope="health")
    answer = await ask.call("search", {"query": "hobby"})
    assert [result["content"] for result in answer["results"]] == ["golf"]
    assert answer["hidden"]["shadowed"] == 1


@pytest.mark.parametrize("predicate", DATED)
async def test_f3_a_dated_observation_supersedes_too_and_older_evidence_does_not(
    ask: Caller, urls: Urls, predicate: str
) -> None:
    february = await ask.fact("in February", predicate, valid_from="2026-02-01T08:00:00Z")
    march = await ask.fact("in March", predicate, valid_from="2026-03-01T08:00:00Z")
    assert march["superseded_id"] == february["id"]
    january = await ask.fact("in January", predicate, valid_from="2026-01-01T08:00:00Z")
    assert (january["outcome"], january["state"]) == ("created", "superseded")
    assert await live(urls) == ["in March"]


async def test_f3_an_undated_observation_gets_no_date_of_its_own(ask: Caller, hands: Hands, urls: Urls) -> None:
    first = await ask.fact("80 kg", "weight")
    assert (await ask.row(first))["valid_from"] is None
    hands.pass_(days=1)
    assert (await ask.fact("80 kg", "weight"))["id"] == first["id"], "the same value another day is the same fact"
    await ask.fact("81 kg", "weight")
    assert await live(urls) == ["81 kg"]


async def test_f2_a_forgotten_value_leaves_the_key_free(ask: Caller, urls: Urls) -> None:
    await ask.forget(await ask.fact("chess", "hobby"))
    assert (await ask.fact("golf", "hobby"))["outcome"] == "created"
    assert await live(urls) == ["golf"]


@pytest.mark.parametrize("gone", ["forgotten", "superseded"])
async def test_f2_a_restore_into_a_taken_key_is_a_conflict_and_may_replace(ask: Caller, urls: Urls, gone: str) -> None:
    old = await ask.fact("chess", "hobby")
    if gone == "forgotten":
        await ask.forget(old)
    new = await ask.fact("golf", "hobby")
    with conflict("key_taken") as caught:
        await ask.restore(old)
    assert caught.value.data == {"live_id": new["id"]}
    assert await live(urls) == ["golf"]
    back = await ask.restore(old, replace=True)
    assert (back["state"], back["superseded_id"]) == ("active", new["id"])
    assert await live(urls) == ["chess"]
    assert (await ask.row(new))["validity"] == "superseded"


async def test_f2_a_restore_under_another_word_meets_no_one(ask: Caller, urls: Urls) -> None:
    mother = await ask.fact("Anna", "mother")
    await ask.forget(mother)
    await ask.fact("Bob", "father")
    assert (await ask.restore(mother))["state"] == "active"
    assert await live(urls) == ["Anna", "Bob"]


async def test_f2_of_many_restores_at_once_one_wins(ask: Caller, urls: Urls) -> None:
    values = [await ask.fact(f"value {number}", "owns") for number in range(8)]
    await ask.forget(values[-1])
    answers = await asyncio.gather(*(ask.restore(value) for value in values), return_exceptions=True)
    refused = [answer for answer in answers if isinstance(answer, BaseException)]
    assert {getattr(error, "reason", error) for error in refused} == {"key_taken"}
    assert len(refused) == len(values) - 1
    assert len(await live(urls)) == 1


async def test_f2_an_edit_supersedes_and_keeps_the_rest(ask: Caller, urls: Urls) -> None:
    old = await ask.fact("nuts", "allergy", importance=9, tags=["health"])
    new = await ask.edit(old, content="walnuts")
    assert (new["outcome"], new["superseded_id"]) == ("superseded", old["id"])
    row = await ask.row(new)
    assert (row["source_kind"], row["permanence"]) == ("corrected", "permanent")
    assert (row["importance"], row["tags"], row["slot"]) == (9, ["health"], "")
    assert await chain(ask, await ask.fact("peanuts", "allergy")) == ["peanuts", "walnuts", "nuts"]
    assert await live(urls) == ["peanuts"]


async def test_f5_an_edit_of_attributes_stays_in_place(ask: Caller, urls: Urls) -> None:
    old = await ask.fact("80 kg", "weight", valid_from="2026-01-01T08:00:00Z")
    answer = await ask.edit(old, valid_from="2026-01-02T08:00:00Z", importance=8)
    assert (answer["id"], answer["superseded_id"]) == (old["id"], None)
    row = await ask.row(old)
    assert (row["valid_from"], row["importance"], row["slot"]) == ("2026-01-02T08:00:00Z", 8, "")
    assert await live(urls) == ["80 kg"]


@pytest.mark.parametrize(
    "entry",
    [
        Predicate("hobby", Cardinality.MANY, builtin=False),
        Predicate("hobby", Cardinality.ONE, builtin=False),
        Predicate("hobby", Cardinality.MANY, temporal=True, builtin=False),
        Predicate("hobby", aliases=("pastime",), builtin=False),
        Predicate("leisure", aliases=("hobby", "pastime"), builtin=False),
    ],
    ids=["many", "one", "dated", "alias", "other name"],
)
async def test_f4_setting_a_predicate_is_accepted_and_moves_nothing(
    ask: Caller, boss: Caller, urls: Urls, entry: Predicate
) -> None:
    chess = await ask.fact("chess", "hobby")
    golf = await ask.fact("golf", "hobby")
    cards = await ask.fact("cards", "pastime")
    before = await rows(urls, "SELECT * FROM memory.facts ORDER BY id")
    assert await boss.memory.set_predicate(boss.who, entry) == 0
    assert await rows(urls, "SELECT * FROM memory.facts ORDER BY id") == before
    assert await places(urls) == {("hobby", ""), ("pastime", "")}
    # And the law stands as before: one value for each word.
    assert (await ask.fact("golf", "hobby"))["id"] == golf["id"]
    assert (await ask.fact("tennis", "hobby"))["superseded_id"] == golf["id"]
    assert (await ask.fact("patience", "pastime"))["superseded_id"] == cards["id"]
    with conflict("key_taken"):
        await ask.restore(chess)
    assert await live(urls) == ["patience", "tennis"]
    assert {slot for _, slot in await places(urls)} == {""}


async def test_f4_what_a_predicate_says_besides_its_cardinality_holds(ask: Caller, boss: Caller) -> None:
    entry = Predicate("hobby", permanence=Permanence.VOLATILE, builtin=False)
    await boss.memory.set_predicate(boss.who, entry)
    assert (await ask.row(await ask.fact("chess", "hobby")))["permanence"] == "volatile"


async def test_f3_the_opposite_choice_is_refused_on_the_same_database(
    ask: Caller, open_engine: OpenEngine, urls: Urls
) -> None:
    await ask.fact("nuts", "allergy")
    with pytest.raises(SetupError, match=r"facts\.many_valued is true") as caught:
        await open_engine()
    assert "fixed at the first start" in caught.value.recovery
    again = await open_engine(**SINGLE)
    await Caller(again.memory, ask.who).fact("cats", "allergy")
    assert await live(urls) == ["cats"]


async def test_f3_a_tenant_that_comes_later_gets_the_same_choice(ask: Caller, engine: Engine, urls: Urls) -> None:
    secret, _ = await engine.access.create_token("new tenant", "chef", Role.BUTLER)
    newcomer = ask.as_(await engine.access.authenticate(secret))
    await newcomer.fact("chess", "hobby")
    assert (await newcomer.fact("golf", "hobby"))["outcome"] == "superseded"
    found: list[dict[str, Any]] = await rows(urls, "SELECT DISTINCT many_valued FROM memory.tenants")
    assert [row["many_valued"] for row in found] == [False]
