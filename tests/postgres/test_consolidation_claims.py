"""What was only inferred against what the user stated: what becomes of such a claim, and whose word settles it (F5)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from test_consolidation import consolidated, contents, tell

from butler_memory.bootstrap import Engine
from butler_memory.domain.decay import crosses_at
from butler_memory.postgres.provision import Urls
from caller import Caller, Json, conflict
from conftest import Hands, OpenEngine, rows
from reading import fact, scripted

pytestmark = pytest.mark.usefixtures("ledger")

Claim = Callable[..., Awaitable[Engine]]


def inferred(content: str, **more: Any) -> Json:
    return {"new_facts": [fact(content, "home", source_kind="agent_inferred", **more)]}


@pytest.fixture
def claimed(ask: Caller, hands: Hands, open_engine: OpenEngine) -> Claim:
    """The user's home is Paris, and London is claimed; what the model says next."""

    async def make(*lines: Any) -> Engine:
        await ask.user_says("Paris", "home")
        hands.pass_(days=1)
        await tell(ask, hands, "A letter to the user went to London")
        reader, _ = scripted(inferred("London"), *lines)
        engine = await open_engine(episode_reader=reader)
        await consolidated(engine)
        return engine

    return make


async def the_review(engine: Engine, admin: Any) -> Any:
    [review] = await engine.memory.reviews(admin, 10)
    return review["id"]


async def read_letter(engine: Engine, ask: Caller, hands: Hands, text: str) -> None:
    await tell(ask, hands, text)
    await consolidated(engine)


async def test_f5_a_rejected_claim_is_not_made_again(
    ask: Caller, hands: Hands, urls: Urls, claimed: Claim, admin: Any
) -> None:
    """Else a person would be asked the same at each letter."""
    engine = await claimed(inferred("London."), inferred("Rome"))
    await engine.memory.decide_review(admin, await the_review(engine, admin), accept=False)
    await read_letter(engine, ask, hands, "Another letter went to London")
    assert await contents(urls) == ["Paris"]
    assert await engine.memory.reviews(admin, 10) == []
    await read_letter(engine, ask, hands, "A letter went to Rome")
    assert await contents(urls) == ["Paris", "Rome"], "another claim is another question"


async def test_f5_a_rejected_correction_of_a_claim_leaves_the_claim(
    ask: Caller, hands: Hands, urls: Urls, claimed: Claim, admin: Any
) -> None:
    """What takes a claim's place may be refused; then nothing of it happened."""
    corrects = {"updated_facts": [{"fact": "F1", "content": "London", "evidence": ["E1"]}]}
    engine = await claimed(inferred("Rome"), corrects)
    await engine.memory.decide_review(admin, await the_review(engine, admin), accept=False)
    await read_letter(engine, ask, hands, "A letter went to Rome")
    await read_letter(engine, ask, hands, "Not to Rome, to London")
    assert await contents(urls) == ["Paris", "Rome"]


async def test_f5_a_claim_that_has_gone_can_still_be_rejected(ask: Caller, claimed: Claim, admin: Any) -> None:
    """Else its review would stay open for ever."""
    engine = await claimed()
    [review] = await engine.memory.reviews(admin, 10)
    await ask.forget(review["claim"])
    with conflict("not_live"):
        await engine.memory.decide_review(admin, review["id"], accept=True)
    decided = await engine.memory.decide_review(admin, review["id"], accept=False)
    assert decided["state"] == "rejected"


async def test_j2_an_accepted_claim_fades_from_when_it_was_accepted(
    hands: Hands, urls: Urls, claimed: Claim, admin: Any
) -> None:
    engine = await claimed()
    hands.pass_(days=30)
    await engine.memory.decide_review(admin, await the_review(engine, admin), accept=True)
    [row] = await rows(urls, "SELECT * FROM memory.facts WHERE content = 'London'")
    assert row["last_confirmed_at"] == hands.now
    assert row["fades_at"] == crosses_at(row["confidence"], row["decay_rate"], hands.now, 0.2)


async def test_f5_an_accepted_claim_is_the_persons_word(
    ask: Caller, hands: Hands, urls: Urls, claimed: Claim, admin: Any
) -> None:
    """The next letter does not undo it."""
    engine = await claimed(inferred("Paris"))
    await engine.memory.decide_review(admin, await the_review(engine, admin), accept=True)
    [row] = await rows(urls, "SELECT * FROM memory.facts WHERE content = 'London'")
    [old] = await rows(urls, "SELECT * FROM memory.facts WHERE content = 'Paris'")
    assert (row["slot"], row["source_kind"], row["supersedes_id"]) == ("", "corrected", old["id"])
    await read_letter(engine, ask, hands, "A letter went to Paris")
    assert await contents(urls) == ["London", "Paris"], "a claim in its turn"
    assert len(await engine.memory.reviews(admin, 10)) == 1


async def test_f5_an_accepted_claim_settles_the_others(
    ask: Caller, hands: Hands, urls: Urls, claimed: Claim, admin: Any
) -> None:
    engine = await claimed(inferred("Rome"))
    await read_letter(engine, ask, hands, "A letter went to Rome")
    first, _ = await engine.memory.reviews(admin, 10)
    await engine.memory.decide_review(admin, first["id"], accept=True)
    assert await contents(urls) == ["London"]
    assert await engine.memory.reviews(admin, 10) == []


async def test_f5_what_takes_the_place_of_what_is_contested_settles_the_claim(
    ask: Caller, urls: Urls, claimed: Claim, admin: Any
) -> None:
    """Else both would be served, and nothing said that one of them is wrong."""
    engine = await claimed()
    await ask.fact("Rome", "home")  # a direct call supersedes always
    assert await contents(urls) == ["Rome"]
    assert await engine.memory.reviews(admin, 10) == []


async def test_f5_what_was_only_inferred_for_one_butler_does_not_hide_what_the_user_stated(
    ask: Caller, hands: Hands, urls: Urls, open_engine: OpenEngine, admin: Any
) -> None:
    """A fact in the butler's own scope would hide the global one from it (F12), and nobody would be asked."""
    await ask.user_says("Paris", "home")
    hands.pass_(days=1)
    await tell(ask, hands, "A letter to the user went to London")
    reader, _ = scripted(inferred("London", scope="butler"), {"new_facts": [fact("Rome", "home", scope="butler")]})
    engine = await open_engine(episode_reader=reader)
    await consolidated(engine)
    found = (await ask.call("recall", {"topic": "home"}))["results"]
    assert {each["content"]: each["contested"] for each in found} == {"London": True, "Paris": True}
    assert len(await engine.memory.reviews(admin, 10)) == 1
    await read_letter(engine, ask, hands, "User: for you my home is Rome")
    [own] = await rows(urls, "SELECT content FROM memory.facts WHERE scope = 'health'")
    assert own["content"] == "Rome", "the user may say so"


async def test_f5_a_persons_edit_settles_the_claim(ask: Caller, urls: Urls, claimed: Claim, admin: Any) -> None:
    engine = await claimed()
    [review] = await engine.memory.reviews(admin, 10)
    [stated] = review["against"]
    await ask.edit(stated, content="Paris, Montmartre")
    assert await contents(urls) == ["Paris, Montmartre"]
    assert await engine.memory.reviews(admin, 10) == []


async def test_f5_accepted_after_the_stated_one_was_forgotten_it_holds_the_place(
    ask: Caller, hands: Hands, urls: Urls, claimed: Claim, admin: Any
) -> None:
    engine = await claimed(inferred("Rome"))
    [review] = await engine.memory.reviews(admin, 10)
    await ask.forget(review["against"][0])
    await engine.memory.decide_review(admin, review["id"], accept=True)
    [row] = await rows(urls, "SELECT slot FROM memory.facts WHERE content = 'London'")
    assert row["slot"] == ""
