"""Storing facts, rules and episodes against a real database."""

from __future__ import annotations

from butler_memory.bootstrap import Engine
from butler_memory.security.principal import Principal


async def test_f5_new_content_supersedes_and_inherits(engine: Engine, who: Principal) -> None:
    first = await engine.memory.store_fact(
        who, {"subject": "me", "predicate": "employer", "content": "Acme", "permanence": "stable", "importance": 8}
    )
    second = await engine.memory.store_fact(who, {"subject": "user", "predicate": "works_at", "content": "Globex"})
    assert (first["outcome"], second["outcome"]) == ("created", "superseded")
    assert second["superseded_id"] == first["id"]
    now = (await engine.memory.get(who, {"type": "fact", "id": second["id"]}))["memory"]
    assert (now["permanence"], now["importance"], now["supersedes_id"]) == ("stable", 8, first["id"])
    old = await engine.memory.get(who, {"type": "fact", "id": first["id"]})
    assert old["memory"]["validity"] == "superseded"
    assert [x["relation"] for x in old["links"]["in"]] == ["supersedes"]
