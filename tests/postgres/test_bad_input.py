"""Bad input through Memory: the error of appendix B, nothing written, no content in any log (T4, G7)."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from butler_memory.errors import ButlerMemoryError
from butler_memory.postgres.provision import Urls
from butler_memory.postgres.server import EmbeddedServer
from caller import Caller
from conftest import MakePrincipal, rows

MARK = "violet-heron-4711"
BIG = f"{MARK} " * 120_000  # 2 MB
FACT: dict[str, Any] = {"subject": "user", "predicate": "employer", "content": MARK}
RULE: dict[str, Any] = {"content": MARK}
EPISODE: dict[str, Any] = {"content": MARK}
SOME_ID = str(uuid4())


def variants(method: str, good: dict[str, Any], **bad: tuple[Any, str]) -> list[Any]:
    """One case per bad argument: `field=(value, the error's code)`."""
    return [
        pytest.param(method, {**good, field: value}, code, id=f"{method}-{field}-{number}")
        for number, (field, (value, code)) in enumerate(bad.items())
    ]


def without(method: str, good: dict[str, Any]) -> list[Any]:
    return [
        pytest.param(method, {k: v for k, v in good.items() if k != field}, "invalid_input", id=f"{method}-no-{field}")
        for field in good
    ]


def texts(method: str, good: dict[str, Any], *fields: str) -> list[Any]:
    bad = {
        "empty": ("", "invalid_input"),
        "blank": (" \n\t", "invalid_input"),
        "null": (None, "invalid_input"),
        "huge": (BIG, "too_large"),
        "nul": (f"{MARK}\x00", "invalid_input"),
        "surrogate": (f"{MARK}\udcff", "invalid_input"),
        "number": (7, "invalid_input"),
        "bytes": (b"\xff" + MARK.encode(), "invalid_input"),
        "list": ([MARK], "invalid_input"),
    }
    return [
        pytest.param(method, {**good, field: value}, code, id=f"{method}-{field}-{name}")
        for field in fields
        for name, (value, code) in bad.items()
    ]


INVALID = "invalid_input"
COMMON: dict[str, tuple[Any, str]] = {
    "importance": (0, INVALID),
    "tags": ([MARK] * 40 + [str(n) for n in range(40)], "too_large"),
    "metadata": ([MARK], INVALID),
    "source_kind": (MARK, INVALID),
    "idempotency_key": (BIG, "too_large"),
    "request_context": ({"request_id": MARK, "tenant": "B"}, INVALID),
    "unknown_argument": (MARK, INVALID),
    "tenant": ("B", INVALID),
}
ONE: dict[str, Any] = {"type": "fact", "id": SOME_ID}
CASES = [
    *without("store_fact", FACT), *without("store_rule", RULE), *without("store_episode", EPISODE),
    *texts("store_fact", FACT, "subject", "predicate", "content"),
    *texts("store_rule", RULE, "content"), *texts("store_episode", EPISODE, "content"),
    *variants("store_fact", FACT, **COMMON), *variants("store_rule", RULE, **COMMON),
    *variants("store_episode", EPISODE, **COMMON),
    *variants("store_fact", FACT, importance=(10.5, INVALID), confidence=(1.5, INVALID), permanence=(MARK, INVALID),
              scope=("Not A Scope", INVALID), valid_from=("2026-03-01T09:30:00", INVALID), valid_to=(MARK, INVALID),
              tags=(["x" * 65], "too_large"), metadata=({"x": BIG}, "too_large")),
    *variants("store_fact", FACT, importance=(float("nan"), INVALID), confidence=(0, INVALID), tags=("x\x00", INVALID),
              scope=("*", INVALID), valid_from=(0, INVALID), metadata=({"x": "\x00"}, INVALID),
              idempotency_key=("", INVALID), request_context=(MARK, INVALID)),
    *variants("store_fact", FACT, metadata=({"x": "\udcff"}, INVALID), tags=([""], INVALID),
              importance=("very", INVALID), scope=(BIG, INVALID), confidence=(float("inf"), INVALID)),
    *variants("store_fact", {**FACT, "valid_from": "2026-03-02T00:00:00Z"}, valid_to=("2026-03-01T00:00:00Z", INVALID)),
    *variants("store_fact", FACT, scope=("chef", "forbidden")),
    *variants("store_rule", RULE, scope=("project:atlas", "forbidden")),
    *variants("store_episode", EPISODE, butler=("chef", "forbidden")),
    *variants("store_episode", EPISODE, occurred_at=("2026-03-01T09:30:00", INVALID), session_id=("", INVALID)),
    *variants("store_episode", EPISODE, session_id=(BIG, "too_large")),
    *variants("store_episode", EPISODE, occurred_at=("0001-01-01T00:00:00+14:00", INVALID)),
    *[case for method in ("get", "confirm", "forget", "restore") for case in without(method, ONE)],
    *[case for method in ("get", "confirm", "forget", "restore")
      for case in variants(method, ONE, type=(MARK, INVALID), id=(MARK, INVALID), unknown=(MARK, INVALID))],
    *[pytest.param(method, ONE, "not_found", id=f"{method}-unknown-id")
      for method in ("get", "confirm", "forget", "restore")],
    *variants("edit", {**ONE, "content": MARK}, id=("123", INVALID), type=("episode", INVALID), content=("", INVALID)),
    *variants("edit", ONE, valid_from=("yesterday", INVALID), importance=(11, INVALID)),
    pytest.param("edit", {**ONE, "content": MARK}, "not_found", id="edit-unknown-id"),
    pytest.param("edit", ONE, INVALID, id="edit-nothing"),
    *variants("stats", {}, scope=("chef", "forbidden"), unknown=(MARK, INVALID)),
    *variants("ingest_batch", {}, episodes=(MARK, INVALID), unknown=(MARK, INVALID)),
]  # fmt: skip


async def counts(urls: Urls) -> dict[str, int]:
    names = await rows(
        urls, "SELECT relname FROM pg_class WHERE relnamespace = 'memory'::regnamespace AND relkind = 'r'"
    )
    union = " UNION ALL ".join(
        f"SELECT '{row['relname']}' AS name, count(*) AS n FROM memory.{row['relname']}" for row in names
    )
    return {row["name"]: row["n"] for row in await rows(urls, union)}


def server_log(server: EmbeddedServer) -> str:
    return (server.data_dir / "postgres.log").read_text(errors="replace")


@pytest.fixture(scope="module")
async def shared(template: Any) -> Any:
    """One database for all cases of this file: each proves that it wrote nothing."""
    urls = await template.clone()
    yield urls
    await template.drop(urls)


@pytest.fixture
def urls(shared: Urls) -> Urls:
    return shared


@pytest.mark.parametrize(("method", "arguments", "code"), CASES)
async def test_t4_bad_input_gets_its_error_writes_nothing_and_is_not_logged(
    ask: Caller,
    urls: Urls,
    server: EmbeddedServer,
    caplog: pytest.LogCaptureFixture,
    method: str,
    arguments: dict[str, Any],
    code: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    before = await counts(urls)
    with pytest.raises(ButlerMemoryError) as caught:
        await ask.call(method, arguments)
    shape = caught.value.as_dict()
    assert shape["error"] == code
    assert shape["message"]
    assert shape["recovery"], "an error says what would be right"
    assert MARK not in json.dumps(shape)
    assert MARK not in caplog.text
    assert await counts(urls) == before
    assert MARK not in server_log(server)


async def test_t3_a_foreign_tenants_id_is_an_unknown_one(ask: Caller, principal: MakePrincipal, urls: Urls) -> None:
    stranger = ask.as_(await principal("health", tenant="elsewhere"))
    theirs = await stranger.fact(uuid4().hex, "note")
    before = await counts(urls)
    for attempt in (ask.shape, ask.confirm, ask.forget, ask.restore):
        with pytest.raises(ButlerMemoryError, check=lambda error: error.code == "not_found"):
            await attempt(theirs)
    assert await counts(urls) == before


async def test_g7_stored_content_is_in_no_log(
    ask: Caller, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Good input too, with driver and pool at their most talkative, and a constraint that fails on the row."""
    caplog.set_level(logging.DEBUG)
    for name in ("psycopg", "psycopg.pool", "butler_memory", "sqlalchemy"):
        logging.getLogger(name).setLevel(logging.DEBUG)
    mark = f"{MARK}-{uuid4().hex}"
    first = await ask.fact(mark, "note", tags=[mark], metadata={"x": mark}, subject=mark)
    await ask.edit(first, content=f"{mark} again")
    await ask.rule(mark)
    await ask.episode(mark, session_id=mark)
    await ask.episode(mark, session_id=mark)
    assert caplog.records, "something was logged, or this test sees nothing"
    assert mark not in caplog.text
    assert MARK not in server_log(server)


async def test_g7_a_row_that_breaks_a_constraint_is_not_in_the_servers_log(
    ask: Caller, server: EmbeddedServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    mark = f"{MARK}-{uuid4().hex}"

    async def work(conn: Any) -> None:
        await conn.execute(
            "INSERT INTO memory.predicates VALUES ('home', %s, 'x', true, 'stable', 'high', '[]', now())", [mark]
        )

    before = len(server_log(server))
    with pytest.raises(ButlerMemoryError) as caught:
        await ask.memory._desk.database.run("home", work)
    said = server_log(server)[before:]
    assert "ERROR" not in said, "a failing statement is not logged at all: its message may quote what was sent"
    assert mark not in said
    assert caught.value.reason == "cardinality_known", "the row did reach the server"
    assert mark not in caplog.text
    assert mark not in str(caught.value)


def test_the_servers_log_is_where_this_file_looks(server: EmbeddedServer) -> None:
    assert Path(server.data_dir / "postgres.log").stat().st_size > 0
