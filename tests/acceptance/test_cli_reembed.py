"""`butler-memory reembed` as people run it: missing vectors, another model's, a process that is at it already (L5)."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from butler_memory.cli import progress
from butler_memory.cli.progress import Bar
from butler_memory.embedding.minilm import MiniLmEmbedder
from butler_memory.postgres.server import EmbeddedServer
from commands import Cli, kept_up

pytestmark = pytest.mark.usefixtures("model_at_hand")

VERSION = MiniLmEmbedder.version


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with kept_up(tmp_path_factory.mktemp("reembed") / "data") as running:
        yield running


@pytest.fixture
def cli(server: EmbeddedServer) -> Cli:
    return Cli(server.data_dir)


def as_owner(cli: Cli, *statements: str) -> None:
    with psycopg.connect(cli.ok("db", "url", "--role", "owner")["url"], autocommit=True) as conn:
        for statement in statements:
            conn.execute(statement)  # type: ignore[arg-type]


def test_l5_reembed_makes_what_is_missing_and_what_another_model_made(cli: Cli) -> None:
    cli.ok("remember", "I", "like", "herons")
    assert cli.ok("reembed") == {"version": VERSION, "tenants": [done("home")]}
    as_owner(
        cli,
        "UPDATE memory.facts SET embedding_version = 'other@1'",
        "UPDATE memory.tenants SET embedding_version = 'other@1'",
    )
    looked = cli.ok("search", "herons", BUTLER_MEMORY_MODEL_PATH="/nowhere")
    assert looked["degraded"] == ["reembedding"]
    advice = {check["name"]: check for check in cli("doctor", "--json").json["checks"]}["vectors"]
    assert (advice["status"], "reembed --all" in advice["mend"]) == ("warn", True)
    said = cli("reembed", "--all")
    assert (said.code, said.out) == (0, "home: 1 vectors made; it answers from this model now\n")
    assert "home: 1 of 1 vectors" in said.err
    assert cli.ok("search", "herons")["degraded"] == []
    assert cli("reembed").out == "home: nothing to do\n"


def test_l5_reembed_says_when_it_cannot(cli: Cli) -> None:
    cli.ok("remember", "I", "like", "swans", BUTLER_MEMORY_MODEL_PATH="/nowhere")
    missing = cli("reembed", "--json", BUTLER_MEMORY_MODEL_PATH="/nowhere")
    assert (missing.code, missing.json["reason"]) == (5, "no_model")
    as_owner(cli, "UPDATE memory.shards SET lease_until = now() + interval '1 hour' WHERE kind = 'reembed'")
    busy = cli("reembed", "--json")
    assert (busy.code, busy.json["tenants"]) == (4, [done("home") | {"outcome": "busy"}])
    assert "another process is at it" in cli("reembed").out
    as_owner(cli, "UPDATE memory.shards SET lease_until = NULL WHERE kind = 'reembed'")
    assert cli.ok("reembed")["tenants"] == [done("home", embedded=1)]


def test_progress_is_a_line_now_and_then_where_there_is_no_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    with Bar("vectors") as bar:
        bar.begin("a\x1b[31m", 3)
        for _ in range(4):
            bar.advance(1)
    said = capsys.readouterr().err.splitlines()
    assert said == [f"a\\x1b[31m: {n} of {max(3, n)} vectors" for n in (1, 2, 3, 4)]


def done(tenant: str, embedded: int = 0) -> dict[str, object]:
    return {"tenant": tenant, "outcome": "done", "embedded": embedded, "swapped": False, "reason": ""}
