"""Storing facts against a real database: what each statement does to what is known (F1 to F11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import Cardinality, EventType, MemoryType, Permanence, Role, Validity
from butler_memory.domain.predicates import Predicate
from butler_memory.domain.requests import StoreFact, parse
from butler_memory.errors import Integrity, SetupError
from butler_memory.postgres.changes import Author, Change, apply
from butler_memory.postgres.provision import Urls
from butler_memory.security.principal import Principal
from butler_memory.writing.facts import store_fact
from caller import Caller, conflict, forbidden
from conftest import Hands, MakePrincipal, OpenEngine, Template, owner_connection, rows

pytestmark = pytest.mark.usefixtures("ledger")


async def event_types(urls: Urls, memory_id: str) -> list[str]:
    found = await rows(urls, "SELECT event_type FROM memory.memory_events WHERE entity_id = %s ORDER BY id", memory_id)
    return [row["event_type"] for row in found]


async def contents(urls: Urls, validity: str = "active") -> list[str]:
    found = await rows(urls, "SELECT content FROM memory.facts WHERE validity = %s ORDER BY content", validity)
    return [row["content"] for row in found]


async def test_f1_l6_a_new_fact_has_the_defaults_and_the_engines_time(ask: Caller, hands: Hands, urls: Urls) -> None:
    written = await ask.fact("blue", "door_colour")
    assert written == {
        "type": "fact",
        "id": written["id"],
        "outcome": "created",
        "state": "active",
        "superseded_id": None,
        "links": [],
        "request_context": {},
    }
    row = await ask.row(written)
    assert row["version"] == 1
    assert (row["importance"], row["confidence"], row["permanence"]) == (5.0, 1.0, "standard")
    assert (row["scope"], row["validity"], row["slot"], row["decay_rate"]) == ("global", "active", "", 0.008)
    assert (row["source_kind"], row["source_butler"]) == ("agent_inferred", "health")
    assert (row["valid_from"], row["valid_to"], row["supersedes_id"], row["superseded_at"]) == (None,) * 4
    assert row["created_at"] == row["last_confirmed_at"] == "2026-03-01T12:00:00Z"
    assert (row["reference_count"], row["last_referenced_at"]) == (0, None)
    assert row["id"].split("-")[2].startswith("7"), "ids are UUIDv7"
    [event] = await rows(urls, "SELECT * FROM memory.memory_events")
    assert (event["event_type"], event["entity_version"], event["actor"]) == ("created", 1, "butler:health")
    assert event["occurred_at"] == hands.now


async def test_t2_the_request_context_is_kept_on_row_and_event_and_returned(ask: Caller, urls: Urls) -> None:
    context = {"request_id": "req-1", "subrequest_id": "sub-1", "segment_id": "seg-1", "session_id": "s-1"}
    written = await ask.fact("blue", "door_colour", request_context=context)
    assert written["request_context"] == context
    row = await ask.row(written)
    assert row["request_id"] == "req-1"
    assert row["source_session_id"] is not None
    [event] = await rows(urls, "SELECT request_id, payload FROM memory.memory_events")
    assert event["request_id"] == "req-1"
    assert event["payload"]["lineage"] == {k: v for k, v in context.items() if k != "request_id"}


async def test_f5_new_content_supersedes_and_inherits(ask: Caller, urls: Urls) -> None:
    first = await ask.fact("Acme", "employer", "me", permanence="permanent", importance=8, tags=["work"])
    second = await ask.fact("Globex", "works_at")
    assert (first["outcome"], second["outcome"]) == ("created", "superseded")
    assert second["superseded_id"] == first["id"]
    assert second["links"] == [{"relation": "supersedes", "type": "fact", "id": first["id"]}]
    row = await ask.row(second)
    assert (row["permanence"], row["importance"], row["tags"]) == ("permanent", 8, ["work"])
    assert (row["supersedes_id"], row["decay_rate"], row["fades_at"]) == (first["id"], 0.0, None)
    old = await ask.shape(first)
    assert old["memory"]["validity"] == "superseded"
    assert old["memory"]["superseded_at"] is not None
    assert [(x["relation"], x["id"]) for x in old["links"]["in"]] == [("supersedes", second["id"])]
    assert await event_types(urls, first["id"]) == ["created", "superseded"]
    assert await event_types(urls, second["id"]) == ["created"]


async def test_f5_what_the_caller_gives_is_not_inherited(ask: Caller) -> None:
    await ask.fact("Acme", permanence="permanent", importance=8, tags=["work"])
    second = await ask.row(await ask.fact("Globex", permanence="volatile", importance=2, tags=[]))
    assert (second["permanence"], second["importance"], second["tags"]) == ("volatile", 2, [])


async def test_f5_f9_the_same_content_in_the_same_session_is_kept_as_it_is(ask: Caller, urls: Urls) -> None:
    first = await ask.user_says("Acme")
    again = await ask.user_says("  ACME. ")
    assert (again["id"], again["outcome"]) == (first["id"], "duplicate")
    assert await event_types(urls, first["id"]) == ["created"]


async def test_f9_the_user_in_another_session_confirms(ask: Caller, hands: Hands, urls: Urls) -> None:
    first = await ask.in_session("one").user_says("Acme", confidence=0.6)
    hands.pass_(days=10)
    again = await ask.in_session("two").user_says("acme", confidence=0.9)
    assert (again["id"], again["outcome"]) == (first["id"], "confirmed")
    row = await ask.row(first)
    assert row["last_confirmed_at"] == "2026-03-11T12:00:00Z"
    assert row["confidence"] == 0.6, "confidence rises only when the source improves"
    assert row["content"] == "Acme"
    assert await event_types(urls, first["id"]) == ["created", "confirmed"]


async def test_f9_a_token_and_the_day_stand_in_for_a_session(ask: Caller, hands: Hands) -> None:
    await ask.user_says("Acme")
    hands.pass_(hours=1)
    assert (await ask.user_says("Acme"))["outcome"] == "duplicate"
    hands.pass_(days=1)
    assert (await ask.user_says("Acme"))["outcome"] == "confirmed"


async def test_f9_an_agents_repetition_never_confirms(ask: Caller, hands: Hands, urls: Urls) -> None:
    first = await ask.in_session("one").user_says("Acme")
    hands.pass_(days=10)
    again = await ask.in_session("two").fact("Acme")
    assert (again["id"], again["outcome"]) == (first["id"], "duplicate")
    assert (await ask.row(first))["last_confirmed_at"] == "2026-03-01T12:00:00Z"
    assert await event_types(urls, first["id"]) == ["created"]


async def test_f9_a_better_source_raises_confidence(ask: Caller) -> None:
    first = await ask.fact("Acme", confidence=0.5)
    again = await ask.user_says("Acme", confidence=0.95)
    assert (again["id"], again["outcome"]) == (first["id"], "confirmed")
    row = await ask.row(first)
    assert (row["confidence"], row["source_kind"]) == (0.95, "user_stated")


async def test_f9_a_confirmation_makes_a_fading_fact_active(ask: Caller, hands: Hands, urls: Urls) -> None:
    first = await ask.in_session("one").user_says("Acme")
    await fade(ask, first)
    hands.pass_(days=300)
    await ask.in_session("two").user_says("Acme")
    row = await ask.row(first)
    assert (row["validity"], row["last_confirmed_at"]) == ("active", "2026-12-26T12:00:00Z")
    assert row["fades_at"] > row["last_confirmed_at"]
    assert await event_types(urls, first["id"]) == ["created", "faded", "confirmed"]


async def fade(ask: Caller, fact: dict[str, Any]) -> None:
    """What the decay sweep of a later issue will do, by the one way a memory changes."""
    change = Change(MemoryType.FACT, UUID(fact["id"]), 2, EventType.FADED, {"validity": Validity.FADING})
    author = Author(ask.who.tenant, "job:decay_sweep", ask.memory._clock(), ask.who.token_id)
    await ask.memory._desk.database.run(ask.who.tenant, lambda conn: apply(conn, author, [change]))


async def test_f5_attributes_given_explicitly_are_a_revision(ask: Caller, urls: Urls) -> None:
    first = await ask.fact("Acme")
    again = await ask.fact("Acme", permanence="permanent", importance=9, tags=["work"], valid_to="2027-01-01T00:00:00Z")
    assert again["id"] == first["id"]
    row = await ask.row(first)
    assert (row["permanence"], row["decay_rate"], row["fades_at"]) == ("permanent", 0.0, None)
    assert (row["importance"], row["tags"], row["valid_to"]) == (9, ["work"], "2027-01-01T00:00:00Z")
    assert row["version"] == 2
    assert await event_types(urls, first["id"]) == ["created", "revised"]
    await ask.fact("Acme", permanence="permanent", importance=9)
    assert await event_types(urls, first["id"]) == ["created", "revised"], "nothing differs: no new version"


async def test_f3_values_of_a_many_valued_predicate_join_each_other(ask: Caller, urls: Urls) -> None:
    nuts = await ask.fact("nuts", "allergy")
    cats = await ask.fact("cats", "allergic_to")
    assert (nuts["outcome"], cats["outcome"]) == ("created", "created")
    assert await contents(urls) == ["cats", "nuts"]
    row = await ask.row(cats)
    assert (row["permanence"], row["predicate"], row["predicate_key"]) == ("permanent", "allergic_to", "allergy")
    again = await ask.fact("Nuts!", "allergies")
    assert (again["id"], again["outcome"]) == (nuts["id"], "duplicate")


async def test_f11_the_same_words_are_one_value_and_opposites_are_two(ask: Caller, urls: Urls) -> None:
    first = await ask.fact("reads books in the evening", "habit")
    same = await ask.fact("reading a book in evenings", "habit")
    assert same["id"] == first["id"]
    other = await ask.fact("never reads books in the evening", "habit")
    assert other["outcome"] == "created"
    assert other["links"] == [{"relation": "related_to", "type": "fact", "id": first["id"]}]
    assert len(await contents(urls)) == 2


async def test_f3_dated_observations_never_supersede_each_other(ask: Caller, urls: Urls) -> None:
    await ask.fact("80 kg", "weight", valid_from="2026-01-01T08:00:00Z")
    await ask.fact("81 kg", "weight", valid_from="2026-02-01T08:00:00Z")
    again_later = await ask.fact("80 kg", "weight", valid_from="2026-03-01T08:00:00Z")
    assert again_later["outcome"] == "created", "the same value at another time is another observation"
    same = await ask.fact("80 kg", "weight", valid_from="2026-01-01T09:00:00+01:00")
    assert same["outcome"] == "duplicate"
    assert await contents(urls) == ["80 kg", "80 kg", "81 kg"]


async def test_f2_older_evidence_arriving_late_never_retires_what_is_newer(ask: Caller, urls: Urls) -> None:
    newer = await ask.fact("Globex", valid_from="2026-01-01T00:00:00Z")
    late = await ask.fact("Acme", valid_from="2020-01-01T00:00:00Z")
    assert (late["outcome"], late["state"]) == ("created", "superseded")
    assert (await ask.row(newer))["validity"] == "active"
    shape = await ask.shape(late)
    assert [(x["relation"], x["id"]) for x in shape["links"]["in"]] == [("supersedes", newer["id"])]
    assert await event_types(urls, newer["id"]) == ["created", "linked"]


async def test_f2_a_value_that_is_over_does_not_retire_the_one_that_holds(ask: Caller, urls: Urls) -> None:
    holds = await ask.user_says("Globex")
    over = await ask.user_says("Acme", valid_from="2015-01-01T00:00:00Z", valid_to="2018-01-01T00:00:00Z")
    assert (over["outcome"], over["state"], over["superseded_id"]) == ("created", "superseded", None)
    assert await contents(urls) == ["Globex"]
    assert [(x["relation"], x["id"]) for x in (await ask.shape(holds))["links"]["out"]] == [("supersedes", over["id"])]
    assert (await ask.user_says("Initech", valid_to="2027-01-01T00:00:00Z"))["superseded_id"] == holds["id"]


async def test_f4_aliases_of_a_predicate_share_one_key(ask: Caller, urls: Urls) -> None:
    await ask.fact("Paris", "lives_in")
    second = await ask.fact("Rome", "Residence", "The User")
    assert second["outcome"] == "superseded"
    assert await contents(urls) == ["Rome"]


async def test_f5_an_omitted_scope_finds_project_then_butler_then_global(
    ask: Caller, principal: MakePrincipal, urls: Urls
) -> None:
    caller = ask.as_(await principal(project="atlas"))
    places = ["global", "health", "project:atlas"]
    for scope in places:
        assert (await caller.fact(f"old {scope}", scope=scope))["outcome"] == "created", "scopes do not merge"
    for scope in reversed(places):
        written = await caller.fact(f"new {scope}")
        assert (await caller.row(written))["scope"] == scope
        await caller.forget(written)
    assert (await caller.row(await caller.fact("fresh")))["scope"] == "global"
    assert sorted(await contents(urls, "superseded")) == sorted(f"old {scope}" for scope in places)


async def test_f5_an_omitted_scope_finds_each_of_many_values_where_it_is(ask: Caller, urls: Urls) -> None:
    everywhere = await ask.user_says("penicillin", "allergy")
    mine = await ask.user_says("house dust", "allergy", scope="health")
    later = ask.in_session("later")
    assert (await later.user_says("Penicillin", "allergic_to"))["id"] == everywhere["id"]
    assert (await later.user_says("dust, house", "allergy"))["id"] == mine["id"], "in other words, too (F11)"
    new = await later.user_says("nuts", "allergy")
    assert (new["outcome"], (await ask.row(new))["scope"]) == ("created", "global")
    assert await contents(urls) == ["house dust", "nuts", "penicillin"]


async def test_f12_a_scoped_fact_leaves_the_global_one_alone(ask: Caller) -> None:
    everywhere = await ask.fact("Acme", scope="global")
    mine = await ask.fact("Globex", scope="health")
    assert mine["outcome"] == "created"
    assert (await ask.row(everywhere))["validity"] == "active"
    same = await ask.fact("Acme", scope="health")
    assert same["superseded_id"] == mine["id"], "the same words elsewhere are another fact"


async def test_s4_a_foreign_scope_is_refused_and_an_admin_may_name_any(ask: Caller, admin: Principal) -> None:
    for scope in ("finance", "project:atlas"):
        with forbidden("foreign_scope"):
            await ask.fact("Acme", scope=scope)
        assert (await ask.as_(admin).fact("Acme", scope=scope))["outcome"] == "created"


async def test_e6_one_key_is_one_fact_even_when_the_words_differ(ask: Caller, urls: Urls) -> None:
    first = await ask.fact("Acme", idempotency_key="k1")
    again = await ask.fact("Globex", idempotency_key="k1")
    assert (again["id"], again["outcome"], again["state"]) == (first["id"], "duplicate", "active")
    assert await contents(urls) == ["Acme"]


@pytest.mark.parametrize("kind", ["fact", "rule", "episode"])
async def test_e6_sixteen_calls_at_once_with_one_key_make_one_row(ask: Caller, urls: Urls, kind: str) -> None:
    store = getattr(ask, kind)
    answers = await asyncio.gather(*(store(f"always number {n}", idempotency_key="k") for n in range(16)))
    assert len({answer["id"] for answer in answers}) == 1
    assert sorted({answer["outcome"] for answer in answers}) == ["created", "duplicate"]
    assert sum(answer["outcome"] == "created" for answer in answers) == 1
    assert len(await rows(urls, "SELECT 1 FROM memory.memory_events")) == 1


async def test_e6_keys_of_two_butlers_and_of_two_types_do_not_meet(ask: Caller, principal: MakePrincipal) -> None:
    other = ask.as_(await principal("finance"))
    made = [
        await ask.fact("Acme", idempotency_key="k"),
        await ask.rule("Always pay", idempotency_key="k"),
        await ask.episode("It rained", idempotency_key="k"),
        await other.fact("blue", "door_colour", idempotency_key="k"),
    ]
    assert [written["outcome"] for written in made] == ["created"] * 4


@pytest.mark.parametrize("kind", ["fact", "rule", "episode"])
async def test_e6_t3_keys_of_two_projects_do_not_meet(ask: Caller, principal: MakePrincipal, kind: str) -> None:
    alpha, beta = [ask.as_(await principal(project=project)) for project in ("alpha", "beta")]
    made = []
    for caller in (alpha, beta, ask):
        scope = (
            {} if kind == "episode" else {"scope": f"project:{caller.who.project}" if caller.who.project else "global"}
        )
        made.append(await getattr(caller, kind)("Always say hello", idempotency_key="k", **scope))
        again = await getattr(caller, kind)("Always say goodbye", idempotency_key="k", **scope)
        assert (again["id"], again["outcome"]) == (made[-1]["id"], "duplicate")
    assert [written["outcome"] for written in made] == ["created"] * 3
    assert len({written["id"] for written in made}) == 3


@pytest.fixture
async def far_west(urls: Urls, template: Template, ledger: None) -> AsyncIterator[None]:
    """A server that lives in another zone; the ledger is read in UTC again."""
    name = psycopg.conninfo.conninfo_to_dict(urls.app)["dbname"]
    database = sql.Identifier(str(name))
    await template._admin(sql.SQL("ALTER DATABASE {} SET timezone = 'America/New_York'").format(database))
    yield
    await template._admin(sql.SQL("ALTER DATABASE {} RESET timezone").format(database))


@pytest.mark.usefixtures("far_west")
@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"])
async def test_l6_t4_the_ends_of_the_calendar_are_read_back_whatever_the_servers_zone(ask: Caller, moment: str) -> None:
    first = await ask.fact("chess", "hobby", valid_from=moment)
    assert (await ask.row(first))["valid_from"] == moment
    assert (await ask.row(first))["created_at"] == "2026-03-01T12:00:00Z"
    assert (await ask.fact("go", "hobby"))["outcome"] == "created"
    assert (await ask.call("search", {"query": "chess"}))["results"] != []
    assert (await ask.forget(first))["state"] == "retracted"


async def stored_with_evidence(ask: Caller, *episodes: UUID, **given: Any) -> dict[str, Any]:
    """As consolidation will store it."""
    request = parse(StoreFact, {"subject": "user", "predicate": "employer", "content": "Acme", **given})
    return (await store_fact(ask.memory._desk, ask.who, request, ask.memory._clock(), episodes)).as_dict()


async def test_f7_l1_evidence_is_linked_both_ways(ask: Caller) -> None:
    episode = await ask.episode("She said that she works at Acme")
    written = await stored_with_evidence(ask, UUID(episode["id"]))
    shape = await ask.shape(written)
    assert shape["memory"]["source_episode_id"] == episode["id"]
    assert shape["provenance"] == [{"type": "episode", "id": episode["id"], "status": "available"}]
    assert [(x["relation"], x["type"], x["id"]) for x in shape["links"]["out"]] == [
        ("derived_from", "episode", episode["id"])
    ]
    assert [(x["relation"], x["type"], x["id"]) for x in (await ask.shape(episode))["links"]["in"]] == [
        ("derived_from", "fact", written["id"])
    ]
    await ask.forget(episode)
    assert (await ask.shape(written))["provenance"][0]["status"] == "forgotten"


async def test_f7_new_evidence_for_a_known_fact_is_linked_once(ask: Caller, urls: Urls) -> None:
    first, second = [UUID((await ask.episode(f"Acme, said for the {n}. time"))["id"]) for n in (1, 2)]
    written = await stored_with_evidence(ask, first)
    again = await stored_with_evidence(ask, first, second)
    assert (again["id"], again["outcome"]) == (written["id"], "duplicate")
    assert again["links"] == [{"relation": "derived_from", "type": "episode", "id": str(second)}]
    assert {source["id"] for source in (await ask.shape(written))["provenance"]} == {str(first), str(second)}
    assert (await stored_with_evidence(ask, second))["links"] == []
    assert await event_types(urls, written["id"]) == ["created", "linked"], "the same evidence again changes nothing"


async def test_l1_a_link_to_nothing_is_refused_and_nothing_stays(ask: Caller, urls: Urls) -> None:
    with pytest.raises(Integrity, check=lambda error: error.reason == "broken_link"):
        await stored_with_evidence(ask, uuid4())
    assert await contents(urls) == []


@pytest.mark.parametrize("reason", ["expired", "forgotten", "erased"])
async def test_e4_l1_a_link_to_a_tombstone_is_whole_and_says_what_became_of_it(
    ask: Caller, urls: Urls, reason: str
) -> None:
    gone = uuid4()
    async with owner_connection(urls) as conn:
        await conn.execute(
            "INSERT INTO memory.episode_tombstones (tenant_id, id, butler, occurred_at, created_at, deleted_at, reason,"
            " digest) VALUES ('home', %s, 'health', now(), now(), now(), %s, 'x')",
            [gone, reason],
        )
    written = await stored_with_evidence(ask, gone)
    assert (await ask.shape(written))["provenance"] == [{"type": "episode", "id": str(gone), "status": reason}]


async def test_f4_a_changed_predicate_moves_live_facts_to_new_slots(
    ask: Caller, admin: Principal, engine: Engine, urls: Urls
) -> None:
    await ask.fact("red", "colour")
    await ask.fact("blue", "Colour")
    assert await contents(urls) == ["blue"]
    assert await engine.memory.set_predicate(admin, Predicate("colour", Cardinality.MANY, builtin=False)) == 1
    await ask.fact("green", "colour")
    assert await contents(urls) == ["blue", "green"]
    again = await ask.fact("BLUE", "colour")
    assert again["outcome"] == "duplicate", "the moved fact is found under its new slot"


async def test_f4_many_to_one_is_refused_while_a_key_holds_two(
    ask: Caller, admin: Principal, engine: Engine, urls: Urls
) -> None:
    made = [await ask.fact(content, "hobby") for content in ("chess", "golf")]
    single = Predicate("hobby", Cardinality.ONE, builtin=False)
    with conflict("several_values") as caught:
        await engine.memory.set_predicate(admin, single)
    assert sorted(caught.value.data["fact_ids"]) == sorted(written["id"] for written in made)
    assert await rows(urls, "SELECT 1 FROM memory.predicates") == []
    await ask.forget(made[0])
    assert await engine.memory.set_predicate(admin, single) == 1
    assert (await ask.fact("tennis", "hobby"))["superseded_id"] == made[1]["id"]


async def test_f4_a_new_alias_brings_its_facts_along(ask: Caller, admin: Principal, engine: Engine) -> None:
    old = await ask.fact("red", "tint")
    await engine.memory.set_predicate(admin, Predicate("Main Colour", aliases=("Tint",), builtin=False))
    assert (await ask.row(old))["predicate_key"] == "main_colour"
    assert (await ask.fact("blue", "tint"))["superseded_id"] == old["id"]
    assert (await ask.fact("green", "main colour"))["outcome"] == "superseded"


async def test_f4_an_alias_that_another_own_predicate_holds_is_refused(
    ask: Caller, admin: Principal, engine: Engine, urls: Urls
) -> None:
    await engine.memory.set_predicate(admin, Predicate("employer", aliases=("workplace",), builtin=False))
    first = await ask.user_says("Acme", "employer")
    for entry in (
        Predicate("job", aliases=("employer",), builtin=False),
        Predicate("job", aliases=("gig", "Workplace"), builtin=False),
        Predicate("workplace", builtin=False),
    ):
        with conflict("alias_taken") as caught:
            await engine.memory.set_predicate(admin, entry)
        assert len(caught.value.data["taken"]) == 1
    assert [row["name"] for row in await rows(urls, "SELECT name FROM memory.predicates")] == ["employer"]
    assert (await ask.user_says("Globex", "workplace"))["superseded_id"] == first["id"]


async def test_f4_a_word_given_back_takes_its_facts_along(
    ask: Caller, admin: Principal, engine: Engine, urls: Urls
) -> None:
    await engine.memory.set_predicate(admin, Predicate("job", aliases=("gig",), builtin=False))
    baker = await ask.user_says("baker", "gig")
    assert await engine.memory.set_predicate(admin, Predicate("job", builtin=False)) == 1
    assert (await ask.row(baker))["predicate_key"] == "gig"
    cook = await ask.user_says("cook", "gig")
    assert cook["superseded_id"] == baker["id"], "one value for one word, before and after"
    teacher = await ask.user_says("teacher", "job")
    assert teacher["outcome"] == "created"
    for predicate, content in (("gig", "cook"), ("job", "teacher")):
        found = await ask.call("search", {"predicate": predicate})
        assert [result["content"] for result in found["results"]] == [content]
    await ask.forget(teacher)
    await engine.memory.set_predicate(admin, Predicate("job", aliases=("gig",), builtin=False))
    with conflict("key_taken"):
        await ask.restore(teacher)
    assert await contents(urls) == ["cook"]


async def test_f4_a_builtin_name_taken_as_an_alias_takes_all_its_words_along(
    ask: Caller, admin: Principal, engine: Engine, urls: Urls
) -> None:
    """One value is never split over two keys, whichever of the words was used for it."""
    acme = await ask.user_says("Acme", "works_at")
    assert await engine.memory.set_predicate(admin, Predicate("gig", aliases=("employer",), builtin=False)) == 1
    globex = await ask.user_says("Globex", "company")
    assert globex["superseded_id"] == acme["id"]
    found = await ask.call("search", {"predicate": "works_at"})
    assert [result["content"] for result in found["results"]] == ["Globex"]
    assert await engine.memory.set_predicate(admin, Predicate("gig", aliases=("company",), builtin=False)) == 0
    assert (await ask.user_says("Initech", "company"))["superseded_id"] == globex["id"]
    assert (await ask.user_says("Umbrella", "works_at"))["outcome"] == "created"


async def test_f4_a_builtin_alias_taken_as_an_own_one_takes_only_its_facts_along(
    ask: Caller, admin: Principal, engine: Engine
) -> None:
    acme, globex = await ask.fact("Acme", "company"), await ask.fact("Globex", "works_at", "Maria")
    assert await engine.memory.set_predicate(admin, Predicate("client", aliases=("company",), builtin=False)) == 1
    assert [(await ask.row(fact))["predicate_key"] for fact in (acme, globex)] == ["client", "employer"]
    assert (await ask.fact("Initech", "company"))["superseded_id"] == acme["id"]


async def test_f4_words_may_change_places_in_one_step(ask: Caller, admin: Principal, engine: Engine) -> None:
    await engine.memory.set_predicate(admin, Predicate("shade", aliases=("tint",), builtin=False))
    older, newer = await ask.fact("red", "hue"), await ask.fact("blue", "tint")
    assert await engine.memory.set_predicate(admin, Predicate("shade", aliases=("hue",), builtin=False)) == 2
    assert (await ask.row(older))["predicate_key"] == "shade"
    assert (await ask.row(newer))["predicate_key"] == "tint"


async def test_f4_a_forgotten_fact_comes_back_under_what_its_word_means_today(
    ask: Caller, admin: Principal, engine: Engine
) -> None:
    await engine.memory.set_predicate(admin, Predicate("job", aliases=("gig",), builtin=False))
    baker = await ask.fact("baker", "gig")
    await ask.forget(baker)
    await engine.memory.set_predicate(admin, Predicate("job", builtin=False))
    await ask.restore(baker)
    assert (await ask.row(baker))["predicate_key"] == "gig"
    assert (await ask.fact("cook", "gig"))["superseded_id"] == baker["id"]


async def test_f4_a_restored_fact_comes_back_to_the_slot_of_today(
    ask: Caller, admin: Principal, engine: Engine, urls: Urls
) -> None:
    chess, golf = [await ask.fact(content, "hobby") for content in ("chess", "golf")]
    await ask.forget(chess)
    await engine.memory.set_predicate(admin, Predicate("hobby", Cardinality.ONE, builtin=False))
    with conflict("key_taken"):
        await ask.restore(chess)
    assert (await ask.restore(chess, replace=True))["superseded_id"] == golf["id"]
    assert await contents(urls) == ["chess"]


async def test_f4_only_an_admin_changes_predicates(ask: Caller, engine: Engine, principal: MakePrincipal) -> None:
    for role in (Role.BUTLER, Role.READER):
        with forbidden("needs_admin"):
            await engine.memory.set_predicate(await principal("chef", role), Predicate("hobby"))


async def test_f4_a_predicates_own_permanence_is_the_default(ask: Caller, admin: Principal, engine: Engine) -> None:
    await engine.memory.set_predicate(admin, Predicate("shoe_size", permanence=Permanence.STABLE, builtin=False))
    assert (await ask.row(await ask.fact("43", "shoe_size")))["permanence"] == "stable"
    assert (await ask.row(await ask.fact("44", "shoe_size", permanence="volatile")))["permanence"] == "volatile"
    registry = await engine.memory.predicates(admin)
    assert registry.find("Shoe Size").permanence is Permanence.STABLE


async def test_f4_an_undated_observation_keeps_its_day_when_its_predicate_is_changed(
    ask: Caller, admin: Principal, engine: Engine, hands: Hands
) -> None:
    first = await ask.fact("80 kg", "weight")
    heavier = Predicate("weight", Cardinality.MANY, temporal=True, permanence=Permanence.STABLE, builtin=False)
    assert await engine.memory.set_predicate(admin, heavier) == 0
    hands.pass_(hours=2)
    assert (await ask.fact("80 kg", "weight"))["id"] == first["id"]


class TestSingleValued:
    """`facts.many_valued = false`: 003 to the letter (F3)."""

    @pytest.fixture
    async def engine(self, open_engine: OpenEngine) -> Engine:
        made: Engine = await open_engine(BUTLER_MEMORY_FACTS__MANY_VALUED="false")
        return made

    async def test_f3_every_new_value_supersedes_the_old_one(self, ask: Caller, urls: Urls) -> None:
        first = await ask.fact("nuts", "allergy")
        second = await ask.fact("cats", "allergy")
        assert second["superseded_id"] == first["id"]
        await ask.fact("80 kg", "weight", valid_from="2026-01-01T08:00:00Z")
        await ask.fact("81 kg", "weight", valid_from="2026-02-01T08:00:00Z")
        assert await contents(urls) == ["81 kg", "cats"]
        assert {row["slot"] for row in await rows(urls, "SELECT slot FROM memory.facts")} == {""}

    async def test_f3_other_words_for_a_predicate_stay_apart(self, ask: Caller, urls: Urls) -> None:
        await ask.fact("Anna", "mother")
        await ask.fact("Bob", "father")
        assert await contents(urls) == ["Anna", "Bob"]

    async def test_f3_a_correction_and_a_return_keep_the_one_slot(self, ask: Caller, urls: Urls) -> None:
        first = await ask.fact("nuts", "allergy")
        second = await ask.edit(first, content="walnuts")
        with conflict("key_taken"):
            await ask.restore(first)
        await ask.restore(first, replace=True)
        assert await contents(urls) == ["nuts"]
        assert (await ask.row(second))["validity"] == "superseded"

    async def test_f3_the_choice_is_fixed_at_the_first_start(self, ask: Caller, open_engine: OpenEngine) -> None:
        with pytest.raises(SetupError, match="many_valued"):
            await open_engine()
        await open_engine(BUTLER_MEMORY_FACTS__MANY_VALUED="false")


async def test_f3_a_database_of_many_values_refuses_to_become_single_valued(
    who: Principal, open_engine: OpenEngine
) -> None:
    with pytest.raises(SetupError, match="many_valued"):
        await open_engine(BUTLER_MEMORY_FACTS__MANY_VALUED="false")
