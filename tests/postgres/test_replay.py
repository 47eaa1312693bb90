"""L3: folding the events gives the tables back; whatever differs is named, and its content is not."""

from __future__ import annotations

import dataclasses
from typing import Any
from uuid import uuid4

import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import EventType, MemoryType
from butler_memory.domain.replay import Fault
from butler_memory.errors import Forbidden, Unavailable
from butler_memory.postgres.changes import RECORDS, TABLES, Author, Change, apply
from butler_memory.postgres.database import Conn
from butler_memory.postgres.provision import Urls
from butler_memory.retrieval import replay as replaying
from butler_memory.security.principal import Principal
from caller import Caller
from conftest import Hands, MakePrincipal, owner_connection, rows
from ledger import check_ledger

Json = dict[str, Any]
COLUMNS = [
    (kind, column.name)
    for kind, record in RECORDS.items()
    for column in dataclasses.fields(record)
    if column.name not in ("tenant_id", "id")
]
# A value that no test row has, by column; the others get one by their type.
OTHER = {
    "state": "'retracted'", "consolidation_status": "'failed'", "permanence": "'ephemeral'", "validity": "'retracted'",
    "status": "'disabled'", "maturity": "'proven'", "content_status": "'redacted'", "source_kind": "'imported'",
    "tags": """'["zanzibar"]'""", "metadata": """'{"zanzibar": 1}'""", "pinned": "true", "version": "9",
    "importance": "9", "supersedes_id": "id", "success_count": "0", "harmful_count": "0",
}  # fmt: skip
BY_TYPE = {
    "text": "'zanzibar'", "uuid": "gen_random_uuid()", "integer": "7", "double precision": "0.125",
    "timestamp with time zone": "'2031-01-01'",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Home:
    """A tenant with one memory of each type that the tests tamper with, and some more around them."""

    engine: Engine
    admin: Principal
    urls: Urls
    fact: str
    rule: str
    episode: str

    async def replay(self, *, verify: bool = True) -> Json:
        return await self.engine.memory.replay(self.admin, verify=verify, progress=lambda _: None)

    async def differences(self) -> list[tuple[str, str, str, str]]:
        found = await self.replay()
        assert found["differences"] == len(found["listed"])
        assert "zanzibar" not in str(found), "a difference never shows a content (G7)"
        return [(each["type"], each["id"], each["what"], each["detail"]) for each in found["listed"]]

    async def tamper(self, *statements: str) -> None:
        async with owner_connection(self.urls) as conn:
            for statement in statements:
                assert (await conn.execute(statement)).rowcount == 1  # type: ignore[arg-type]

    def id_of(self, kind: MemoryType) -> str:
        return {MemoryType.FACT: self.fact, MemoryType.RULE: self.rule, MemoryType.EPISODE: self.episode}[kind]


@pytest.fixture
async def home(engine: Engine, ask: Caller, admin: Principal, urls: Urls, hands: Hands) -> Home:
    """Most things that can happen have happened to it."""
    await ask.user_says("Globex")
    fact = await ask.user_says("Acme", tags=["work"])
    hands.pass_(days=1)
    await ask.in_session("later").user_says("Acme", importance=8)
    await ask.fact("peanuts", "allergy", permanence="permanent", metadata={"n": {"deep": [1, 2.5, None]}})
    rule = await ask.rule("Be brief")
    hands.pass_(hours=1)
    for outcome in ("mark_helpful", "mark_harmful"):
        await ask.call(outcome, {"rule_id": rule["id"], "reason": "it went so"})
    episode = await ask.episode("It rained", session_id="s")
    away = await ask.fact("Basel", "home")
    await ask.restore(await ask.forget(away))
    await ask.edit(away, content="Bern")
    await ask.forget(await ask.episode("It snowed"))
    return Home(engine, admin, urls, fact["id"], rule["id"], episode["id"])


async def test_l3_what_nobody_tampered_with_has_no_difference(home: Home) -> None:
    found = await home.replay()
    assert (found["differences"], found["listed"]) == (0, [])
    assert found["events"] == await check_ledger(home.urls)
    assert found["memories"] == {"episode": {"present": 2}, "fact": {"present": 5}, "rule": {"present": 1}}
    assert found["links"] == (await rows(home.urls, "SELECT count(*) AS n FROM memory.memory_links"))[0]["n"]


@pytest.mark.parametrize(("kind", "column"), COLUMNS, ids=lambda part: str(part))
async def test_l3_each_declared_column_that_is_tampered_with_is_named(
    home: Home, kind: MemoryType, column: str
) -> None:
    table = TABLES[kind]
    [sort] = await rows(
        home.urls,
        "SELECT data_type FROM information_schema.columns"
        " WHERE table_schema = 'memory' AND table_name = %s AND column_name = %s",
        table,
        column,
    )
    value = OTHER.get(column) or BY_TYPE[sort["data_type"]]
    await home.tamper(f"UPDATE memory.{table} SET {column} = {value} WHERE id = '{home.id_of(kind)}'")
    assert await home.differences() == [(kind, home.id_of(kind), Fault.COLUMN, column)]


@pytest.mark.parametrize("kind", MemoryType)
async def test_l3_a_row_that_is_missing_or_has_no_events_is_named(home: Home, kind: MemoryType) -> None:
    if kind is MemoryType.RULE:
        async with owner_connection(home.urls) as conn:
            await conn.execute("DELETE FROM memory.rule_applications")
    copied, gone = str(uuid4()), home.id_of(kind)
    # With another id the same row is one that is missing and one that nobody knows.
    await home.tamper(f"UPDATE memory.{TABLES[kind]} SET id = '{copied}' WHERE id = '{gone}'")
    found = await home.differences()
    assert (kind, gone, Fault.MISSING_ROW, "") in found
    assert (kind, copied, Fault.ROW_WITHOUT_EVENTS, "") in found
    assert {each[1] for each in found} == {copied, gone}


async def test_l3_a_row_under_another_tenant_is_missing_here_and_strange_there(
    home: Home, principal: MakePrincipal
) -> None:
    other = dataclasses.replace(home, admin=await principal("desk", home.admin.role, tenant="away"))
    await home.tamper(f"UPDATE memory.episodes SET tenant_id = 'away' WHERE id = '{home.episode}'")
    assert await home.differences() == [("episode", home.episode, Fault.MISSING_ROW, "")]
    assert await other.differences() == [("episode", home.episode, Fault.ROW_WITHOUT_EVENTS, "")]


async def test_l3_a_link_that_is_missing_strange_or_of_another_time_is_named(home: Home) -> None:
    [link] = await rows(home.urls, "SELECT * FROM memory.memory_links WHERE source_id = %s", home.fact)
    here = f"tenant_id = 'home' AND source_id = '{home.fact}'"
    said = f"supersedes fact {link['target_id']}"
    await home.tamper(f"UPDATE memory.memory_links SET created_at = '2031-01-01' WHERE {here}")
    assert await home.differences() == [("fact", home.fact, Fault.LINK_TIME, said)]
    await home.tamper(f"UPDATE memory.memory_links SET relation = 'supports' WHERE {here}")
    other = f"supports fact {link['target_id']}"
    assert await home.differences() == [
        ("fact", home.fact, Fault.EXTRA_LINK, other), ("fact", home.fact, Fault.MISSING_LINK, said),
    ]  # fmt: skip
    await home.tamper(f"DELETE FROM memory.memory_links WHERE {here}")
    assert await home.differences() == [("fact", home.fact, Fault.MISSING_LINK, said)]


async def test_l3_a_link_of_nothing_known_is_named(home: Home) -> None:
    nobody = str(uuid4())
    await home.tamper(
        f"INSERT INTO memory.memory_links VALUES"
        f" ('home', 'rule', '{nobody}', 'fact', '{home.fact}', 'related_to', now())"
    )
    assert await home.differences() == [("rule", nobody, Fault.EXTRA_LINK, f"related_to fact {home.fact}")]


@pytest.mark.parametrize(
    ("statement", "counters"),
    [
        ("DELETE FROM memory.rule_applications WHERE outcome = 'helpful'", ["applied_count", "success_count"]),
        ("DELETE FROM memory.rule_applications WHERE outcome = 'harmful'", ["applied_count", "harmful_count"]),
        ("UPDATE memory.rule_applications SET outcome = 'neutral' WHERE outcome = 'harmful'", ["harmful_count"]),
    ],
)
async def test_r5_counters_that_do_not_equal_the_marks_are_named(
    home: Home, statement: str, counters: list[str]
) -> None:
    await home.tamper(statement)
    assert await home.differences() == [("rule", home.rule, Fault.COUNTER, name) for name in counters]


async def event_of(home: Home, memory: str, version: int) -> int:
    [event] = await rows(
        home.urls, "SELECT id FROM memory.memory_events WHERE entity_id = %s AND entity_version = %s", memory, version
    )
    return int(event["id"])


async def test_l2_a_version_that_is_missing_is_named(home: Home) -> None:
    event = await event_of(home, home.rule, 2)
    await home.tamper(
        f"DELETE FROM memory.memory_event_bodies WHERE event_id = {event}",
        f"DELETE FROM memory.memory_events WHERE id = {event}",
    )
    assert await home.differences() == [("rule", home.rule, Fault.VERSION_GAP, "version 2")]


async def test_l2_events_out_of_order_are_named(home: Home) -> None:
    created = await event_of(home, home.episode, 1)
    await home.tamper(f"UPDATE memory.memory_events SET event_type = 'confirmed' WHERE id = {created}")
    assert await home.differences() == [("episode", home.episode, Fault.EVENT_ORDER, "version 1")]
    await home.tamper(f"UPDATE memory.memory_events SET event_type = 'created' WHERE id = {created}")
    first, second = await event_of(home, home.rule, 2), await event_of(home, home.rule, 3)
    await home.tamper(
        f"UPDATE memory.memory_events SET entity_version = 99 WHERE id = {first}",
        f"UPDATE memory.memory_events SET entity_version = 2 WHERE id = {second}",
        f"UPDATE memory.memory_events SET entity_version = 3 WHERE id = {first}",
    )
    assert ("rule", home.rule, Fault.EVENT_ORDER, "version 3") in await home.differences()


async def test_l3_what_an_event_says_against_the_row_is_named_by_its_column(home: Home) -> None:
    event = await event_of(home, home.fact, 1)
    await home.tamper(
        f"UPDATE memory.memory_events SET payload = jsonb_set(payload, '{{set,confidence}}', '0.5') WHERE id = {event}"
    )
    assert await home.differences() == [("fact", home.fact, Fault.COLUMN, "confidence")]
    await home.tamper(
        f"UPDATE memory.memory_events SET payload = payload #- '{{set,confidence}}' WHERE id = {event}",
    )
    assert await home.differences() == [("fact", home.fact, Fault.COLUMN, "confidence")]


async def test_l3_a_number_is_no_truth_value(home: Home) -> None:
    event = await event_of(home, home.rule, 3)
    await home.tamper(
        f"UPDATE memory.memory_events SET payload = jsonb_set(payload, '{{set,pinned}}', '0') WHERE id = {event}"
    )
    assert await home.differences() == [("rule", home.rule, Fault.COLUMN, "pinned")]


async def test_l3_an_event_that_sets_what_it_must_not_is_named(home: Home) -> None:
    event = await event_of(home, home.episode, 1)
    for name in ("zanzibar", "content"):
        await home.tamper(
            f"UPDATE memory.memory_events SET payload = jsonb_set(payload, '{{set,{name}}}', '1') WHERE id = {event}"
        )
        assert Fault.MALFORMED_EVENT in [each[2] for each in await home.differences()]


@pytest.mark.parametrize("kind", MemoryType)
async def test_l3_a_text_that_is_missing_is_named_and_nothing_else(home: Home, kind: MemoryType) -> None:
    event = await event_of(home, home.id_of(kind), 1)
    await home.tamper(f"DELETE FROM memory.memory_event_bodies WHERE event_id = {event}")
    assert await home.differences() == [(kind, home.id_of(kind), Fault.MISSING_BODY, "version 1")]


async def test_l3_a_reason_that_is_missing_is_named_though_no_column_holds_it(home: Home) -> None:
    event = await event_of(home, home.rule, 2)
    await home.tamper(f"DELETE FROM memory.memory_event_bodies WHERE event_id = {event}")
    assert await home.differences() == [("rule", home.rule, Fault.MISSING_BODY, "version 2")]


async def test_l3_a_later_erasure_explains_a_text_that_is_missing(home: Home, hands: Hands) -> None:
    await _change(home, hands, Change(MemoryType.FACT, _uuid(home.fact), 3, EventType.ERASED, {"content": None}))
    await home.tamper(f"DELETE FROM memory.memory_event_bodies WHERE event_id = {await event_of(home, home.fact, 1)}")
    assert await home.differences() == []
    await home.tamper(f"UPDATE memory.facts SET content = 'zanzibar' WHERE id = '{home.fact}'")
    assert await home.differences() == [("fact", home.fact, Fault.COLUMN, "content")]


class TestDeleted:
    """An episode whose time was over: no row, no text, and a tombstone that says why (E4)."""

    @pytest.fixture
    async def gone(self, home: Home, hands: Hands) -> Home:
        await delete_episode(home, hands)
        return home

    async def test_e4_it_replays_as_absent_with_its_reason(self, gone: Home) -> None:
        found = await gone.replay()
        assert found["listed"] == []
        assert found["memories"]["episode"] == {"present": 1, "expired": 1}
        assert (await gone.replay(verify=False))["memories"] == found["memories"]
        await check_ledger(gone.urls)

    async def test_e4_a_tombstone_that_is_missing_or_strange_is_named(self, gone: Home) -> None:
        for column, value in (
            ("reason", "'erased'"), ("butler", "'zanzibar'"), ("deleted_at", "now()"), ("created_at", "now()"),
        ):  # fmt: skip
            [before] = await rows(gone.urls, f"SELECT {column} AS it FROM memory.episode_tombstones")
            await gone.tamper(f"UPDATE memory.episode_tombstones SET {column} = {value}")
            assert await gone.differences() == [("episode", gone.episode, Fault.TOMBSTONE, column)]
            await gone.tamper(f"UPDATE memory.episode_tombstones SET {column} = '{before['it']}'")
        other = str(uuid4())
        await gone.tamper(f"UPDATE memory.episode_tombstones SET id = '{other}'")
        assert sorted(await gone.differences()) == sorted(
            [
                ("episode", gone.episode, Fault.MISSING_TOMBSTONE, "expired"),
                ("episode", other, Fault.EXTRA_TOMBSTONE, ""),
            ]
        )

    async def test_e4_a_row_or_a_text_that_remains_is_named(self, gone: Home) -> None:
        event = await event_of(gone, gone.episode, 1)
        await gone.tamper(f"INSERT INTO memory.memory_event_bodies VALUES ('home', {event}, '{{}}')")
        assert await gone.differences() == [("episode", gone.episode, Fault.BODY_REMAINS, "1 of 2 events")]
        async with owner_connection(gone.urls) as conn:
            await conn.execute("DELETE FROM memory.memory_event_bodies WHERE event_id = %s", [event])
            await conn.execute("UPDATE memory.episodes SET id = %s WHERE content = 'It snowed'", [gone.episode])
        assert ("episode", gone.episode, Fault.ROW_REMAINS, "") in await gone.differences()

    async def test_l2_an_event_after_the_last_one_is_named(self, gone: Home) -> None:
        async with owner_connection(gone.urls) as conn:
            await conn.execute(
                "INSERT INTO memory.memory_events (tenant_id, event_type, entity_type, entity_id, entity_version,"
                " occurred_at, actor, payload) SELECT tenant_id, 'requeued', entity_type, entity_id, 3,"
                " occurred_at, actor, '{}' FROM memory.memory_events WHERE entity_id = %s AND entity_version = 2",
                [gone.episode],
            )
        assert ("episode", gone.episode, Fault.EVENT_ORDER, "version 3") in await gone.differences()


async def delete_episode(home: Home, hands: Hands) -> None:
    """As the cleanup does."""
    noted = {"reason": "expired"}
    async with owner_connection(home.urls) as conn:
        await conn.execute(
            """
            INSERT INTO memory.episode_tombstones
            SELECT tenant_id, id, butler, session_id, occurred_at, created_at, %s, 'expired', 'digest'
            FROM memory.episodes WHERE id = %s
            """,
            [hands.now, home.episode],
        )
    change = Change(MemoryType.EPISODE, _uuid(home.episode), 2, EventType.DELETED, {}, noted=noted)
    await _change(home, hands, change)
    await home.tamper(
        f"DELETE FROM memory.episodes WHERE id = '{home.episode}'",
        f"DELETE FROM memory.memory_event_bodies WHERE event_id = {await event_of(home, home.episode, 1)}",
    )


async def _change(home: Home, hands: Hands, change: Change) -> None:
    author = Author("home", "job:test", hands.now, uuid4())

    async def work(conn: Conn) -> None:
        await apply(conn, author, [change])

    await home.engine.database.run("home", work)


def _uuid(text: str) -> Any:
    from uuid import UUID

    return UUID(text)


async def test_at_most_a_hundred_differences_are_listed_and_all_are_counted(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "LISTED", 2)
    async with owner_connection(home.urls) as conn:
        await conn.execute("UPDATE memory.facts SET importance = 2")
    found = await home.replay()
    assert (found["differences"], len(found["listed"])) == (5, 2)


async def test_without_verify_the_tables_are_not_looked_at(home: Home) -> None:
    await home.tamper(f"DELETE FROM memory.episodes WHERE id = '{home.episode}'")
    found = await home.replay(verify=False)
    assert (found["differences"], found["memories"]["episode"]) == (0, {"present": 2})


async def test_a_snapshot_cannot_write_and_takes_longer_than_any_other_read(engine: Engine) -> None:
    async def work(conn: Conn) -> list[Any]:
        found = await conn.execute(
            "SELECT current_setting('transaction_isolation') AS a, current_setting('transaction_read_only') AS b,"
            " current_setting('statement_timeout') AS c, current_setting('memory.tenant') AS d"
        )
        return list((await found.fetchall())[0].values())

    assert await engine.database.snapshot("home", work) == ["repeatable read", "on", "5min", "home"]
    with pytest.raises(Unavailable):
        await engine.database.snapshot("", work)

    async def after(conn: Conn) -> Any:
        return await (await conn.execute("SELECT current_setting('statement_timeout') AS c")).fetchone()

    assert await engine.database.run("home", after) == {"c": "15s"}


async def test_only_an_admin_replays(engine: Engine, who: Principal) -> None:
    with pytest.raises(Forbidden):
        await engine.memory.replay(who, verify=True, progress=lambda _: None)
