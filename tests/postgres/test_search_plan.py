"""The one statement behind every read keeps its plan: the tenant's rows, by index, once (DESIGN 3)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from butler_memory.bootstrap import Engine
from butler_memory.domain.kinds import MemoryType, SearchMode
from butler_memory.domain.ranking import Fusion, Recipe
from butler_memory.postgres import search
from butler_memory.postgres.database import Conn
from butler_memory.postgres.provision import Urls
from butler_memory.postgres.search import Asked, Filters, Gating, Question
from conftest import Hands, rows

TENANTS, FACTS = 40, 150

# A tenant's rows lie scattered among the others', as they do in life.
FILL = f"""
INSERT INTO memory.facts (tenant_id, id, version, subject, predicate, subject_key, predicate_key, slot, content,
    content_status, embedding, embedding_version, search_vector, importance, confidence, decay_rate, permanence,
    validity, scope, source_kind, source_butler, created_at, last_confirmed_at, tags, metadata)
SELECT 'tenant-' || t, gen_random_uuid(), 1, 'user', 'note', 'user', 'note', n::text, 'note number ' || n, 'plain',
    (SELECT array_agg(random())::real[]::public.halfvec FROM generate_series(1, 384) WHERE n + t > 0),
    'fake-bag-of-words@1',
    strip(to_tsvector('english', 'note number ' || n)), 5, 1, 0.008, 'standard', 'active', 'global', 'imported',
    'health', now(), now(), '[]', '{{}}'
FROM generate_series(1, {FACTS}) n, generate_series(1, {TENANTS}) t
"""


@pytest.fixture
async def crowd(urls: Urls) -> None:
    async with await psycopg.AsyncConnection.connect(urls.owner, autocommit=True) as conn:
        await conn.execute(FILL)
        await conn.execute("ANALYZE memory.facts")


def question(hands: Hands, mode: SearchMode, recipe: Recipe, gating: Gating) -> Question:
    filters = Filters(tuple(MemoryType), ("health", "global"), ("health",), hands.now, 0.2)
    asked = Asked("which note has number 7?", [0.05] * 384, "fake-bag-of-words@1")  # type: ignore[arg-type]
    return Question(asked, filters, recipe, mode, 50, "english", gating)


async def plan_of(engine: Engine, asked: Question) -> dict[str, Any]:
    async def explain(conn: Conn) -> dict[str, Any]:
        statement = "EXPLAIN (ANALYZE, FORMAT JSON) " + search._statement_for(asked)
        found = await conn.execute(statement, search._all_parameters("tenant-7", asked))  # type: ignore[arg-type]
        row = await found.fetchone()
        assert row is not None
        plan: dict[str, Any] = row["QUERY PLAN"][0]["Plan"]
        return plan

    return await engine.database.run("tenant-7", explain)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("gating", list(Gating))
@pytest.mark.parametrize("fusion", list(Fusion))
async def test_s1_a_read_touches_the_tenants_rows_only_and_by_index(
    engine: Engine, hands: Hands, fusion: Fusion, gating: Gating
) -> None:
    plan = await plan_of(engine, question(hands, SearchMode.HYBRID, Recipe(fusion), gating))
    on_facts = [node for node in nodes(plan) if node.get("Relation Name") == "facts"]
    scans = [node for node in on_facts if node["Actual Rows"] * node["Actual Loops"] >= FACTS]
    assert len(scans) == 1, "the tenant's rows are read once"
    assert [node["Node Type"] for node in on_facts if node["Node Type"] == "Seq Scan"] == []
    assert scans[0]["Actual Rows"] == FACTS
    assert scans[0].get("Rows Removed by Filter", 0) == 0, "no foreign row was looked at"


@pytest.mark.usefixtures("crowd")
@pytest.mark.parametrize("gating", list(Gating))
async def test_s1_the_plan_that_a_prepared_statement_settles_on_is_as_good(
    engine: Engine, hands: Hands, gating: Gating
) -> None:
    """After five calls the server may plan for any tenant: still by index, and no rows compared with rows."""
    text, _ = search._numbered(search._statement_for(question(hands, SearchMode.HYBRID, Recipe(), gating)))

    async def explain(conn: Conn) -> dict[str, Any]:
        found = await conn.execute("EXPLAIN (GENERIC_PLAN, FORMAT JSON) " + text)  # type: ignore[arg-type]
        row = await found.fetchone()
        assert row is not None
        plan: dict[str, Any] = row["QUERY PLAN"][0]["Plan"]
        return plan

    plan = await engine.database.run("tenant-7", explain)
    scanned = [node for node in nodes(plan) if node.get("Relation Name") == "facts"]
    assert [node["Node Type"] for node in scanned if node["Node Type"] == "Seq Scan"] == []
    joins = [node for node in nodes(plan) if node["Node Type"] in ("Nested Loop", "Hash Join", "Merge Join")]
    assert [join for join in joins if _rows_to_rows(join)] == []


ONE_ROW = {"asked", "total", "mean", "whole", "lexical"}
FEW_ROWS = {"gated", "cited", "best_facts", "contested", "lifted"}  # lifted is joined by hash to the few of the gate


def _rows_to_rows(join: dict[str, Any]) -> bool:
    """Two steps of many rows, joined to each other."""
    many = [
        {node["CTE Name"] for node in nodes(side) if "CTE Name" in node} - ONE_ROW - FEW_ROWS
        for side in join["Plans"][:2]
    ]
    return join["Node Type"] == "Nested Loop" and all(many)


@pytest.mark.usefixtures("crowd")
async def test_s1_what_comes_back_is_wide_only_behind_the_gate(engine: Engine, hands: Hands) -> None:
    """Content and metadata are fetched for what passed the gate, not for every row that was scored."""
    plan = await plan_of(engine, question(hands, SearchMode.HYBRID, Recipe(), Gating.BEST))
    fetched = [
        node["Actual Rows"] * node["Actual Loops"]
        for node in nodes(plan)
        if node.get("Relation Name") == "facts" and node.get("Alias") == "f"
    ]
    assert sum(fetched) == 50
    assert plan["Actual Rows"] == 50


async def test_s1_there_is_no_approximate_and_no_gin_index(urls: Urls) -> None:
    found = await rows(urls, "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'memory'")
    assert found
    assert [row["indexname"] for row in found if "USING btree" not in row["indexdef"]] == []


def test_the_statement_is_one(hands: Hands) -> None:
    text = search._statement_for(question(hands, SearchMode.HYBRID, Recipe(), Gating.BEST_OF_EACH))
    assert ";" not in text
    assert json.dumps(text).count("FROM memory.facts m") == 1
