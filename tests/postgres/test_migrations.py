"""From an administrator's URL to a schema at its head, once, whoever else is starting; and clear words when not."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from butler_memory import bootstrap
from butler_memory.domain.kinds import Role
from butler_memory.embedding.fake import FakeEmbedder
from butler_memory.errors import SetupError, Unavailable
from butler_memory.postgres import migrate as migration
from butler_memory.postgres.database import Database
from butler_memory.postgres.migrate import head_revision, migrate
from butler_memory.postgres.provision import Urls, check_server, new_passwords, provision, role_names
from butler_memory.postgres.schema_version import HEAD, schema_is_current
from butler_memory.postgres.server import EmbeddedServer
from conftest import OpenEngine, owner_connection, rows, settings_for

SCHEMA = """
    SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull, d.said
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
    LEFT JOIN LATERAL (SELECT string_agg(pg_get_constraintdef(k.oid), ' ' ORDER BY k.conname) AS said
                       FROM pg_constraint k WHERE k.conrelid = c.oid) d ON true
    WHERE c.relnamespace = 'memory'::regnamespace ORDER BY 1, 2
"""


@pytest.fixture
async def admin(server: EmbeddedServer) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    async with await psycopg.AsyncConnection.connect(server.admin_url(), autocommit=True) as conn:
        yield conn


@pytest.fixture
async def fresh(server: EmbeddedServer, admin: psycopg.AsyncConnection[Any]) -> AsyncIterator[Callable[[], str]]:
    """Names of databases that do not exist yet; databases and roles are gone after the test."""
    names: list[str] = []

    def name() -> str:
        names.append(f"m_{uuid4().hex}")
        return names[-1]

    yield name
    for database in names:
        await admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))
        for role in role_names(database).values():
            await admin.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))


Empty = Callable[[], Awaitable[Urls]]


@pytest.fixture
def empty(server: EmbeddedServer, fresh: Callable[[], str]) -> Empty:
    """Provisioned databases without our tables."""

    async def make() -> Urls:
        return await provision(server.admin_url(), fresh(), new_passwords())

    return make


def admin_of(server: EmbeddedServer, urls: Urls) -> str:
    return server.admin_url(str(psycopg.conninfo.conninfo_to_dict(urls.app)["dbname"]))


async def as_admin(server: EmbeddedServer, urls: Urls, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(admin_of(server, urls), autocommit=True) as conn:
        await conn.execute(statement)  # type: ignore[arg-type]


def setup_error(words: str) -> Any:
    return pytest.raises(SetupError, match=words, check=lambda error: bool(error.recovery))


async def test_from_empty_to_head_and_a_second_run_changes_nothing(empty: Empty) -> None:
    urls = await empty()
    assert await migrate(urls) == head_revision()
    [version] = await rows(urls, "SELECT version_num FROM memory.alembic_version")
    assert version == {"version_num": head_revision()}
    before = await rows(urls, SCHEMA)
    oids = await rows(urls, "SELECT oid FROM pg_class WHERE relnamespace = 'memory'::regnamespace ORDER BY 1")
    assert await migrate(urls) == head_revision()
    assert await rows(urls, SCHEMA) == before
    assert oids == await rows(urls, "SELECT oid FROM pg_class WHERE relnamespace = 'memory'::regnamespace ORDER BY 1")


async def test_the_revision_that_starts_compare_with_is_the_chains_head(empty: Empty, urls: Urls) -> None:
    assert head_revision() == HEAD
    assert await schema_is_current(urls)
    assert not await schema_is_current(await empty())


async def test_tasks_that_migrate_one_empty_database_at_once_take_turns(empty: Empty) -> None:
    urls = await empty()
    assert await asyncio.gather(*(migrate(urls) for _ in range(4))) == [head_revision()] * 4


async def test_processes_that_migrate_one_empty_database_at_once_take_turns(empty: Empty) -> None:
    urls = await empty()
    code = (
        "import asyncio, sys; from butler_memory.postgres.migrate import migrate;"
        "from butler_memory.postgres.provision import Urls; print(asyncio.run(migrate(Urls(*sys.argv[1:]))))"
    )
    command = [sys.executable, "-c", code, urls.owner, urls.app, urls.worker]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [await asyncio.to_thread(process.communicate) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert [out.strip() for out, _ in said] == [head_revision()] * 2


async def test_two_databases_of_one_cluster_are_made_at_once(empty: Empty) -> None:
    made = await asyncio.gather(empty(), empty())
    assert await asyncio.gather(*map(migrate, made)) == [head_revision()] * 2
    assert len({tuple(row.values()) for urls in made for row in await rows(urls, "SELECT current_database()")}) == 2


async def test_provisioning_one_database_eight_times_at_once_makes_it_once(
    server: EmbeddedServer, fresh: Callable[[], str]
) -> None:
    name, passwords = fresh(), new_passwords()
    made = await asyncio.gather(*(provision(server.admin_url(), name, passwords) for _ in range(8)))
    assert len(set(made)) == 1
    assert await migrate(made[0]) == head_revision()


async def test_provisioning_again_mends_a_forgotten_password(server: EmbeddedServer, fresh: Callable[[], str]) -> None:
    name = fresh()
    old = await provision(server.admin_url(), name, new_passwords())
    new = await provision(server.admin_url(), name, new_passwords())
    await migrate(new)
    with setup_error("refused the password"):
        await migrate(old)


async def test_a_database_newer_than_the_code_is_refused(urls: Urls, open_engine: OpenEngine) -> None:
    async with owner_connection(urls) as conn:
        await conn.execute("UPDATE memory.alembic_version SET version_num = 'memory_999'")
    with setup_error("newer than the code"):
        await migrate(urls)
    [version] = await rows(urls, "SELECT version_num FROM memory.alembic_version")
    assert version == {"version_num": "memory_999"}
    with setup_error("does not fit this version"):  # where the owner's URL is not known
        await open_engine()


async def test_a_database_without_our_tables_is_refused_where_the_owner_is_not_known(
    empty: Empty, tmp_path: Any
) -> None:
    urls = await empty()
    with setup_error("schema") as caught:
        async with bootstrap.open_engine(settings_for(urls, tmp_path), embedder=FakeEmbedder()):
            pass
    assert "db migrate" in caught.value.recovery


async def test_with_the_owners_url_the_engine_migrates_at_start(empty: Empty, tmp_path: Any) -> None:
    urls = await empty()
    settings = settings_for(urls, tmp_path, BUTLER_MEMORY_OWNER_URL=urls.owner)
    async with bootstrap.open_engine(settings, embedder=FakeEmbedder()) as engine:
        await engine.access.create_token("home", "health", Role.BUTLER)
    assert len(await rows(urls, "SELECT 1 FROM memory.tokens")) == 1


async def test_no_pgvector_in_the_database_is_said(server: EmbeddedServer, empty: Empty) -> None:
    urls = await empty()
    await as_admin(server, urls, "DROP EXTENSION vector")
    with setup_error("no pgvector"):
        await migrate(urls)
    with setup_error("no pgvector"):
        await Database.open(urls)


async def test_pgvector_in_another_schema_works_end_to_end(server: EmbeddedServer, empty: Empty, tmp_path: Any) -> None:
    urls = await empty()
    await as_admin(
        server,
        urls,
        'DROP EXTENSION vector; CREATE SCHEMA "My Extensions"; CREATE EXTENSION vector SCHEMA "My Extensions";'
        ' GRANT USAGE ON SCHEMA "My Extensions" TO PUBLIC',
    )
    settings = settings_for(urls, tmp_path, BUTLER_MEMORY_OWNER_URL=urls.owner)
    async with bootstrap.open_engine(settings, embedder=FakeEmbedder()) as engine:
        secret, _ = await engine.access.create_token("home", "health", Role.BUTLER)
        who = await engine.access.authenticate(secret)
        for content in ("chess", "chess with Anna"):
            await engine.memory.store_fact(who, {"subject": "user", "predicate": "hobby", "content": content})
        for content in ("Always ask first", "Never ask first"):
            await engine.memory.store_rule(who, {"content": content})
        await engine.memory.store_episode(who, {"content": "It rained"})
        assert (await engine.memory.stats(who, {}))["without_vector"] == 0
    stored = await rows(urls, "SELECT embedding IS NOT NULL AS has FROM memory.facts")
    assert stored == [{"has": True}] * 2


async def test_g1_a_role_that_row_level_security_does_not_bind_is_refused(server: EmbeddedServer, urls: Urls) -> None:
    superuser = admin_of(server, urls)
    for app, worker in ((superuser, urls.worker), (urls.owner, urls.worker), (urls.app, superuser)):
        with setup_error("bypasses row-level security"):
            await Database.open(Urls(urls.owner, app, worker))


async def test_g1_a_member_of_the_owner_is_refused(
    server: EmbeddedServer, urls: Urls, admin: psycopg.AsyncConnection[Any]
) -> None:
    owner = str(psycopg.conninfo.conninfo_to_dict(urls.owner)["user"])
    name = f"m_{uuid4().hex}"
    await admin.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'x'; GRANT {owner} TO {name}")  # type: ignore[arg-type]
    try:
        with setup_error("bypasses row-level security"):
            await Database.open(Urls(urls.owner, make_conninfo(urls.app, user=name, password="x"), urls.worker))
    finally:
        await admin.execute(f"DROP ROLE {name}")  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["owner", "app", "worker"])
async def test_a_wrong_password_is_said_for_each_role(urls: Urls, role: str) -> None:
    wrong = Urls(**{**vars(urls), role: make_conninfo(getattr(urls, role), password="wrong")})
    with setup_error("refused the password"):
        await (migrate(wrong) if role == "owner" else Database.open(wrong))


@pytest.mark.parametrize("role", ["owner", "app", "worker"])
async def test_a_database_that_does_not_exist_is_said_for_each_role(urls: Urls, role: str) -> None:
    wrong = Urls(**{**vars(urls), role: make_conninfo(getattr(urls, role), dbname="no_such")})
    with setup_error("does not exist"):
        await (migrate(wrong) if role == "owner" else Database.open(wrong))


async def test_a_role_that_may_not_connect_is_told_so(server: EmbeddedServer, empty: Empty) -> None:
    urls = await empty()
    database = psycopg.conninfo.conninfo_to_dict(urls.app)["dbname"]
    await as_admin(server, urls, f"REVOKE CONNECT ON DATABASE {database} FROM PUBLIC")
    with setup_error("does not let this role into"):
        await Database.open(urls)


@pytest.mark.parametrize("role", ["owner", "app", "worker"])
async def test_a_server_that_is_gone_is_said_for_each_role(urls: Urls, tmp_path: Any, role: str) -> None:
    wrong = Urls(**{**vars(urls), role: make_conninfo(getattr(urls, role), host=str(tmp_path))})
    with pytest.raises(Unavailable, match="does not answer"):
        await (migrate(wrong) if role == "owner" else Database.open(wrong))


async def test_an_owner_without_rights_is_told_so(urls: Urls, empty: Empty) -> None:
    stranger = await empty()
    foreign = make_conninfo(stranger.owner, dbname=psycopg.conninfo.conninfo_to_dict(urls.owner)["dbname"])
    with setup_error("may not create tables"):
        await migrate(Urls(foreign, urls.app, urls.worker))


async def test_an_owner_without_a_schema_is_told_so(server: EmbeddedServer, empty: Empty) -> None:
    urls = await empty()
    await as_admin(server, urls, "DROP SCHEMA memory")
    stranger = await empty()
    foreign = make_conninfo(stranger.owner, dbname=psycopg.conninfo.conninfo_to_dict(urls.owner)["dbname"])
    with setup_error("may not create tables"):
        await migrate(Urls(foreign, urls.app, urls.worker))


async def test_an_application_role_without_rights_is_told_so(urls: Urls, empty: Empty) -> None:
    stranger = await empty()
    database = psycopg.conninfo.conninfo_to_dict(urls.owner)["dbname"]
    for wrong in (
        Urls(urls.owner, make_conninfo(stranger.app, dbname=database), urls.worker),
        Urls(urls.owner, urls.app, make_conninfo(stranger.worker, dbname=database)),
    ):
        with setup_error("no rights"):
            await Database.open(wrong)


async def test_an_administrator_without_rights_is_told_so(
    server: EmbeddedServer, urls: Urls, fresh: Callable[[], str]
) -> None:
    with setup_error("may not create roles"):
        await provision(make_conninfo(urls.app, dbname="postgres"), fresh(), new_passwords())


@pytest.mark.parametrize("url", ["postgresql://[", "host=x nonsense", "mysql://x"])
async def test_a_malformed_url_is_said(urls: Urls, url: str) -> None:
    with setup_error("malformed"):
        await Database.open(Urls(urls.owner, url, urls.worker))


async def test_a_server_older_than_16_is_refused() -> None:
    for version, refused in ((150_008, True), (160_000, False), (180_004, False)):
        conn: Any = SimpleNamespace(info=SimpleNamespace(server_version=version))
        if refused:
            with setup_error("PostgreSQL 15 is too old"):
                await check_server(conn)
        else:
            await check_server(conn)


async def test_a_broken_chain_is_not_called_a_lack_of_rights(server: EmbeddedServer, empty: Empty) -> None:
    urls = await empty()
    async with owner_connection(urls) as conn:
        await conn.execute("CREATE TABLE memory.facts (x int)")
    with pytest.raises(SetupError) as caught:
        await migrate(urls)
    assert "may not" not in caught.value.message
    assert await rows(urls, "SELECT to_regclass('memory.episodes') AS made") == [{"made": None}], "all or nothing"


async def test_l5_an_older_database_learns_which_vectors_its_tenants_answer_from(
    empty: Empty, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = await empty()
    upgrade = migration.command.upgrade
    monkeypatch.setattr(migration.command, "upgrade", lambda config, _: upgrade(config, "memory_009"))
    await migrate(urls)
    monkeypatch.undo()
    async with owner_connection(urls) as conn:
        for tenant in ("with", "without"):
            await conn.execute(
                "INSERT INTO memory.tenants (tenant_id, digest_key, many_valued, created_at)"
                " VALUES (%s, decode(repeat('00', 16), 'hex'), true, now())",
                [tenant],
            )
        await conn.execute(
            "INSERT INTO memory.episodes (tenant_id, id, version, state, butler, content, content_status, embedding,"
            " embedding_version, importance, consolidation_status, consolidation_attempts, occurred_at, created_at,"
            " expires_at, source_kind, tags, metadata) VALUES ('with', gen_random_uuid(), 1, 'active', 'b', 'x',"
            " 'plain', '[1,0]', 'model@1', 5, 'consolidated', 0, now(), now(), now(), 'imported', '[]', '{}')"
        )
    await migrate(urls)
    kept = await rows(urls, "SELECT tenant_id, embedding_version FROM memory.tenants ORDER BY 1")
    assert [tuple(row.values()) for row in kept] == [("with", "model@1"), ("without", None)]
    records = await rows(
        urls, "SELECT tenant_id, version, model, dimensions, state FROM memory.embedding_versions ORDER BY 1"
    )
    assert [tuple(row.values()) for row in records] == [("with", "model@1", "model", 2, "current")]
