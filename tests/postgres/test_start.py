"""What is checked when an engine is opened or a database is made, and who a process is."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from butler_memory import bootstrap, serve
from butler_memory.cli import memories
from butler_memory.domain.kinds import Role, TriggerClass
from butler_memory.errors import SetupError
from butler_memory.mcp_server.http import allowed_hosts, in_url
from butler_memory.postgres.provision import ROLES, new_passwords, provision, role_names
from butler_memory.postgres.server import EmbeddedServer
from butler_memory.settings import load
from caller import Caller, forbidden
from conftest import OpenEngine

# --- appendix C ---------------------------------------------------------------------------------------------


async def test_appendix_c_a_text_configuration_that_the_database_does_not_know_is_refused(
    open_engine: OpenEngine,
) -> None:
    with pytest.raises(SetupError, match="klingon") as caught:
        await open_engine(BUTLER_MEMORY_RETRIEVAL__TEXT_CONFIG="klingon")
    assert "english" in caught.value.recovery


@pytest.mark.parametrize("name", ["Bad Name!", "global", "Health", ""])
def test_appendix_c_weights_are_for_something_that_can_be_a_butler(tmp_path: Path, name: str) -> None:
    file = tmp_path / "butler.toml"
    file.write_text(f'[butler.memory.butlers."{name}"]\n')
    with pytest.raises(SetupError, match="must be a butler's name"):
        load(file, {})


# --- G2 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "more", "allowed"),
    [
        ("127.0.0.1", "", {"127.0.0.1", "localhost", "[::1]"}),
        ("127.0.0.2", "", {"127.0.0.2", "127.0.0.1", "localhost", "[::1]"}),
        ("[0:0:0:0:0:0:0:1]", "", {"127.0.0.1", "localhost", "[::1]"}),
        ("192.168.0.7", "memory.lan", {"192.168.0.7", "memory.lan"}),
        ("::", "[fd00::7], memory.lan", {"[fd00::7]", "memory.lan", "127.0.0.1", "localhost", "[::1]"}),
    ],
)
def test_g2_hosts_are_the_bound_address_the_named_ones_and_no_other(host: str, more: str, allowed: set[str]) -> None:
    env = load(environ={"BUTLER_MEMORY_HOST": host, "BUTLER_MEMORY_ALLOWED_HOSTS": more}).env
    assert set(allowed_hosts(env)) == allowed


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0:0::0"])
def test_g2_every_address_needs_names(host: str) -> None:
    with pytest.raises(SetupError, check=lambda error: "BUTLER_MEMORY_ALLOWED_HOSTS" in error.recovery):
        allowed_hosts(load(environ={"BUTLER_MEMORY_HOST": host}).env)


@pytest.mark.parametrize("names", ["http://memory.lan", "memory.lan:8150", "a b", "fd00::7", "*"])
def test_g2_an_allowed_host_is_a_name_or_an_address(names: str) -> None:
    with pytest.raises(SetupError, match=r"ALLOWED_HOSTS.*without scheme and port"):
        load(environ={"BUTLER_MEMORY_ALLOWED_HOSTS": names})


def test_g2_an_ipv6_address_is_bracketed_in_an_url() -> None:
    assert [in_url(host) for host in ("::1", "0:0::1", "127.0.0.1", "memory.lan")] == [
        "[::1]", "[::1]", "127.0.0.1", "memory.lan",
    ]  # fmt: skip


# --- E5 -----------------------------------------------------------------------------------------------------


async def test_e5_a_maintenance_process_writes_no_episode_with_a_token_either(open_engine: OpenEngine) -> None:
    access = (await open_engine()).access
    for of_token in TriggerClass:
        secret, _ = await access.create_token("home", "health", Role.BUTLER, trigger_class=of_token)
        for of_process in TriggerClass:
            engine = await open_engine(BUTLER_MEMORY_TOKEN=secret, BUTLER_MEMORY_TRIGGER_CLASS=of_process)
            ask = Caller(engine.memory, await serve._stdio_principal(engine))
            if TriggerClass.MAINTENANCE in (of_token, of_process):
                with forbidden("maintenance_session"):
                    await ask.episode("Swept the memory")
            else:
                await ask.episode("It rained")


# --- an own PostgreSQL --------------------------------------------------------------------------------------


@pytest.fixture
async def limited(server: EmbeddedServer) -> AsyncIterator[tuple[str, str]]:
    """An administrator who may create roles and databases and is no superuser; and the name of a new database."""
    name, password = f"limited_{secrets.token_hex(4)}", secrets.token_hex(8)
    database = f"own_{secrets.token_hex(4)}"
    async with await psycopg.AsyncConnection.connect(server.admin_url(), autocommit=True) as conn:
        make = sql.SQL("CREATE ROLE {} LOGIN CREATEROLE CREATEDB PASSWORD {}")
        await conn.execute(make.format(sql.Identifier(name), sql.Literal(password)))
        yield make_conninfo(server.admin_url(), user=name, password=password), database
        await conn.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))
        for role in (*role_names(database).values(), name):
            await conn.execute(sql.SQL("DROP ROLE IF EXISTS {}").format(sql.Identifier(role)))


async def test_provisioning_without_a_superuser_says_what_one_must_do_and_then_works(
    server: EmbeddedServer, limited: tuple[str, str]
) -> None:
    admin, database = limited
    with pytest.raises(SetupError, match="pgvector") as caught:
        await provision(admin, database, new_passwords())
    assert "CREATE EXTENSION vector" in caught.value.recovery
    assert database in caught.value.recovery
    async with await psycopg.AsyncConnection.connect(server.admin_url(database), autocommit=True) as conn:
        await conn.execute("CREATE EXTENSION vector")
    made = await provision(admin, database, new_passwords())
    async with await psycopg.AsyncConnection.connect(made.owner) as conn:
        found = await conn.execute("SELECT nspowner::regrole::text FROM pg_namespace WHERE nspname = 'memory'")
        assert await found.fetchone() == (f"{database}_owner",)


# --- files --------------------------------------------------------------------------------------------------


def test_a_draft_that_an_earlier_process_of_the_same_id_left_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / f"roles.{os.getpid()}.new").touch()
    kept = bootstrap._kept_passwords(tmp_path)
    assert sorted(kept) == sorted(ROLES)
    assert bootstrap._kept_passwords(tmp_path) == kept


@pytest.mark.parametrize("damage", [b"", b"\xff\xfe", b"[]", b'"x"', b'{"owner": "x"}'])
def test_a_damaged_file_of_passwords_is_a_setup_error(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "roles.json").write_bytes(damage)
    with pytest.raises(SetupError, match="damaged"):
        bootstrap._kept_passwords(tmp_path)


def test_t4_input_that_is_too_long_is_not_called_bad_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reading stops inside a character, which is no fault of what was given."""
    for given in ("€" * 700_000, "€", "x" * memories.LONGEST_INPUT + "€"):
        monkeypatch.setattr(memories.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(given.encode())))
        read = memories._content(["-"])
        assert given.startswith(read)
        assert len(read.encode()) > min(len(given.encode()), memories.LONGEST_INPUT) - 4
    monkeypatch.setattr(memories.sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"cut \xe2\x82")))
    assert not memories._content(["-"]).isascii()  # what really ends inside a character is refused later
