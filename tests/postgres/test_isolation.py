"""Nobody reaches another tenant's or another butler's memory (G1, T3), and G2: who may connect at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import MemoryType, Role
from butler_memory.domain.predicates import Predicate
from butler_memory.errors import ButlerMemoryError, InvalidInput, NotFound, Unauthenticated, Unavailable
from butler_memory.mcp_server.tools import TOOLS
from butler_memory.postgres.database import Conn
from butler_memory.postgres.provision import Urls
from butler_memory.security.principal import Principal
from butler_memory.security.tokens import token_hash
from caller import Caller, forbidden
from conftest import MakePrincipal, owner_connection, rows

TABLES = (
    "consolidation_runs embedding_versions episode_tombstones episodes facts idempotency_keys job_runs"
    " memory_event_bodies memory_events memory_links new_vectors predicates refs reviews rule_applications rules"
    " served_contexts shards tenants tokens"
).split()
# What each table needs for a row of tenant A; the columns of the three big ones come from storing for real.
SEEDS = """
    INSERT INTO memory.consolidation_runs VALUES ('A', gen_random_uuid(), 'b', 'x', now(), NULL, 'running', '{}', 0, 0);
    INSERT INTO memory.embedding_versions VALUES ('A', 'v', 'm', 384, 'current', now());
    INSERT INTO memory.episode_tombstones VALUES
        ('A', gen_random_uuid(), 'b', NULL, now(), now(), now(), 'expired', 'd');
    INSERT INTO memory.job_runs VALUES
        ('A', gen_random_uuid(), 'reembed', '', now(), now(), 'ok', NULL, '{}');
    INSERT INTO memory.new_vectors VALUES ('A', 'fact', gen_random_uuid(), 'v', '[1,0]');
    INSERT INTO memory.refs VALUES ('A', 'fact', gen_random_uuid(), 1, now());
    INSERT INTO memory.reviews (tenant_id, id, kind, state, created_at)
        VALUES ('A', gen_random_uuid(), 'proposal', 'open', now());
    INSERT INTO memory.rule_applications (tenant_id, id, rule_id, outcome, actor, applied_at)
        SELECT tenant_id, gen_random_uuid(), id, 'helpful', 'x', now() FROM memory.rules;
    INSERT INTO memory.served_contexts VALUES
        ('A', gen_random_uuid(), 'b', NULL, NULL, now(), 'ok', 1, 1, 't', '[]', '{}');
    INSERT INTO memory.shards VALUES ('A', 'b', 'consolidate', now(), now(), NULL, 0, 0, NULL, NULL, '{}');
"""


@pytest.fixture
async def alice(ask: Caller, principal: MakePrincipal) -> Caller:
    return ask.as_(await principal("health", tenant="A"))


@pytest.fixture
async def bob(ask: Caller, principal: MakePrincipal) -> Caller:
    """The same butler's name in another tenant, with all rights there."""
    return ask.as_(await principal("health", Role.ADMIN, tenant="B"))


@pytest.fixture
async def hers(alice: Caller) -> dict[str, dict[str, Any]]:
    """One memory of each type, and a row of each other kind that storing makes."""
    admin = alice.as_(Principal("A", "desk", Role.ADMIN, uuid4()))
    await admin.memory.set_predicate(admin.who, Predicate("colour", builtin=False))
    await alice.fact("blue", "colour")
    return {
        "fact": await alice.fact("red", "colour", idempotency_key="k"),
        "rule": await alice.rule("Be brief"),
        "episode": await alice.episode("It rained", session_id="s"),
    }


async def everything(urls: Urls) -> dict[str, list[dict[str, Any]]]:
    return {
        name: await rows(urls, f"SELECT to_jsonb(t) AS row FROM memory.{name} t WHERE tenant_id = 'A' ORDER BY 1")
        for name in TABLES
    }


Attempt = Callable[[Caller, dict[str, Any]], Awaitable[Any]]
BY_ID: dict[str, Attempt] = {
    "get": lambda caller, it: caller.shape(it),
    "confirm": lambda caller, it: caller.confirm(it),
    "forget": lambda caller, it: caller.forget(it),
    "restore": lambda caller, it: caller.restore(it, replace=True),
    "mark_helpful": lambda caller, it: caller.call("mark_helpful", {"rule_id": it["id"]}),
    "mark_harmful": lambda caller, it: caller.call("mark_harmful", {"rule_id": it["id"]}),
    "edit": lambda caller, it: caller.edit(it, content="mine now"),
    "edit_attributes": lambda caller, it: caller.edit(it, importance=1),
}


async def answer_to(attempt: Attempt, caller: Caller, written: dict[str, Any]) -> dict[str, Any]:
    try:
        answered: dict[str, Any] = await attempt(caller, written)
    except ButlerMemoryError as error:
        return error.as_dict()
    return answered


@pytest.mark.parametrize("name", BY_ID)
async def test_t3_another_tenants_id_answers_exactly_as_an_unknown_one(
    bob: Caller, hers: dict[str, dict[str, Any]], urls: Urls, name: str
) -> None:
    before = await everything(urls)
    for kind, written in hers.items():
        answers = [
            await answer_to(BY_ID[name], bob, {"type": kind, "id": memory_id})
            for memory_id in (written["id"], str(uuid4()))
        ]
        assert answers[0] == answers[1]
        assert answers[0]["error"] in ("not_found", "invalid_input")
        if kind == "fact":
            assert answers[0]["error"] == "not_found"
    assert await everything(urls) == before


@pytest.mark.parametrize("name", BY_ID)
async def test_t3_another_butlers_scope_answers_exactly_as_an_unknown_id(
    alice: Caller, principal: MakePrincipal, urls: Urls, name: str
) -> None:
    chef = alice.as_(await principal("chef", tenant="A"))
    own = [
        await chef.fact("secret", scope="chef"),
        await chef.rule("Be secret", scope="chef"),
        await chef.episode("It was secret"),
        await chef.as_(await principal("chef", tenant="A", project="atlas")).fact("plan", scope="project:atlas"),
    ]
    before = await everything(urls)
    for written in own:
        unknown = await answer_to(BY_ID[name], alice, {"type": written["type"], "id": str(uuid4())})
        assert await answer_to(BY_ID[name], alice, written) == unknown
        assert unknown["error"] in ("not_found", "invalid_input")
    assert await everything(urls) == before


async def test_t3_what_a_tenant_stores_lists_and_counts_touches_no_other(
    bob: Caller, hers: dict[str, dict[str, Any]], urls: Urls
) -> None:
    before = await everything(urls)
    mine = [
        await bob.fact("red", "colour", idempotency_key="k"),
        await bob.rule("Be brief"),
        await bob.episode("It rained", session_id="s"),
    ]
    assert [written["outcome"] for written in mine] == ["created"] * 3, "her keys, words and sessions are not his"
    assert not {written["id"] for written in mine} & {written["id"] for written in hers.values()}
    await bob.memory.set_predicate(bob.who, Predicate("colour", builtin=False))
    assert (await bob.call("stats", {"scope": "*"}))["facts"]["by_state"] == {"active": 1}
    for kind in hers:
        listed = await bob.memory.list_newest(bob.who, MemoryType(kind), "*", None, 50)
        assert [row["id"] for row in listed] == [w["id"] for w in mine if w["type"] == kind]
    assert await everything(urls) == before


PROMPT = "red colour rained brief"
READS: dict[str, dict[str, Any]] = {
    "search": {"query": PROMPT, "scope": "*", "min_confidence": 0},
    "recall": {"topic": PROMPT, "scope": "*", "min_confidence": 0},
    "context": {"trigger_prompt": PROMPT, "butler": "health"},
    "context_batch": {"requests": [{"trigger_prompt": PROMPT}, {}, {"butler": "health"}]},
    "activity_stream": {"scope": "*"},
}


@pytest.mark.parametrize("name", READS)
async def test_t3_no_read_finds_anything_of_another_tenant(
    alice: Caller, bob: Caller, hers: dict[str, dict[str, Any]], name: str
) -> None:
    words = ("rained", "is red", "be brief")
    own, foreign = _said(await alice.call(name, READS[name] | _own(name))), _said(await bob.call(name, READS[name]))
    assert any(word in own for word in words), "it is there"
    assert not any(word in foreign for word in words)


def _own(name: str) -> dict[str, Any]:
    """What only an admin may ask for is left out where a butler asks."""
    return {"scope": None} if name in ("search", "recall", "activity_stream") else {}


def _said(answer: dict[str, Any]) -> str:
    """Contents and blocks, without ids or ages that could hold a word by chance."""
    results = answer.get("results", [answer])
    results += [{"content": event["summary"]} for event in answer.get("events", [])]
    said = (f"{r.get('subject')} is {r.get('content')} {r.get('block')}" for r in results)
    return " ".join(said).lower()


async def test_t3_what_another_tenant_was_served_is_not_shown(
    alice: Caller, bob: Caller, hers: dict[str, dict[str, Any]]
) -> None:
    served = await alice.call("context", {"trigger_prompt": PROMPT})
    assert served["block"]
    assert await bob.memory.served_list(bob.who, None, 50) == []
    with pytest.raises(NotFound):
        await bob.memory.served_show(bob.who, UUID(served["served_id"]), compare=True)


async def test_t3_a_batch_of_another_tenant_is_its_own(
    bob: Caller, hers: dict[str, dict[str, Any]], urls: Urls
) -> None:
    before = await everything(urls)
    await bob.call("ingest_batch", {"episodes": [{"content": "It rained", "session_id": "s"}]})
    assert await everything(urls) == before


def test_t3_every_tool_is_tried_against_another_tenant() -> None:
    stored_and_counted = {"store", "store_fact", "store_rule", "store_episode", "stats", "ingest_batch"}
    assert {tool.name.removeprefix("memory_") for tool in TOOLS} <= READS.keys() | BY_ID.keys() | stored_and_counted


@pytest.mark.parametrize("call", ["fact", "rule"])
async def test_s4_naming_a_foreign_scope_is_forbidden(alice: Caller, call: str) -> None:
    for scope in ("chef", "project:atlas"):
        with forbidden("foreign_scope"):
            await getattr(alice, call)("x", scope=scope)
        with forbidden("foreign_scope"):
            await alice.call("stats", {"scope": scope})
        with forbidden("foreign_scope"):
            await alice.memory.list_newest(alice.who, MemoryType.FACT, scope, None, 5)
    with pytest.raises(InvalidInput):
        await getattr(alice, call)("x", scope="*")


async def test_a_reader_sees_the_whole_tenant_and_changes_nothing(
    alice: Caller, hers: dict[str, dict[str, Any]], principal: MakePrincipal, urls: Urls
) -> None:
    reader = alice.as_(await principal("auditor", Role.READER, tenant="A"))
    before = await everything(urls)
    for written in hers.values():
        assert (await reader.row(written))["id"] == written["id"]
        for change in (reader.forget, reader.restore):
            with forbidden("read_only"):
                await change(written)
    for attempt in (
        reader.confirm(hers["fact"]), reader.edit(hers["rule"], content="x"), reader.fact("x"), reader.rule("x"),
        reader.episode("x"), reader.fact("x", scope="global"),
    ):  # fmt: skip
        with forbidden("read_only"):
            await attempt
    assert await everything(urls) == before


async def test_g2_a_revoked_token_stops_at_once_and_a_wrong_one_never_starts(engine: Engine) -> None:
    secret, token = await engine.access.create_token("A", "health", Role.BUTLER)
    assert (await engine.access.authenticate(secret)).tenant == "A"
    await engine.access.revoke(token.id)
    await engine.access.revoke(token.id)
    for wrong in (secret, secret[:-1], "bm_x", "\udcff", "x" * 100_000):
        with pytest.raises(Unauthenticated, check=lambda error: error.reason == "bad_token"):
            await engine.access.authenticate(wrong)
    with pytest.raises(Unauthenticated, check=lambda error: error.reason == "no_token"):
        await engine.access.authenticate("")
    with pytest.raises(NotFound):
        await engine.access.revoke(uuid4())
    [listed] = await engine.access.tokens("A")
    assert (listed.id, listed.revoked_at is not None) == (token.id, True)
    assert await engine.access.tokens("B") == []


async def test_g2_a_token_is_stored_only_as_its_hash(engine: Engine, urls: Urls) -> None:
    secret, _ = await engine.access.create_token("A", "health", Role.ADMIN, label="laptop")
    [row] = await rows(urls, "SELECT to_jsonb(t)::text AS text, token_hash FROM memory.tokens t")
    assert row["token_hash"] == token_hash(secret)
    assert secret not in row["text"]
    assert secret.removeprefix("bm_") not in row["text"]


@pytest.mark.parametrize(
    ("tenant", "butler"),
    [("", "health"), ("  ", "health"), ("a\nb", "health"), ("x" * 201, "health"), ("a\x00b", "health"),
     ("A", "global"), ("A", ""), ("A", "*"), ("A", "project:x"), ("A", "Health"), ("A", "x" * 64)],
)  # fmt: skip
async def test_g2_names_that_would_confuse_scopes_get_no_token(
    engine: Engine, urls: Urls, tenant: str, butler: str
) -> None:
    with pytest.raises(InvalidInput):
        await engine.access.create_token(tenant, butler, Role.BUTLER)
    assert await rows(urls, "SELECT 1 FROM memory.tenants UNION ALL SELECT 1 FROM memory.tokens") == []


async def test_g1_no_tenant_means_no_work(engine: Engine) -> None:
    async def work(conn: Conn) -> None:
        raise AssertionError("it must not run")

    with pytest.raises(Unavailable, check=lambda error: error.reason == "no_tenant"):
        await engine.database.run("", work)


class TestDirectSql:
    """What the roles can reach with SQL of their own."""

    @pytest.fixture(autouse=True)
    async def _her_rows(self, hers: dict[str, dict[str, Any]], urls: Urls) -> None:
        async with owner_connection(urls) as conn:
            await conn.execute(SEEDS)
        assert [name for name, found in (await everything(urls)).items() if not found] == [], "each table has a row"

    @pytest.mark.parametrize("tenant", ["B", "", None, "%", "A' OR '1'='1"])
    async def test_g1_the_application_sees_no_row_of_another_tenant(self, urls: Urls, tenant: str | None) -> None:
        async with await psycopg.AsyncConnection.connect(urls.app) as conn:
            if tenant is not None:
                await conn.execute("SELECT set_config('memory.tenant', %s, false)", [tenant])
                await conn.commit()
            for name in TABLES:
                found = await self.count(conn, name)
                assert found == (None if name == "tokens" else 0), name

    async def test_g1_with_her_tenant_set_the_rows_are_there(self, urls: Urls) -> None:
        async with await psycopg.AsyncConnection.connect(urls.app) as conn:
            await conn.execute("SELECT set_config('memory.tenant', 'A', false)")
            await conn.commit()
            for name in TABLES:
                found = await self.count(conn, name)
                assert found is None if name == "tokens" else found, name

    async def count(self, conn: psycopg.AsyncConnection[Any], table: str) -> int | None:
        """Rows seen; None where the role may not even look."""
        try:
            row = await (await conn.execute(f"SELECT count(*) FROM memory.{table}")).fetchone()  # type: ignore[arg-type]
        except psycopg.errors.InsufficientPrivilege:
            return None
        finally:
            await conn.rollback()
        assert row is not None
        return int(row[0])

    @pytest.mark.parametrize("tenant", ["B", "", None])
    async def test_g1_the_application_cannot_write_for_another_tenant(self, urls: Urls, tenant: str | None) -> None:
        """Copies of her own rows, so that nothing but the policy can refuse them."""
        for name in TABLES:
            before = await rows(urls, f"SELECT count(*) FROM memory.{name}")
            columns = await rows(
                urls,
                "SELECT string_agg(quote_ident(attname), ', ') AS list FROM pg_attribute WHERE attnum > 0"
                " AND attgenerated = '' AND attidentity = '' AND NOT attisdropped AND attrelid = %s::regclass",
                f"memory.{name}",
            )
            values = await rows(urls, f"SELECT to_jsonb(t)::text AS row FROM memory.{name} t LIMIT 1")
            listed = columns[0]["list"]
            insert = (
                f"INSERT INTO memory.{name} ({listed})"
                f" SELECT {listed} FROM jsonb_populate_record(NULL::memory.{name}, %s::jsonb)"
            )
            async with await psycopg.AsyncConnection.connect(urls.app) as conn:
                if tenant is not None:
                    await conn.execute("SELECT set_config('memory.tenant', %s, true)", [tenant])
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    await conn.execute(insert, [values[0]["row"]])  # type: ignore[arg-type]
            assert await rows(urls, f"SELECT count(*) FROM memory.{name}") == before

    async def test_g1_the_application_can_neither_change_nor_give_away_rows(self, urls: Urls) -> None:
        before = await everything(urls)
        for name in TABLES:
            for statement in (f"UPDATE memory.{name} SET tenant_id = 'B'", f"DELETE FROM memory.{name}"):
                async with await psycopg.AsyncConnection.connect(urls.app) as conn:
                    await conn.execute("SELECT set_config('memory.tenant', 'B', true)")
                    try:
                        done = await conn.execute(statement)  # type: ignore[arg-type]
                    except psycopg.errors.InsufficientPrivilege:
                        continue
                    assert done.rowcount == 0, statement
        # Her own session cannot move a row to him either.
        async with await psycopg.AsyncConnection.connect(urls.app) as conn:
            await conn.execute("SELECT set_config('memory.tenant', 'A', true)")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await conn.execute("UPDATE memory.facts SET tenant_id = 'B'")
        assert await everything(urls) == before

    async def test_g1_the_application_owns_nothing_and_makes_nothing(self, urls: Urls) -> None:
        for statement in (
            "ALTER TABLE memory.facts DISABLE ROW LEVEL SECURITY",
            "DROP POLICY own_tenant ON memory.facts",
            "CREATE TABLE memory.mine (x int)",
            "TRUNCATE memory.facts",
            "SELECT * FROM memory.tokens",
            "SET ROLE " + str(psycopg.conninfo.conninfo_to_dict(urls.owner)["user"]),
        ):
            for url in (urls.app, urls.worker):
                if url == urls.worker and "tokens" in statement:
                    continue
                async with await psycopg.AsyncConnection.connect(url) as conn:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        await conn.execute(statement)  # type: ignore[arg-type]

    async def test_g1_row_security_cannot_be_switched_off(self, urls: Urls) -> None:
        async with await psycopg.AsyncConnection.connect(urls.app, autocommit=True) as conn:
            await conn.execute("SET row_security = off")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await conn.execute("SELECT * FROM memory.facts")

    async def test_g1_the_worker_sees_what_comes_before_a_tenant_and_no_content(self, urls: Urls) -> None:
        reachable = {"tokens", "shards", "job_runs", "embedding_versions"}
        async with await psycopg.AsyncConnection.connect(urls.worker) as conn:
            for name in TABLES:
                found = await self.count(conn, name)
                assert (found is not None) == (name in reachable | {"tenants"}), name
            await conn.execute("SELECT tenant_id, many_valued FROM memory.tenants")
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await conn.execute("SELECT digest_key FROM memory.tenants")
