"""The command as people and scripts run it: a process, its output and its exit code."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psycopg
import pytest
import typer
from typer.main import get_command

from butler_memory.cli import app, database, screen, words
from butler_memory.domain.kinds import MemoryType
from butler_memory.errors import ButlerMemoryError
from butler_memory.postgres.server import EmbeddedServer
from commands import HOSTILE, NOBODY, Cli, Ended, assert_harmless, kept_up

pytestmark = pytest.mark.usefixtures("model_at_hand")

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with kept_up(tmp_path_factory.mktemp("cli") / "data") as running:
        yield running


@pytest.fixture(scope="module")
def cli(server: EmbeddedServer) -> Cli:
    return Cli(server.data_dir)


def test_a_fact_goes_through_its_whole_life(cli: Cli) -> None:
    written = cli.ok("remember", "I", "live", "in", "Zürich 🏔", "--predicate", "home", "--tags", "a,b")
    assert {"type", "id", "outcome", "state", "superseded_id", "links", "request_context"} <= set(written)
    assert (written["type"], written["outcome"], written["state"]) == ("fact", "created", "active")

    got = cli.ok("get", "fact", written["id"])["memory"]
    assert (got["content"], got["subject"], got["scope"]) == ("I live in Zürich 🏔", "user", "global")
    assert (got["source_kind"], got["tags"]) == ("user_stated", ["a", "b"])

    edited = cli.ok("edit", "facts", written["id"], "--content", "I live in Bern", "--tags", "")
    assert edited["superseded_id"] == written["id"]

    assert cli.ok("forget", "fact", edited["id"])["state"] == "retracted"
    assert edited["id"] not in str(cli.ok("list"))
    retracted = cli.ok("list", "facts", "--state", "forgotten")["facts"]  # what older clients call it (F2)
    assert [fact["id"] for fact in retracted] == [edited["id"]]
    assert cli.ok("restore", "fact", edited["id"])["state"] == "active"
    listed = cli.ok("list", "facts", "--state", "active")["facts"]
    assert [(fact["id"], fact["tags"]) for fact in listed if fact["predicate"] == "home"] == [(edited["id"], [])]


def test_rules_and_episodes_are_remembered_and_counted(cli: Cli) -> None:
    rule = cli.ok("remember", "--rule", "Never call before nine", "--importance", "8")
    ended = cli("remember", "--episode", "--scope", "music", "--json", "-", stdin=b"We spoke\n")
    counts = cli.ok("stats", "--scope", "music")  # and global, where the rule is
    assert rule["type"] == "rule"
    assert ended.json["type"] == "episode"
    assert counts["rules"]["by_state"] == {"active": 1}
    assert counts["episodes"]["by_state"] == {"active": 1}
    assert counts["without_vector"] == 0, "the model was at hand, so every row has its vector"


@pytest.fixture(scope="module")
def hostile(cli: Cli) -> str:
    written = cli.ok("remember", HOSTILE, "--subject", "[bold]x[/bold]", "--predicate", "note")
    return str(written["id"])


def test_stored_text_cannot_steer_the_terminal(cli: Cli, hostile: str) -> None:
    colours = cli("list", "facts", FORCE_COLOR="1")
    plain = cli("get", "fact", hostile, NO_COLOR="1")
    for shown in (colours, plain):
        assert "[red]boo[/red]" in shown.out
        assert ":smile:" in shown.out
        assert "\\x1b[31mRED" in shown.out
        assert_harmless(shown.out)
    assert "\x1b" in colours.out
    assert "\x1b" not in plain.out
    assert cli.ok("get", "fact", hostile)["memory"]["content"] == HOSTILE


def test_output_survives_a_terminal_without_unicode(cli: Cli, hostile: str) -> None:
    plain = cli("list", "facts", PYTHONIOENCODING="ascii")
    assert plain.code == 0
    assert plain.out.isascii()
    assert hostile in plain.out


USAGE: list[tuple[str, ...]] = [
    ("get", "thing", NOBODY),
    ("get", "fact", "not-a-uuid"),
    ("list", "episodes", "--state", "fading"),
    ("list", "--state", "nonsense"),
    ("remember",),
    ("remember", "x", "--rule", "--episode"),
    ("edit", "episode", NOBODY, "--content", "x"),
    ("predicates", "set", "hobby"),
    ("no-such-command",),
]


@pytest.mark.parametrize("arguments", USAGE, ids=" ".join)
def test_bad_words_are_usage_errors(cli: Cli, arguments: tuple[str, ...]) -> None:
    ended = cli(*arguments, "--json")
    assert ended.code == app.USAGE
    assert ended.json["error"] == "invalid_input"
    assert ended.json["message"]


def test_errors_go_to_stderr_as_message_and_recovery(cli: Cli) -> None:
    ended = cli("get", "fact", NOBODY)
    assert (ended.code, ended.out) == (app.NOT_FOUND, "")
    assert "There is no fact with this id." in ended.err
    assert "Check type and id" in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("stats", "--tenant", "nobody"), app.NOT_FOUND, "not_found"),
        (("token", "revoke", NOBODY), app.NOT_FOUND, "not_found"),
    ],
)
def test_the_engines_errors_have_their_shape_and_exit_code(
    cli: Cli, arguments: tuple[str, ...], code: int, error: str
) -> None:
    ended = cli(*arguments, "--json")
    assert (ended.code, ended.json["error"]) == (code, error)
    assert set(ended.json) >= {"error", "reason", "message", "recovery", "field"}


def test_g2_a_token_is_made_shown_once_listed_and_revoked(cli: Cli) -> None:
    arguments = ("--tenant", "family", "--butler", "health", "--role", "reader", "--label", "[b]tab[/b]")
    made = cli.ok("token", "create", *arguments, "--maintenance")
    assert made["token"].startswith("bm_")
    assert (made["tenant"], made["butler"], made["role"]) == ("family", "health", "reader")
    assert made["trigger_class"] == "maintenance"

    human = cli("token", "list", "--tenant", "family")
    assert made["id"] in human.out
    assert "[b]tab[/b]" in human.out
    assert made["token"] not in human.out

    assert cli.ok("token", "revoke", made["id"]) == {"id": made["id"], "revoked": True}
    [listed] = cli.ok("token", "list", "--tenant", "family")["tokens"]
    assert listed["revoked_at"] is not None


def test_f4_many_to_one_is_refused_with_the_facts_in_the_way(cli: Cli) -> None:
    ids = {cli.ok("remember", text, "--predicate", "hobby")["id"] for text in ("chess", "rowing")}
    refused = cli("predicates", "set", "hobbies", "--cardinality", "one", "--json")
    assert refused.code == app.CONFLICT
    assert set(refused.json["data"]["fact_ids"]) == ids

    assert cli.ok("forget", "fact", min(ids))["state"] == "retracted"
    changed = cli.ok("predicates", "set", "hobbies", "--cardinality", "one", "--alias", "Past Time")
    assert changed["predicate"]["name"] == "hobby"
    assert changed["predicate"]["permanence"] == "standard"
    [known] = [entry for entry in cli.ok("predicates", "list")["predicates"] if entry["name"] == "hobby"]
    assert (known["cardinality"], known["aliases"], known["builtin"]) == ("one", ["past_time"], False)


def test_e5_a_maintenance_environment_writes_no_episode(cli: Cli) -> None:
    refused = cli("remember", "--episode", "swept", "--json", BUTLER_MEMORY_TRIGGER_CLASS="maintenance")
    assert refused.code != 0
    assert refused.json["reason"] == "maintenance_session"


def test_the_printed_url_works_and_sees_nothing_without_a_tenant(cli: Cli, hostile: str) -> None:
    shown = cli("db", "url")
    url = shown.out.strip()
    assert shown.code == 0
    with psycopg.connect(url) as conn:
        role = conn.execute("SELECT rolsuper OR rolbypassrls FROM pg_roles WHERE rolname = current_user").fetchone()
        assert role == (False,)
        assert conn.execute("SELECT count(*) FROM memory.facts").fetchone() == (0,)
        conn.execute("SELECT set_config('memory.tenant', 'home', true)")
        assert conn.execute("SELECT count(*) FROM memory.facts WHERE id = %s", [hostile]).fetchone() == (1,)


def test_db_provision_prints_settings_that_work(cli: Cli, server: EmbeddedServer) -> None:
    lines = cli.ok("db", "provision", "--admin-url", server.admin_url(), "--database", "second")
    assert sorted(lines) == [f"BUTLER_MEMORY_{name}_URL" for name in ("DATABASE", "OWNER", "WORKER")]
    assert cli.ok("db", "migrate", **lines)["revision"]
    assert cli.ok("list", "facts", **lines) == {"facts": []}


def test_doctor_finds_a_sound_installation_sound(cli: Cli) -> None:
    cli.ok("token", "create", "--tenant", "home", "--butler", "health", "--role", "butler")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    found = cli.ok("doctor", BUTLER_MEMORY_PORT=port)
    names = {check["name"] for check in found["checks"]}
    assert found["ok"] is True
    assert {"python", "settings", "data dir", "port", "server", "pgvector", "roles", "schema"} <= names
    assert {"tokens", "vectors", "model", "clock"} <= names
    assert {check["status"] for check in found["checks"]} == {"ok"}, found


def failed(ended: Ended) -> dict[str, dict[str, str]]:
    assert ended.code == app.FAILURE
    assert ended.json["ok"] is False
    return {check["name"]: check for check in ended.json["checks"] if check["status"] == "fail"}


def test_doctor_names_the_broken_setting_and_what_would_be_right(cli: Cli, tmp_path: Path) -> None:
    config = tmp_path / "butler.toml"
    config.write_text("[butler.memory.episodes]\ndefault_ttl_dayz = 3\n")
    check = failed(cli("doctor", "--config", str(config), "--json"))["settings"]
    assert str(config) in check["message"]
    assert "default_ttl_days" in check["mend"]


def test_doctor_says_who_reads_and_what_that_needs(cli: Cli, tmp_path: Path) -> None:
    def reader(**given: str) -> tuple[str, str]:
        named = {f"BUTLER_MEMORY_CONSOLIDATION__{name}": value for name, value in given.items()}
        ended = cli("doctor", "--json", PATH=str(tmp_path), ANTHROPIC_API_KEY="", **named)
        [check] = [check for check in ended.json["checks"] if check["name"] == "reader"]
        return check["status"], check["message"] + check["mend"]

    assert reader() == ("ok", "episodes are read without a language model")
    status, said = reader(BACKEND="anthropic")
    assert (status, "ANTHROPIC_API_KEY" in said) == ("fail", True)
    status, said = reader(BACKEND="claude-code")
    assert (status, "Install Claude Code" in said) == ("fail", True)
    assert reader(BACKEND="openai", MODEL="m", BASE_URL="http://localhost:1/v1")[0] == "ok"


def test_doctor_says_that_the_port_is_taken_and_the_server_gone(cli: Cli) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:  # answers, but is not ours
        Thread(target=other.serve_forever, daemon=True).start()
        taken = str(other.server_port)
        nowhere = "postgresql://x:y@127.0.0.1:1/z"
        checks = failed(cli("doctor", "--json", BUTLER_MEMORY_PORT=taken, BUTLER_MEMORY_DATABASE_URL=nowhere))
        other.shutdown()
    assert taken in checks["port"]["message"]
    assert "does not answer" in checks["database"]["message"]


def test_an_unknown_environment_key_stops_every_command(cli: Cli) -> None:
    ended = cli("list", "--json", BUTLER_MEMORY_EPISODES__DEFAULT_TTL_DAYZ="3")
    assert (ended.code, ended.json["error"]) == (app.UNAVAILABLE, "setup")
    assert "default_ttl_days" in ended.json["recovery"].lower()


def test_bytes_that_are_no_text_are_refused(cli: Cli) -> None:
    assert cli("remember", os.fsdecode(b"\xff\xfe")).code == app.USAGE
    assert cli("remember", "-", "--json", stdin=b"\xff\xfe").json["error"] == "invalid_input"


def test_help_stays_light() -> None:
    """Time differs between machines; what is imported does not."""
    heavy = "alembic sqlalchemy mcp onnxruntime numpy pydantic psycopg asyncio markdown_it".split()
    script = (
        f"import sys; import butler_memory.cli.app as a; a.build(); print([m for m in {heavy} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"


def test_every_command_option_and_exit_code_is_documented() -> None:
    text = DOCS.read_text()
    missing = [name for name in _public_names(get_command(app.build()), "butler-memory") if name not in text]
    assert missing == []
    for code in (app.OK, app.FAILURE, app.USAGE, app.NOT_FOUND, app.CONFLICT, app.UNAVAILABLE, 130):
        assert f"| {code} |" in text


def _public_names(command: Any, path: str) -> Iterator[str]:
    for name, sub in getattr(command, "commands", {}).items():
        yield from _public_names(sub, f"{path} {name}")
    if not hasattr(command, "commands"):
        yield f"`{path}"
    for parameter in command.params:
        yield from (option for option in parameter.opts if option.startswith("--") and option != "--help")


def test_every_error_code_has_a_deliberate_exit_code() -> None:
    assert {error.code for error in _subclasses(ButlerMemoryError)} - set(app.EXIT_CODES) == {
        "unauthenticated", "forbidden", "integrity",
    }  # fmt: skip


def _subclasses(kind: type[ButlerMemoryError]) -> Iterator[type[ButlerMemoryError]]:
    for sub in kind.__subclasses__():
        yield sub
        yield from _subclasses(sub)


@pytest.mark.parametrize(
    ("conninfo", "url"),
    [
        ("host=/a/b dbname=d user=u password='p@/ %'", "postgresql://u:p%40%2F%20%25@/d?host=%2Fa%2Fb"),
        ("host=db.example port=6432 dbname=d user=u", "postgresql://u@db.example:6432/d"),
        ("host=::1 dbname=d user=u sslmode=require", "postgresql://u@/d?host=%3A%3A1&sslmode=require"),
    ],
)
def test_a_connection_string_becomes_a_url_of_the_same_meaning(conninfo: str, url: str) -> None:
    parsed = psycopg.conninfo.conninfo_to_dict
    assert database.as_url(conninfo) == url
    assert parsed(url) == parsed(conninfo)


def test_control_characters_are_spelled_out_and_letters_are_not() -> None:
    assert screen.neutral("a\x00\x9b\r\u2066b") == "a\\x00\\x9b\\x0d\\u2066b"
    assert screen.neutral("zwj 👩‍🚀 é\n\tمرحبا") == "zwj 👩‍🚀 é\n\tمرحبا"


@pytest.mark.parametrize(("word", "kind"), [("facts", "fact"), ("Rule", "rule"), ("episodes", "episode")])
def test_a_type_may_be_singular_or_plural(word: str, kind: str) -> None:
    assert words.memory_type(word) is MemoryType(kind)


@pytest.mark.parametrize("parse", [words.memory_type, words.state])
def test_an_unknown_word_is_refused_with_the_known_ones(parse: Callable[[str], object]) -> None:
    with pytest.raises(typer.BadParameter, match="must be"):
        parse("nonsense")
