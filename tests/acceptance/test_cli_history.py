"""`butler-memory history`, `activity` and `replay`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from commands import HOSTILE, NOBODY, Cli, assert_harmless, kept_up


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    data_dir = tmp_path_factory.mktemp("history") / "data"
    with kept_up(data_dir):
        yield Cli(data_dir)


def test_l4_a_life_is_told_and_l3_verified(cli: Cli) -> None:
    first = cli.ok("remember", "Acme", "--predicate", "employer")["id"]
    cli.ok("edit", "fact", first, "--importance", "8")
    second = cli.ok("remember", "Globex", "--predicate", "employer")["id"]
    told = cli("history", "fact", first)
    assert told.code == 0
    assert "stored by admin cli as the user said it: User's employer is Acme" in told.out
    assert "changed by admin cli: importance from 5 to 8" in told.out
    assert f"superseded by fact {second} (User's employer is Globex)" in told.out
    assert f"← supersedes fact {second}" in told.out
    shape = cli.ok("history", "facts", second)
    assert [chapter["event_type"] for chapter in shape["history"]] == ["created"]
    assert shape["history"][0]["told"].endswith(f"in place of fact {first} (User's employer is Acme)")

    counted = cli("replay")
    assert (counted.code, "facts: 2 present" in counted.out) == (0, True)
    assert "The tables say the same." in cli("replay", "--verify").out
    assert cli.ok("replay", "--verify", "--all")["tenants"] == cli.ok("replay", "--verify")["tenants"]
    with owner(cli) as conn:
        conn.execute("UPDATE memory.facts SET importance = 3 WHERE id = %s", [first])
    found = cli("replay", "--verify")
    assert (found.code, first in found.out, "importance" in found.out, "1 difference." in found.out) == (1, *[True] * 3)
    as_json = cli("replay", "--verify", "--json")
    assert (as_json.code, as_json.json["ok"]) == (1, False)
    assert as_json.json["tenants"][0]["listed"] == [
        {"type": "fact", "id": first, "what": "column", "detail": "importance"}
    ]
    with owner(cli) as conn:
        conn.execute("UPDATE memory.facts SET importance = 8 WHERE id = %s", [first])
    assert cli("replay", "--verify").code == 0


def owner(cli: Cli) -> psycopg.Connection[Any]:
    url = cli.ok("db", "url", "--role", "owner")["url"]
    return psycopg.connect(url, autocommit=True)


def test_t1_activity_is_shown_from_where_one_was(cli: Cli) -> None:
    before = cli.ok("activity")["next"]
    cli.ok("remember", "peanuts", "--predicate", "allergy")
    said = cli("activity", "--since", before)
    assert said.code == 0
    assert "fact stored: User is allergic to peanuts" in said.out
    assert "Nothing happened." in cli("activity", "--since", cli.ok("activity")["next"]).out


def test_t1_followed_activity_gives_an_event_a_line_until_ctrl_c(cli: Cli) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "butler_memory.cli", "activity", "--follow", "--json", "--since", "0"],
        env={**os.environ, "BUTLER_MEMORY_DATA_DIR": str(cli.data_dir)},
        cwd=cli.data_dir.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as following:
        rule = cli.ok("remember", "--rule", "Always answer in one line")["id"]
        assert following.stdout is not None
        got: list[dict[str, Any]] = []
        while not got or got[-1]["entity_id"] != rule:
            got.append(json.loads(following.stdout.readline()))
        following.send_signal(signal.SIGINT)
        _, said = following.communicate(timeout=20)
    assert (following.returncode, "Traceback" in said) == (0, False)
    assert [event["id"] for event in got] == sorted({event["id"] for event in got})


def test_hostile_text_steers_no_terminal(cli: Cli) -> None:
    written = cli.ok("remember", HOSTILE)["id"]
    for shown in (cli("history", "fact", written), cli("activity")):
        assert (shown.code, "[red]boo[/red]" in shown.out) == (0, True)
        assert_harmless(shown.out)


def test_what_does_not_fit_says_so_by_its_exit_code(cli: Cli) -> None:
    assert cli("history", "fact", NOBODY).code == 3
    assert cli("history", "fact", "x").code == 2
    assert cli("activity", "--since", "yesterday").code == 2
    assert cli("activity", "--limit", "1000").code == 2
    assert cli("replay", "--all", "--tenant", "other").code == 2
    assert cli("replay", "--tenant", "nobody").code == 3
