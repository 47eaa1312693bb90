"""The memory's own jobs, and what waits for a person, on the command line (J1, J3)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from butler_memory.cli import jobs
from commands import Cli, kept_up

LATER = {"BUTLER_MEMORY_CLOCK_OFFSET": "+2000d"}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory, model_at_hand: Path) -> Iterator[Cli]:
    data_dir = tmp_path_factory.mktemp("jobs") / "data"
    with kept_up(data_dir):
        yield Cli(data_dir)


def test_each_job_is_listed_runs_when_told_and_leaves_its_history(cli: Cli) -> None:
    cli.ok("remember", "It rained", "--episode")
    listed = cli.ok("job", "list")["jobs"]
    assert set(listed) == {"consolidate", "decay_sweep", "episode_cleanup", "reembed"}
    assert all(job["next_run_at"] and not job["late"] for job in listed.values())
    [ran] = cli.ok("job", "run", "decay_sweep")["runs"]
    assert (ran["tenant"], ran["outcome"]) == ("home", "ok")
    assert cli.ok("job", "list")["jobs"]["decay_sweep"]["last_ok_at"]
    history = cli.ok("job", "history", "decay_sweep")["runs"]
    assert [(run["job"], run["outcome"]) for run in history] == [("decay_sweep", "ok")]
    assert "decay_sweep" in cli("job", "history").out
    assert "home" in cli("job", "run", "episode_cleanup", "--all").out


def test_s12_what_a_job_learns_is_found_by_meaning_at_once(cli: Cli) -> None:
    cli.ok("remember", "I'm allergic to penicillin.", "--episode")
    cli.ok("job", "run", "consolidate")
    assert cli.ok("stats")["without_vector"] == 0
    found = cli.ok("search", "which drugs are dangerous", "--mode", "semantic", "--type", "fact")["results"]
    assert [fact["content"] for fact in found] == ["penicillin"]


def test_an_unknown_job_is_refused_with_the_known_ones(cli: Cli) -> None:
    ended = cli("job", "run", "dream")
    assert ended.code == 2
    assert "decay_sweep" in ended.err


def test_j1_a_job_that_does_not_run_is_named_by_doctor_stats_and_list(cli: Cli) -> None:
    cli.ok("job", "run", "decay_sweep")
    assert cli.ok("stats", **LATER)["jobs"]["decay_sweep"]["late"] is True
    assert "late: " in cli("stats", **LATER).out
    assert "late" in cli("job", "list", **LATER).out
    [finding] = [check for check in cli("doctor", "--json", **LATER).json["checks"] if check["name"] == "jobs"]
    assert finding["status"] == "warn"
    assert "decay_sweep (1)" in finding["message"]


def test_j1_a_job_that_hangs_is_late_and_not_simply_running() -> None:
    hanging = {"running": True, "late": True, "last_run": None}
    assert jobs._condition(hanging).plain == "late, running"
    assert jobs._condition(hanging | {"late": False}).plain == "running"


def test_e3_doctor_and_stats_say_that_episodes_are_kept_past_their_time(cli: Cli) -> None:
    cli.ok("remember", "It snowed", "--episode")
    checks = {check["name"]: check for check in cli.ok("doctor", **LATER)["checks"]}
    assert checks["episodes"]["status"] == "warn"
    assert "kept past their time" in cli("stats", **LATER).out
    assert "consolidation could not run for" in cli("stats", **LATER).out
    cli.ok("job", "run", "consolidate", **LATER)
    checks = {check["name"]: check for check in cli.ok("doctor", **LATER)["checks"]}
    assert checks["episodes"]["status"] == "ok"


def test_j3_what_is_important_and_faded_is_listed_until_a_person_confirms_it(cli: Cli) -> None:
    assert "Nothing waits for you." in cli("review", "list").out
    fact = cli.ok("remember", "penicillin", "--predicate", "allergy", "--permanence", "standard")
    assert [each["id"] for each in cli.ok("review", "list", **LATER)["unconfirmed"]] == [fact["id"]]
    assert "allergic to penicillin" in cli("review", "list", **LATER).out
    assert cli.ok("confirm", "fact", fact["id"], **LATER)["outcome"] == "confirmed"
    assert cli.ok("review", "list", **LATER) == {"reviews": [], "unconfirmed": []}


def test_worker_once_runs_what_is_due(cli: Cli) -> None:
    assert "ok" in cli.ok("worker", "--once", BUTLER_MEMORY_CLOCK_OFFSET="+2100d")["runs"]


def test_worker_once_says_by_its_exit_code_that_a_job_failed(cli: Cli) -> None:
    cli.ok("remember", "It hailed", "--episode")
    away = {"BUTLER_MEMORY_CONSOLIDATION__BACKEND": "openai", "BUTLER_MEMORY_CLOCK_OFFSET": "+2200d"}
    ended = cli("worker", "--once", **away)
    assert (ended.code, "failed" in ended.out, "job history" in ended.out) == (1, True, True)


def test_appendix_c_a_memory_that_is_switched_off_runs_no_jobs(cli: Cli) -> None:
    off = {"BUTLER_MEMORY_ENABLED": "false", "BUTLER_MEMORY_CLOCK_OFFSET": "+2300d"}
    before = cli.ok("job", "history")
    for words in (("job", "run", "decay_sweep"), ("worker", "--once")):
        ended = cli(*words, **off)
        assert (ended.code, "switched off" in ended.err) == (5, True)
    assert cli.ok("job", "history") == before


@pytest.mark.parametrize("words", [("run", "decay_sweep"), ("list",), ("history",)])
def test_an_unknown_tenant_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    ended = cli("job", *words, "--tenant", "nobody")
    assert (ended.code, "no tenant" in ended.err) == (3, True)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_runs_alone_and_stops_when_told(cli: Cli, how: signal.Signals) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BUTLER_MEMORY_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "butler_memory.cli", "worker"],
        env={**kept, "BUTLER_MEMORY_DATA_DIR": str(cli.data_dir), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout
    assert "Running the jobs" in process.stdout.readline()
    process.send_signal(how)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, "Traceback" in said) == (0, False)


def test_f5_a_contested_claim_is_listed_shown_and_decided(cli: Cli) -> None:
    cli.ok("remember", "Paris", "--predicate", "home")
    cli.ok("remember", "--episode", "Summary: User lives in London.")
    assert "?" in cli("consolidate").out
    [review] = cli.ok("review", "list")["reviews"]
    listed, shown = cli("review", "list").out, cli("review", "show", review["id"]).out
    for said in (listed, shown):
        assert "inferred: User's home is London" in said
        assert "you said: User's home is Paris" in said
    assert cli.ok("review", "show", review["id"])["claim"]["line"] == "User's home is London"
    assert cli.ok("review", "reject", review["id"])["state"] == "rejected"
    assert cli.ok("review", "list")["reviews"] == []
    assert cli("review", "show", review["id"]).code == 4
