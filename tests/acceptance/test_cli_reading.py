"""search, recall, context and served, as a person at a terminal or a script behind a pipe sees them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from butler_memory.cli import app
from commands import HOSTILE, NOBODY, Cli, assert_harmless, kept_up

pytestmark = pytest.mark.usefixtures("model_at_hand")

README = Path(__file__).parents[2] / "README.md"
RESULT = {
    "type", "id", "content", "subject", "predicate", "scope", "state", "source_kind", "contested",
    "effective_confidence", "created_at", "last_confirmed_at", "tags", "metadata", "score", "score_kind",
}  # fmt: skip
META = {"status", "degraded", "tokens", "tokenizer", "served_id"}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with kept_up(tmp_path_factory.mktemp("reading") / "data") as running:
        yield Cli(running.data_dir)


@pytest.fixture(scope="module")
def known(cli: Cli) -> dict[str, str]:
    """What the tenant 'home' remembers, by a word for each."""

    def remember(*words: str) -> str:
        return str(cli.ok("remember", *words)["id"])

    return {
        "peanuts": remember("peanuts", "--predicate", "allergy", "--importance", "9", "--tags", "food,health"),
        "bern": remember("Bern", "--predicate", "home"),
        "zurich": remember("Zürich", "--predicate", "home", "--scope", "travel"),
        "rule": remember("Always confirm before sending messages", "--rule"),
        "episode": remember("We booked a table at the Kronenhalle for Friday", "--episode", "--scope", "travel"),
        "hostile": remember(HOSTILE, "--subject", "[bold]x[/bold]"),
    }


def ids(found: dict[str, Any]) -> list[str]:
    return [result["id"] for result in found["results"]]


def new_tenant(cli: Cli, name: str) -> tuple[str, str]:
    cli.ok("token", "create", "--tenant", name, "--butler", "desk", "--role", "admin")
    return ("--tenant", name)


# --- search and recall ----------------------------------------------------------------------------------------------


def test_s4_a_person_searches_the_whole_tenant_unless_a_scope_is_named(cli: Cli, known: dict[str, str]) -> None:
    everything = cli.ok("search", "home")
    assert {known["bern"], known["zurich"]} <= set(ids(everything))
    assert known["zurich"] not in ids(cli.ok("search", "home", "--scope", "global"))
    assert {"results", "hidden", "status", "degraded", "request_context"} == set(everything)
    assert all(set(result) >= RESULT for result in everything["results"])


def test_s4_filters_narrow_a_search(cli: Cli, known: dict[str, str]) -> None:
    assert ids(cli.ok("search", "--type", "rules", "--type", "episode")) == [known["episode"], known["rule"]]
    assert ids(cli.ok("search", "--predicate", "allergies", "--subject", "me")) == [known["peanuts"]]
    assert ids(cli.ok("search", "--tags", "food, health")) == [known["peanuts"]]
    assert ids(cli.ok("search", "food", "--until", "2020-01-01T00:00:00Z")) == []
    assert len(ids(cli.ok("search", "a", "table", "--since", "2020-01-01T00:00:00+02:00", "--limit", "2"))) == 2


def test_s4_without_a_query_the_newest_come_first_and_have_no_score(cli: Cli, known: dict[str, str]) -> None:
    assert ids(cli.ok("search")) == list(reversed(known.values()))
    assert "Score" not in cli("search").out


def test_s8_explain_says_why_for_machines_and_for_people(cli: Cli, known: dict[str, str]) -> None:
    [best] = cli.ok("search", "peanuts", "--order", "composite", "--limit", "1", "--explain")["results"]
    assert best["score_kind"] == "composite"
    assert {"relevance", "importance", "recency", "confidence", "cosine"} <= set(best["signals"])
    human = cli("recall", "peanuts", "--explain").out
    assert best["why"][:20] in human
    assert "relevance 1.00, importance 0.90, recency 1.00, confidence 1.00" in human


def test_f13_people_read_facts_as_sentences_with_the_id_to_copy(cli: Cli, known: dict[str, str]) -> None:
    narrow = cli("search", "peanut allergy", COLUMNS="80").out
    wide = cli("search", "peanut allergy").out
    for shown in (narrow, wide):
        assert "User is allergic to peanuts" in shown
        assert all(id_ in shown for id_ in known.values())
        assert "permanent" in shown
        assert "candidate" in shown
    assert max(map(len, narrow.splitlines())) <= 80


def test_s10_recall_prefers_silence_to_noise_and_counts_what_it_kept_back(cli: Cli, known: dict[str, str]) -> None:
    assert ids(cli.ok("recall", "what", "am", "I", "allergic", "to?"))[0] == known["peanuts"]
    human = cli("recall", "quantum", "chromodynamics")
    assert human.code == app.OK
    assert "Nothing relevant is known." in human.out
    assert "not relevant enough" in human.out
    assert cli.ok("recall", "quantum", "chromodynamics")["results"] == []


def test_f12_a_nearer_scope_shadows_and_people_are_told(cli: Cli, known: dict[str, str]) -> None:
    human = cli("search", "home", "--scope", "travel").out
    assert known["bern"] not in human
    assert "Hidden: 1 shadowed" in human


def test_s5_what_has_decayed_is_counted_and_can_be_shown(cli: Cli, known: dict[str, str]) -> None:
    later = {"BUTLER_MEMORY_CLOCK_OFFSET": "+3000d"}
    human = cli("search", "--predicate", "home", **later).out
    assert "Nothing was found." in human
    assert "Hidden: 2 decayed" in human
    assert set(ids(cli.ok("search", "--predicate", "home", "--min-confidence", "0", **later))) == {
        known["bern"], known["zurich"],
    }  # fmt: skip


def test_s12_without_a_model_words_are_compared_and_people_are_told(
    cli: Cli, known: dict[str, str], tmp_path: Path
) -> None:
    no_model = {"BUTLER_MEMORY_MODEL_PATH": str(tmp_path)}
    found = cli.ok("search", "peanuts", **no_model)
    assert (ids(found), found["status"]) == ([known["peanuts"]], "degraded")
    assert cli.ok("search", "peanuts", "--mode", "keyword", **no_model)["status"] == "ok"
    assert "no embedding model" in cli("recall", "peanuts", **no_model).out
    ended = cli("context", "peanuts", **no_model)
    assert "allergic to peanuts" in ended.out
    assert "no embedding model" in ended.err


# --- context --------------------------------------------------------------------------------------------------------


def test_c1_context_prints_the_block_alone_and_what_is_said_about_it_beside(cli: Cli, known: dict[str, str]) -> None:
    ended = cli("context", "book", "a", "table", "for", "dinner")
    assert ended.code == app.OK
    assert ended.out.startswith("<butler-memory>\n")
    assert ended.out.endswith("\n</butler-memory>")
    served_id = ended.err.split()[-1]
    served = cli.ok("served", "show", served_id)["served"]
    assert served["body"]["block"] == ended.out
    assert ended.err == f"ok · {served['tokens']} tokens by {served['tokenizer']} · served {served_id}\n"


def test_context_as_json_is_the_whole_shape(cli: Cli, known: dict[str, str]) -> None:
    made = cli("context", "peanuts", "--budget", "90", "--json")
    assert set(made.json) == {"block", "request_context"} | META
    assert 0 < made.json["tokens"] <= 90
    assert made.err == ""


def test_c9_without_a_prompt_a_context_is_a_sessions_start_for_its_butler(cli: Cli, known: dict[str, str]) -> None:
    anybody, travel = cli("context").out, cli("context", "--butler", "travel").out
    assert "User's home is Bern" in anybody
    assert "Kronenhalle" not in anybody
    assert "User's home is Zürich" in travel
    assert "Kronenhalle" in travel


def test_c6_a_pasted_log_of_any_length_and_bytes_is_a_prompt(cli: Cli, known: dict[str, str]) -> None:
    ended = cli("context", "-", stdin=b"peanuts" + b"\xff\xfe log line \xc3\xbc\n" * 100_000)
    assert ended.code == app.OK
    assert "allergic to peanuts" in ended.out
    assert "only its beginning and its end" in ended.err


def test_c6_an_empty_block_prints_nothing_and_says_why(cli: Cli, known: dict[str, str]) -> None:
    hollow = new_tenant(cli, "hollow")
    for arguments, reason in ((("--budget", "5"), "budget"), (hollow, "nothing")):
        ended = cli("context", "peanuts", *arguments)
        assert (ended.code, ended.out) == (app.OK, "")
        assert reason in ended.err
    assert cli.ok("context", *hollow)["status"] == "empty"


def test_c6_a_failure_is_told_apart_from_having_nothing_to_say(cli: Cli, known: dict[str, str]) -> None:
    url = cli("db", "url", "--role", "owner").out.strip()
    with psycopg.connect(url) as conn:
        conn.execute("LOCK TABLE memory.facts IN ACCESS EXCLUSIVE MODE")
        ended = cli("context", "peanuts")
    assert (ended.code, ended.out) == (app.UNAVAILABLE, "")
    assert ended.err.startswith("failed: ")


# --- what was served ------------------------------------------------------------------------------------------------


def test_c7_served_list_names_what_each_butler_was_told(cli: Cli, known: dict[str, str]) -> None:
    made = cli.ok("context", "peanuts", "--butler", "kitchen", "--budget", "500")
    [served] = cli.ok("served", "list", "--butler", "kitchen")["served"]
    assert (served["id"], served["tokens"], served["budget"]) == (made["served_id"], made["tokens"], 500)
    human = cli("served", "list", "--limit", "1", COLUMNS="80").out
    assert made["served_id"] in human
    assert "kitchen" in human
    assert f"{made['tokens']}/500" in human
    assert "Nothing was served yet." in cli("served", "list", "--butler", "nobody").out


def test_c7_served_show_explains_each_memory_of_the_block(cli: Cli, known: dict[str, str]) -> None:
    made = cli.ok("context", "what", "is", "the", "weather?")
    human = cli("served", "show", made["served_id"], COLUMNS="80").out
    assert made["block"] in human
    [row] = [line.split() for line in human.splitlines() if known["peanuts"] in line]
    assert (row[0], row[2], row[-1]) == ("fact", known["peanuts"], "core")
    assert "importance 0.90" in human


def test_c7_diff_says_the_same_or_what_would_be_served_now(cli: Cli) -> None:
    other = new_tenant(cli, "other")
    cli.ok("remember", "rowing", "--predicate", "hobby", *other)
    served_id = cli.ok("context", "hobby", *other)["served_id"]
    show = ("served", "show", served_id, "--diff", *other)
    assert "The same would be served now" in cli(*show).out
    assert "The same" in cli(*show, BUTLER_MEMORY_CLOCK_OFFSET="+2d").out, "getting older is no change"

    cli.ok("remember", "chess", "--predicate", "hobby", *other)
    changed = cli(*show, FORCE_COLOR="1").out
    assert "\x1b[32m+- User's hobby is chess" in changed
    assert "The same" not in changed
    shape = cli.ok(*show)
    assert set(shape) == {"served", "now"}
    assert "chess" in shape["now"]["block"]
    assert "chess" not in shape["served"]["body"]["block"]

    with psycopg.connect(cli("db", "url", "--role", "owner").out.strip()) as conn:
        conn.execute("UPDATE memory.served_contexts SET body = NULL WHERE id = %s", [served_id])
    erased = cli(*show)
    assert erased.code == app.OK
    assert "erased" in erased.out
    assert cli.ok(*show)["now"] is None


# --- hostile and wrong ----------------------------------------------------------------------------------------------


def test_stored_text_cannot_steer_the_terminal_when_it_is_read(cli: Cli, known: dict[str, str]) -> None:
    shown = cli("search", "boo", FORCE_COLOR="1")
    assert "[red]boo[/red]" in shown.out
    assert "\\x1b[31mRED" in shown.out
    assert "\x1b" in shown.out, "colours of our own"
    asked = cli("context", HOSTILE, FORCE_COLOR="1")
    assert "[red]boo[/red]" in asked.out
    kept = cli("served", "show", asked.err.split()[-1].removesuffix("\x1b[0m"), "--diff", FORCE_COLOR="1")
    assert ":smile:" in kept.out
    for ended in (shown, asked, kept, cli("recall", HOSTILE, "--explain", FORCE_COLOR="1")):
        assert ended.code == app.OK
        assert_harmless(ended.out + ended.err)


WRONG: list[tuple[tuple[str, ...], int]] = [
    (("search", "x", "--type", "thing"), app.USAGE),
    (("search", "x", "--since", "yesterday"), app.USAGE),
    (("search", "x", "--valid-at", "2026-03-01"), app.USAGE),
    (("search", "x", "--limit", "201"), app.USAGE),
    (("search", "x", "--min-confidence", "nan"), app.USAGE),
    (("search", "x", "--order", "newest"), app.USAGE),
    (("search", "x", "--type", "rule", "--predicate", "home"), app.USAGE),
    (("search", "x", "--scope", ""), app.USAGE),
    (("search", "x" * 8193), app.USAGE),
    (("recall",), app.USAGE),
    (("recall", " "), app.USAGE),
    (("context", "--budget", "-1"), app.USAGE),
    (("context", "--butler", "Health"), app.USAGE),
    (("served", "show", "not-a-uuid"), app.USAGE),
    (("served", "list", "--limit", "0"), app.USAGE),
    (("served", "show", NOBODY), app.NOT_FOUND),
    (("search", "x", "--tenant", "nobody"), app.NOT_FOUND),
]


@pytest.mark.parametrize(("arguments", "code"), WRONG, ids=[" ".join(words)[:40] for words, _ in WRONG])
def test_wrong_words_are_refused_in_the_error_shape(cli: Cli, arguments: tuple[str, ...], code: int) -> None:
    ended = cli(*arguments, "--json")
    assert ended.code == code
    assert ended.json["error"] in {"invalid_input", "too_large", "not_found"}
    assert ended.json["message"]


def test_the_readmes_tour_shows_what_it_promises(cli: Cli) -> None:
    tour = new_tenant(cli, "tour")
    lines = README.read_text().partition("## Two-minute tour")[2].partition("```\n\n")[0].splitlines()
    given = [shlex.split(line, comments=True)[2:] for line in lines if line.startswith("$ butler-memory ")]
    first = next(number for number, words in enumerate(given) if words[0] == "recall")
    for words in given[:first]:
        assert cli(*words, *tour).code == app.OK
    reads = [cli(*words, *tour) for words in given if words[0] in ("recall", "context")]
    assert len(reads) == 2
    assert all("allergic to peanuts" in ended.out for ended in reads)
