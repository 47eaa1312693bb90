"""`butler-memory rule ...`: a person's word over a rule."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from commands import NOBODY, Cli, kept_up


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    data_dir = tmp_path_factory.mktemp("rules") / "data"
    with kept_up(data_dir):
        yield Cli(data_dir)


def test_r1_a_person_promotes_disables_and_enables_a_rule(cli: Cli) -> None:
    rule = cli.ok("remember", "--rule", "Always send the report on Fridays")["id"]
    assert cli.ok("rule", "promote", rule)["state"] == "active"
    row = cli.ok("get", "rule", rule)["memory"]
    assert (row["maturity"], row["pinned"]) == ("established", True)
    said = cli("rule", "disable", rule)
    assert (said.code, "now disabled, established, pinned" in said.out) == (0, True)
    assert "now active" in cli("rule", "enable", rule).out
    assert "now active, candidate, pinned" in cli("rule", "demote", rule).out


def test_what_does_not_fit_says_so_by_its_exit_code(cli: Cli) -> None:
    rule = cli.ok("remember", "--rule", "Never answer on Sundays")["id"]
    undone = cli("rule", "undo", rule)
    assert (undone.code, "no warning" in undone.err) == (4, True)
    assert cli("rule", "promote", NOBODY).code == 3
    assert cli("rule", "promote", "x").code == 2
    assert cli("rule", "praise", rule).code == 2
