"""Storing rules against a real database: duplicates by meaning, and what must not be learned again (R1, R4, R8)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from butler_memory.domain.kinds import EventType, Maturity, MemoryType, RuleStatus
from butler_memory.postgres.changes import Author, Change, apply
from butler_memory.postgres.provision import Urls
from caller import Caller, conflict, forbidden
from conftest import Hands, MakePrincipal, rows

pytestmark = pytest.mark.usefixtures("ledger")


async def invert(ask: Caller, rule: dict[str, Any]) -> None:
    """What three harmful marks will do in a later issue, by the one way a memory changes."""
    warning = {
        "maturity": Maturity.ANTI_PATTERN,
        "original_content": "as it was",
        "content": "ANTI-PATTERN: Do NOT do it. This caused problems because: reported harmful 3 times",
    }
    change = Change(MemoryType.RULE, UUID(rule["id"]), 2, EventType.INVERTED, warning)
    author = Author(ask.who.tenant, "butler:health", ask.memory._clock(), ask.who.token_id)
    await ask.memory._desk.database.run(ask.who.tenant, lambda conn: apply(conn, author, [change]))


async def disable(ask: Caller, rule: dict[str, Any]) -> None:
    """What a person will do in a later issue, by the one way a memory changes."""
    change = Change(MemoryType.RULE, UUID(rule["id"]), 2, EventType.DISABLED, {"status": RuleStatus.DISABLED})
    author = Author(ask.who.tenant, "admin:desk", ask.memory._clock(), ask.who.token_id)
    await ask.memory._desk.database.run(ask.who.tenant, lambda conn: apply(conn, author, [change]))


async def test_r1_a_new_rule_is_a_candidate_with_the_defaults(ask: Caller) -> None:
    written = await ask.rule("Always confirm before paying")
    assert (written["type"], written["outcome"], written["state"]) == ("rule", "created", "active")
    row = await ask.row(written)
    assert (row["importance"], row["confidence"], row["permanence"], row["scope"]) == (5.0, 0.5, "standard", "global")
    assert (row["maturity"], row["status"], row["pinned"], row["effectiveness_score"]) == (
        "candidate", "active", False, 0.0,
    )  # fmt: skip
    assert (row["applied_count"], row["success_count"], row["harmful_count"]) == (0, 0, 0)
    assert row["last_confirmed_at"] == "2026-03-01T12:00:00Z", "never NULL, or its confidence would be 0"
    assert (row["last_applied_at"], row["last_evaluated_at"], row["original_content"]) == (None, None, None)


async def test_r8_the_same_meaning_in_another_session_confirms(ask: Caller, hands: Hands, urls: Urls) -> None:
    first = await ask.in_session("one").rule("Always confirm before paying.")
    hands.pass_(days=5)
    again = await ask.in_session("two").rule("always confirm before the paying")
    assert (again["id"], again["outcome"]) == (first["id"], "confirmed")
    row = await ask.row(first)
    assert (row["last_confirmed_at"], row["content"]) == ("2026-03-06T12:00:00Z", "Always confirm before paying.")
    assert [row["event_type"] for row in await rows(urls, "SELECT event_type FROM memory.memory_events ORDER BY id")] \
        == ["created", "confirmed"]  # fmt: skip


async def test_r8_the_same_meaning_in_the_same_session_changes_nothing(ask: Caller, urls: Urls) -> None:
    first = await ask.rule("Always confirm before paying")
    again = await ask.rule("Always confirm before paying!")
    assert (again["id"], again["outcome"]) == (first["id"], "duplicate")
    assert len(await rows(urls, "SELECT 1 FROM memory.memory_events")) == 1


async def test_f11_the_opposite_rule_is_another_rule_and_is_linked(ask: Caller) -> None:
    first = await ask.rule("Always confirm large payments with the user")
    opposite = await ask.rule("Never confirm large payments with the user")
    assert opposite["outcome"] == "created"
    assert opposite["links"] == [{"relation": "related_to", "type": "rule", "id": first["id"]}]
    assert [x["id"] for x in (await ask.shape(first))["links"]["in"]] == [opposite["id"]]


async def test_r8_scopes_keep_their_own_rules_and_share_the_global_ones(ask: Caller, principal: MakePrincipal) -> None:
    other = ask.as_(await principal("finance"))
    mine = await ask.rule("Pay early", scope="health")
    theirs = await other.rule("Pay early", scope="finance")
    assert (theirs["outcome"], theirs["id"] != mine["id"]) == ("created", True)
    everyones = await ask.rule("Be brief")
    assert (await other.rule("Be brief", scope="finance"))["id"] == everyones["id"]
    with forbidden("foreign_scope"):
        await ask.rule("Pay late", scope="finance")


async def test_r4_a_known_anti_pattern_is_refused_by_name_and_its_opposite_accepted(ask: Caller, urls: Urls) -> None:
    bad = await ask.rule("Always retry the payment")
    await invert(ask, bad)
    for words in ("Always retry the payment", "always retry payments!"):
        with conflict("known_anti_pattern") as caught:
            await ask.rule(words, scope="health")
        assert caught.value.data["anti_pattern_id"] == bad["id"]
        assert "memory_get" in caught.value.recovery
    assert (await ask.rule("Never retry the payment"))["outcome"] == "created"
    assert len(await rows(urls, "SELECT 1 FROM memory.rules")) == 2


async def test_r4_another_scopes_anti_pattern_does_not_bind(ask: Caller, principal: MakePrincipal) -> None:
    other = ask.as_(await principal("finance"))
    await invert(other, await other.rule("Always retry the payment", scope="finance"))
    assert (await ask.rule("Always retry the payment", scope="health"))["outcome"] == "created"


async def test_r4_a_rule_cannot_be_edited_or_restored_into_a_known_anti_pattern(ask: Caller) -> None:
    forgotten = await ask.rule("Always retry the payment")
    await ask.forget(forgotten)
    await invert(ask, await ask.rule("Always retry the payment"))
    with conflict("known_anti_pattern"):
        await ask.restore(forgotten)
    fine = await ask.rule("Ask first")
    with conflict("known_anti_pattern"):
        await ask.edit(fine, content="Always retry a payment")


async def test_r1_a_rule_that_a_person_disabled_is_not_learned_again(ask: Caller, urls: Urls) -> None:
    old = await ask.rule("Use tabs in the code")
    await disable(ask, old)
    for words, scope in (("Use tabs in the code", "global"), ("use tabs in code!", "health")):
        with conflict("disabled_rule") as caught:
            await ask.rule(words, scope=scope)
        assert caught.value.data == {"disabled_id": old["id"]}
        assert "person" in caught.value.recovery
    fine = await ask.rule("Ask first")
    with conflict("disabled_rule"):
        await ask.edit(fine, content="Use tabs in the code")
    assert (await ask.rule("Never use tabs in the code"))["outcome"] == "created"
    assert len(await rows(urls, "SELECT 1 FROM memory.rules")) == 3


async def test_r1_an_agent_cannot_confirm_or_restore_what_a_person_disabled(ask: Caller, urls: Urls) -> None:
    old = await ask.rule("Use tabs")
    await disable(ask, old)
    for act in (ask.confirm, ask.restore):
        with conflict("disabled_rule") as caught:
            await act(old)
        assert "memory_restore" not in caught.value.recovery
    assert (await ask.row(old))["status"] == "disabled"
    new = await ask.edit(old, content="Use tabs in makefiles")
    assert (new["superseded_id"], (await ask.row(new))["status"]) == (old["id"], "active")


async def test_r1_a_forgotten_rule_does_not_come_back_beside_its_disabled_twin(ask: Caller) -> None:
    forgotten = await ask.rule("Use tabs")
    await ask.forget(forgotten)
    await disable(ask, await ask.rule("Use tabs"))
    for more in ({}, {"replace": True}):
        with conflict("disabled_rule"):
            await ask.restore(forgotten, **more)


async def test_r9_undoing_an_anti_pattern_makes_a_new_candidate(ask: Caller) -> None:
    bad = await ask.rule("Always retry the payment")
    await invert(ask, bad)
    new = await ask.edit(bad, content="Always retry the payment")
    assert new["superseded_id"] == bad["id"]
    row = await ask.row(new)
    assert (row["maturity"], row["content"], row["original_content"]) == (
        "candidate", "Always retry the payment", None,
    )  # fmt: skip
    assert (await ask.row(bad))["status"] == "superseded"
    assert (await ask.rule("Always retry the payment"))["id"] == new["id"]


async def test_e6_a_rules_key_is_taken_even_when_the_rule_was_known(ask: Caller, hands: Hands, urls: Urls) -> None:
    known = await ask.in_session("one").rule("Be brief")
    hands.pass_(days=1)
    first = await ask.in_session("two").rule("Be brief", idempotency_key="k")
    assert (first["id"], first["outcome"]) == (known["id"], "confirmed")
    hands.pass_(days=1)
    again = await ask.in_session("three").rule("Be brief", idempotency_key="k")
    assert (again["id"], again["outcome"]) == (known["id"], "duplicate")
    assert len(await rows(urls, "SELECT 1 FROM memory.memory_events")) == 2


async def test_f11_a_rule_without_words_is_only_the_same_as_itself(ask: Caller) -> None:
    first, second = await ask.rule("🙂🙂"), await ask.rule("🙃")
    assert second["outcome"] == "created"
    assert (await ask.rule("🙂🙂"))["id"] == first["id"]
