"""The schema is what SPEC appendix A says, and the database's closed sets are Python's (STYLE 2)."""

from __future__ import annotations

import dataclasses
import re
from enum import StrEnum
from typing import get_type_hints

import psycopg
import pytest

from butler_memory.domain import kinds
from butler_memory.domain.kinds import MemoryType
from butler_memory.domain.records import Episode, Fact, Rule
from butler_memory.postgres.changes import RECORDS, TABLES
from butler_memory.postgres.provision import Urls
from conftest import owner_connection, rows

ENUM_COLUMNS: dict[str, type[StrEnum]] = {
    "episodes.state": kinds.EpisodeState,
    "episodes.content_status": kinds.ContentStatus,
    "episodes.consolidation_status": kinds.ConsolidationStatus,
    "episodes.source_kind": kinds.SourceKind,
    "episode_tombstones.reason": kinds.TombstoneReason,
    "facts.content_status": kinds.ContentStatus,
    "facts.permanence": kinds.Permanence,
    "facts.validity": kinds.Validity,
    "facts.source_kind": kinds.SourceKind,
    "rules.content_status": kinds.ContentStatus,
    "rules.permanence": kinds.Permanence,
    "rules.status": kinds.RuleStatus,
    "rules.maturity": kinds.Maturity,
    "rules.source_kind": kinds.SourceKind,
    "rule_applications.outcome": kinds.ApplicationOutcome,
    "memory_links.source_type": kinds.MemoryType,
    "memory_links.target_type": kinds.MemoryType,
    "memory_links.relation": kinds.Relation,
    "refs.type": kinds.MemoryType,
    "memory_events.event_type": kinds.EventType,
    "memory_events.entity_type": kinds.MemoryType,
    "tokens.role": kinds.Role,
    "tokens.trigger_class": kinds.TriggerClass,
    "predicates.cardinality": kinds.Cardinality,
    "predicates.permanence": kinds.Permanence,
    "predicates.sensitivity": kinds.Sensitivity,
    "idempotency_keys.type": kinds.MemoryType,
    "reviews.entity_type": kinds.MemoryType,
    "shards.kind": kinds.JobName,
    "job_runs.job": kinds.JobName,
    "job_runs.outcome": kinds.RunOutcome,
    "new_vectors.type": kinds.MemoryType,
}
# Closed sets of tables whose code comes with a later issue: no Python enum yet. A new one must be listed.
WITHOUT_ENUM = {
    "embedding_versions.state", "consolidation_runs.outcome", "reviews.kind", "reviews.state",
    "served_contexts.status",
}  # fmt: skip

FRAME = (
    "tenant_id id version content content_status embedding embedding_version search_vector importance confidence"
    " decay_rate permanence scope source_kind source_butler source_episode_id source_session_id request_id"
    " supersedes_id superseded_at fades_at expires_at_conf created_at last_confirmed_at tags metadata"
)
APPENDIX_A = {
    "facts": f"{FRAME} subject predicate subject_key predicate_key slot validity valid_from valid_to",
    "rules": f"{FRAME} maturity status effectiveness_score applied_count success_count harmful_count original_content"
    " last_applied_at last_evaluated_at",
    "episodes": "tenant_id id version state butler session_id content content_status embedding embedding_version"
    " search_vector importance consolidated consolidation_status consolidation_attempts last_consolidation_error"
    " next_consolidation_retry_at occurred_at created_at expires_at request_id source_kind tags metadata",
    "episode_tombstones": "tenant_id id butler session_id",
    "refs": "tenant_id type id reference_count last_referenced_at",
    "memory_links": "tenant_id relation created_at",
    "memory_events": "id tenant_id event_type entity_type entity_id entity_version occurred_at actor request_id"
    " payload",
    "memory_event_bodies": "tenant_id event_id body",
    "rule_applications": "tenant_id rule_id session_id outcome reason request_id",
    "served_contexts": "tenant_id id",
    "consolidation_runs": "tenant_id id",
    "reviews": "tenant_id id",
    "job_runs": "tenant_id id job started_at finished_at outcome counts",
    "tokens": "tenant_id id token_hash butler role trigger_class revoked_at",
    "predicates": "tenant_id name cardinality temporal permanence sensitivity aliases",
    "idempotency_keys": "tenant_id key",
    "embedding_versions": "tenant_id version",
    "shards": "tenant_id butler kind next_run_at lease_token lease_until",
    "new_vectors": "tenant_id type id version embedding",
    "tenants": "tenant_id",
}


async def columns(urls: Urls) -> dict[str, dict[str, str]]:
    found = await rows(
        urls,
        "SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod) AS type FROM pg_class c"
        " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped"
        " WHERE c.relnamespace = 'memory'::regnamespace AND c.relkind = 'r' AND c.relname <> 'alembic_version'",
    )
    tables: dict[str, dict[str, str]] = {}
    for row in found:
        tables.setdefault(row["relname"], {})[row["attname"]] = row["type"]
    return tables


async def test_appendix_a_every_table_is_there_with_its_columns(urls: Urls) -> None:
    found = await columns(urls)
    assert found.keys() == APPENDIX_A.keys()
    for table, names in APPENDIX_A.items():
        assert set(names.split()) <= found[table].keys(), table
    for table in ("episodes", "facts", "rules"):
        assert found[table]["embedding"].endswith("halfvec")
        assert found[table]["search_vector"] == "tsvector"
        assert {found[table][name] for name in ("tags", "metadata")} == {"jsonb"}
    assert {found["facts"][name] for name in ("importance", "confidence", "decay_rate")} == {"double precision"}
    # Times have a zone (L6).
    assert not [t for types in found.values() for t in types.values() if t == "timestamp without time zone"]


async def test_appendix_a_a_record_has_every_column_but_what_search_reads(urls: Urls) -> None:
    found = await columns(urls)
    beside = {"embedding", "embedding_version", "search_vector", "consolidated"}
    for kind, table in TABLES.items():
        assert {field.name for field in dataclasses.fields(RECORDS[kind])} == found[table].keys() - beside


async def test_every_python_enum_equals_the_databases_check(urls: Urls) -> None:
    found = await rows(
        urls,
        "SELECT c.relname || '.' || a.attname AS place, pg_get_constraintdef(k.oid) AS said FROM pg_constraint k"
        " JOIN pg_class c ON c.oid = k.conrelid JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = k.conkey[1]"
        " WHERE k.contype = 'c' AND c.relnamespace = 'memory'::regnamespace AND k.conname LIKE '%%_known%%'",
    )
    checked = {row["place"]: set(re.findall(r"'([a-z_]+)'::text", row["said"])) for row in found}
    assert checked.keys() == ENUM_COLUMNS.keys() | WITHOUT_ENUM
    assert {place: checked[place] for place in ENUM_COLUMNS} == {
        place: {word.value for word in enum} for place, enum in ENUM_COLUMNS.items()
    }


def test_every_enum_of_a_record_is_a_checked_column() -> None:
    for kind, record in ((MemoryType.EPISODE, Episode), (MemoryType.FACT, Fact), (MemoryType.RULE, Rule)):
        for name, hint in get_type_hints(record).items():
            if isinstance(hint, type) and issubclass(hint, StrEnum):
                assert ENUM_COLUMNS[f"{TABLES[kind]}.{name}"] is hint


async def test_g1_row_level_security_is_on_and_forced_on_every_table(urls: Urls) -> None:
    found = await rows(
        urls,
        "SELECT relname, relrowsecurity, relforcerowsecurity FROM pg_class"
        " WHERE relnamespace = 'memory'::regnamespace AND relkind IN ('r', 'p') AND relname <> 'alembic_version'",
    )
    assert {row["relname"] for row in found} == APPENDIX_A.keys()
    assert [row["relname"] for row in found if not (row["relrowsecurity"] and row["relforcerowsecurity"])] == []


async def test_g1_every_key_starts_with_the_tenant_which_is_never_empty(urls: Urls) -> None:
    found = await rows(
        urls,
        "SELECT c.relname, a.attname FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid"
        " JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = i.indkey[0]"
        " WHERE i.indisprimary AND c.relnamespace = 'memory'::regnamespace AND c.relname <> 'alembic_version'",
    )
    assert {row["relname"]: row["attname"] for row in found} == dict.fromkeys(APPENDIX_A, "tenant_id")
    empty = await rows(
        urls,
        "SELECT c.relname FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid"
        " WHERE k.contype = 'c' AND pg_get_constraintdef(k.oid) = 'CHECK ((tenant_id <> ''''::text))'",
    )
    assert {row["relname"] for row in empty} == APPENDIX_A.keys()


async def test_l2_the_application_cannot_rewrite_history(urls: Urls) -> None:
    found = await rows(
        urls,
        "SELECT t AS name, p AS privilege FROM unnest(%s::text[]) t, unnest(%s::text[]) p"
        " WHERE has_table_privilege(%s, 'memory.' || t, p) OR has_table_privilege(%s, 'memory.' || t, p)",
        ["memory_events", "memory_links", "rule_applications", "episode_tombstones"],
        ["UPDATE", "DELETE", "TRUNCATE"],
        urls.app_role,
        urls.worker_role,
    )
    assert found == []


async def test_l2_the_application_may_not_delete_facts_and_rules(urls: Urls) -> None:
    for table in ("facts", "rules"):
        async with await psycopg.AsyncConnection.connect(urls.app) as conn:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                await conn.execute(f"DELETE FROM memory.{table}")


async def test_f3_one_live_fact_per_key_by_a_partial_unique_index(urls: Urls) -> None:
    [index] = await rows(
        urls,
        "SELECT i.indisunique, pg_get_expr(i.indpred, i.indrelid) AS predicate,"
        " (SELECT array_agg(a.attname::text ORDER BY k.place) FROM unnest(i.indkey) WITH ORDINALITY k (number, place)"
        "   JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.number) AS columns"
        " FROM pg_index i WHERE i.indexrelid = 'memory.facts_live_key'::regclass",
    )
    assert index["indisunique"]
    assert index["columns"] == ["tenant_id", "scope", "subject_key", "predicate_key", "slot"]
    assert set(re.findall(r"'(\w+)'", index["predicate"])) == {word.value for word in kinds.LIVE_VALIDITY}


async def test_s1_no_approximate_or_text_index_exists(urls: Urls) -> None:
    found = await rows(
        urls,
        "SELECT DISTINCT am.amname FROM pg_class c JOIN pg_am am ON am.oid = c.relam"
        " WHERE c.relnamespace = 'memory'::regnamespace AND c.relkind = 'i'",
    )
    assert [row["amname"] for row in found] == ["btree"]


async def test_e2_consolidated_is_a_stored_projection_of_the_status(urls: Urls) -> None:
    found = await rows(
        urls,
        "SELECT attgenerated::text AS kind FROM pg_attribute"
        " WHERE attrelid = 'memory.episodes'::regclass AND attname = 'consolidated'",
    )
    assert found == [{"kind": "s"}]


async def test_l6_no_default_of_the_database_decides_a_time_or_an_id(urls: Urls) -> None:
    found = await rows(
        urls,
        "SELECT c.relname, a.attname FROM pg_attrdef d JOIN pg_class c ON c.oid = d.adrelid"
        " JOIN pg_attribute a ON a.attrelid = d.adrelid AND a.attnum = d.adnum"
        " WHERE c.relnamespace = 'memory'::regnamespace AND a.attgenerated = ''",
    )
    assert found == []


RANGES = [
    ("facts", "importance", "0.9"),
    ("facts", "importance", "10.1"),
    ("facts", "confidence", "1.1"),
    ("facts", "confidence", "-0.1"),
    ("facts", "importance", "'NaN'"),
    ("facts", "confidence", "'NaN'"),
    ("facts", "decay_rate", "-1"),
    ("facts", "version", "0"),
    ("facts", "tenant_id", "''"),
    ("facts", "subject_key", "''"),
    ("facts", "valid_to", "valid_from - interval '1 s'"),
    ("facts", "tags", "'{}'"),
    ("facts", "metadata", "'[]'"),
    ("facts", "scope", "''"),
]


@pytest.mark.parametrize(("table", "column", "value"), RANGES)
async def test_ranges_are_checked_by_the_database_too(urls: Urls, table: str, column: str, value: str) -> None:
    async with owner_connection(urls) as conn:
        await conn.execute(INSERT_FACT)
        with pytest.raises(psycopg.errors.CheckViolation):
            await conn.execute(f"UPDATE memory.{table} SET {column} = {value}")  # type: ignore[arg-type]


INSERT_FACT = """
    INSERT INTO memory.facts (tenant_id, id, version, subject, predicate, subject_key, predicate_key, slot, content,
        content_status, importance, confidence, decay_rate, permanence, validity, scope, source_kind, source_butler,
        valid_from, created_at, last_confirmed_at, tags, metadata)
    VALUES ('home', gen_random_uuid(), 1, 's', 'p', 's', 'p', '', 'c', 'plain', 5, 1, 0, 'standard', 'active', 'global',
        'imported', 'health', now(), now(), now(), '[]', '{}')
"""


async def test_design_2_the_owners_policy_lets_a_data_migration_reach_all_rows(urls: Urls) -> None:
    async with owner_connection(urls) as conn:
        await conn.execute(INSERT_FACT)
        await conn.execute(INSERT_FACT.replace("'home'", "'away'"))
        done = await conn.execute("UPDATE memory.facts SET importance = 6")
        assert done.rowcount == 2
