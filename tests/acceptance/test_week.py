"""A week of thirty episodes in, facts and rules out: offline as a user runs it, and by each wire protocol (SPEC 7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import claude_agent_sdk
import pytest
from mcp import Client

from asking import MODELS
from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import JobName
from butler_memory.postgres.provision import Urls
from caller import Caller
from commands import Cli
from conftest import Hands, OpenEngine, rows
from serving import Up, start_up
from week import (
    BUTLERS,
    CHEF,
    HEALTH,
    OFFICE,
    SUNDAY_NIGHT,
    TRAVEL,
    WEDNESDAY_NIGHT,
    Json,
    Learned,
    as_learned,
    half,
    learned,
    model_reading,
)
from wire import Asked, Wire

# --- as a user does, without a model ---------------------------------------------------------------------------------

# The next session of each butler: its prompt, lines that its context has, and words that it has not.
NEXT_SESSIONS = [
    (CHEF, "Write me a recipe with quantities for dinner",
     ["User is allergic to hazelnuts", "User is allergic to penicillin", "Always give the user quantities in grams"],
     ["quiet room", "walnuts", "garlic"]),
    (CHEF, "Something vegetarian for dinner", ["User's dietary restriction is vegetarian"], ["quiet room"]),
    (TRAVEL, "Book a hotel for my trip to Lisbon",
     ["User's trip is fly to Lisbon on 2026-03-20", "When you book a hotel, choose a quiet room"],
     ["in grams", "premium fare"]),
    (OFFICE, "When may I call Nora about the emails?",
     ["User prefers short emails", "Never call the user before 9 am"],
     ["quiet room", "in grams", "Always forward invoices"]),
    (HEALTH, "Where does the user live?",
     ["User's home is Leiden", "User is allergic to penicillin"],
     ["User's home is Utrecht", "quiet room", "in grams"]),
    (HEALTH, "Give me the quantities in grams and book a hotel with a quiet room", [],
     ["Always give the user", "When you book a hotel"]),
]  # fmt: skip


@pytest.fixture
def up(tmp_path: Path, model_at_hand: Path) -> Iterator[Up]:
    """From a clean start. Nothing is read before `consolidate` says so."""
    running = start_up(tmp_path / "data", BUTLER_MEMORY_CONSOLIDATION__QUIET_SECONDS="0")
    running.wait_until_ready()
    yield running
    running.stop()
    running.output()


async def test_a_week_goes_in_and_the_next_sessions_know_it(up: Up) -> None:
    cli = Cli(up.data_dir)
    async with AsyncExitStack() as stack:
        clients = {butler: await stack.enter_async_context(up.client(_token(cli, butler))) for butler in BUTLERS}
        ids = await _tell(clients, first=True)
        cli.ok("consolidate")
        ids |= await _tell(clients, first=False)
        cli.ok("consolidate")
        blocks = [await _context(clients[butler], prompt) for butler, prompt, *_ in NEXT_SESSIONS]

    assert await _known(up, cli, ids) == learned(by_model=False)
    for block, (_, _, there, not_there) in zip(blocks, NEXT_SESSIONS, strict=True):
        assert [line for line in there if f"\n- {line} [" not in block] == [], block
        learned_of_it = block.partition("### Recent Context")[0]  # an own episode may quote anything
        assert [words for words in not_there if words in learned_of_it] == [], block
    replayed = cli.ok("replay", "--verify")
    assert replayed["ok"], replayed
    assert cli.ok("consolidate")["runs"] == []
    assert cli.ok("replay", "--verify") == replayed, "a second run writes no event"


def _token(cli: Cli, butler: str) -> str:
    said = cli.ok("token", "create", "--tenant", "home", "--butler", butler, "--role", "butler")
    return str(said["token"])


async def _tell(clients: dict[str, Client], *, first: bool) -> dict[str, str]:
    """Each episode's name by its id."""
    ids = {}
    for name, told in half(first=first).items():
        answer = await clients[told.butler].call_tool(
            "memory_store_episode",
            {"content": told.text, "session_id": name, "occurred_at": told.at.isoformat()},
        )
        assert not answer.is_error, answer
        ids[answer.structured_content["id"]] = name
    return ids


async def _known(up: Up, cli: Cli, ids: dict[str, str]) -> frozenset[Learned]:
    """All facts and rules that there are, with what memory_get says of where they come from."""
    listed = cli.ok("list", "--state", "all", "--limit", "1000")
    assert {episode["consolidation_status"] for episode in listed["episodes"]} == {"consolidated"}
    found = {each["id"]: each for each in listed["facts"] + listed["rules"]}
    known = []
    async with up.client(up.token("admin")) as admin:
        for memory in found.values():
            got = await admin.call_tool("memory_get", {"type": memory["type"], "id": memory["id"]})
            provenance = got.structured_content["provenance"]
            assert {source["status"] for source in provenance} == {"available"}
            before = found.get(memory["supersedes_id"], {"content": ""})
            known.append(as_learned(memory, [ids[source["id"]] for source in provenance], before["content"]))
    assert len(set(known)) == len(known), "nothing twice"
    return frozenset(known)


async def _context(client: Client, prompt: str) -> str:
    answer = await client.call_tool("memory_context", {"trigger_prompt": prompt})
    assert not answer.is_error
    return str(answer.content[0].text)


# --- by a model, over the wire ---------------------------------------------------------------------------------------


@pytest.fixture
def real_cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real `claude` on the path, of a user without settings, and no way out but loopback."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "claude").symlink_to(Path(claude_agent_sdk.__file__).parent / "_bundled" / "claude")
    nowhere = "http://127.0.0.1:9"
    environ = {"HOME": str(tmp_path), "HTTPS_PROXY": nowhere, "HTTP_PROXY": nowhere, "NO_PROXY": "127.0.0.1"}
    for name, value in (environ | {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}).items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("only_loopback", "real_cli", "ledger")
@pytest.mark.parametrize("backend", ["anthropic", "openai", "claude-code"])
async def test_the_same_week_by_a_model_over_its_wire(
    backend: str, wire: Wire, hands: Hands, urls: Urls, open_engine: OpenEngine
) -> None:
    """The same facts and rules as offline, and what only a model understands: each named by a handle of the prompt."""
    wire.otherwise = lambda asked: model_reading(_read_by_model(asked))
    engine = await open_engine(
        BUTLER_MEMORY_CONSOLIDATION__BACKEND=backend,
        BUTLER_MEMORY_CONSOLIDATION__MODEL=MODELS[backend],
        BUTLER_MEMORY_CONSOLIDATION__BASE_URL=wire.url + ("/v1" if backend == "openai" else ""),
        BUTLER_MEMORY_LLM_API_KEY="sk-wire",
    )
    ids = await _live_through(engine, hands, first=True)
    hands.now = WEDNESDAY_NIGHT
    await engine.workers.run_now(JobName.CONSOLIDATE)
    ids |= await _live_through(engine, hands, first=False)
    hands.now = SUNDAY_NIGHT
    await engine.workers.run_now(JobName.CONSOLIDATE)

    assert await _stored(urls, ids) == learned(by_model=True)
    assert len(wire.requests) == 2 * len(BUTLERS), "one reading for each butler's half of the week"
    [before] = await rows(urls, "SELECT count(*) AS n FROM memory.memory_events")
    await engine.workers.run_now(JobName.CONSOLIDATE)
    assert await rows(urls, "SELECT count(*) AS n FROM memory.memory_events") == [before]
    assert len(wire.requests) == 2 * len(BUTLERS), "a model is not asked about nothing"


def _read_by_model(asked: Asked) -> str:
    """The user's place of a request, whatever the protocol."""
    contents = [message["content"] for message in asked.body["messages"] if message["role"] == "user"]
    parts = [part for content in contents for part in ([{"text": content}] if isinstance(content, str) else content)]
    return "\n".join(part["text"] for part in parts)


async def _live_through(engine: Engine, hands: Hands, *, first: bool) -> dict[str, str]:
    ids = {}
    for name, told in half(first=first).items():
        hands.now = told.at
        secret, _ = await engine.access.create_token("home", told.butler, "butler")
        caller = Caller(engine.memory, await engine.access.authenticate(secret), name)
        ids[(await caller.episode(told.text))["id"]] = name
    return ids


async def _stored(urls: Urls, ids: dict[str, str]) -> frozenset[Learned]:
    links = await rows(
        urls,
        "SELECT source_id, target_id::text AS episode FROM memory.memory_links WHERE relation = 'derived_from'",
    )
    found = await rows(urls, "SELECT * FROM memory.facts") + await rows(urls, "SELECT * FROM memory.rules")
    by_id = {memory["id"]: memory for memory in found}
    known = []
    for memory in found:
        told_in = [ids[link["episode"]] for link in links if link["source_id"] == memory["id"]]
        before: Json = by_id.get(memory["supersedes_id"], {"content": ""})
        known.append(as_learned(memory, told_in, before["content"]))
    assert len(set(known)) == len(known), "nothing twice"
    return frozenset(known)
