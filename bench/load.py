"""Fills a database for the speed bench: a pool of texts once, then each tenant's rows by INSERT ... SELECT from it.

The rows are as `store_fact`, `store_episode` and `store_rule` leave them, without their events. They go in round by
round, one row of each tenant at a time, so that a tenant's rows lie as far apart as they can: the worst layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import psycopg
from pgvector import HalfVector
from pgvector.psycopg import register_vector_async
from psycopg import AsyncConnection

from butler_memory.domain.decay import DECAY_PER_DAY
from butler_memory.domain.kinds import Permanence, Role
from butler_memory.domain.predicates import Registry, other_words
from butler_memory.domain.text import key, subject_key
from butler_memory.security.principal import Principal
from corpus import Corpus, Fact, Vectors

BUTLER = "claude"
EPISODES_EACH = 30
RULES_EACH = 8
MOST_TENANTS = 90_000
ROWS_PER_STATEMENT = 20_000
# Coprime with every pool size that is used, so that a tenant's texts are all different.
STRIDE, OFFSET = 7919, 104_729

Owner = AsyncConnection[tuple[Any, ...]]
Advance = Callable[[int], None]


@dataclass(frozen=True)
class Shape:
    """How much there is, and from when."""

    facts: int  # per tenant
    pool: int
    now: datetime
    version: str  # of the vectors
    fades_below: float
    expires_below: float


async def connect(owner_url: str) -> Owner:
    conn = await psycopg.AsyncConnection.connect(owner_url, autocommit=True)
    await register_vector_async(conn)
    await conn.execute("SET work_mem = '256MB'; SET synchronous_commit = off; SET timezone = 'UTC'")
    return conn


def tenant_name(number: int) -> str:
    return f"tenant-{number:05}"


def principal(number: int) -> Principal:
    name = tenant_name(number)
    return Principal(name, BUTLER, Role.BUTLER, uuid5(NAMESPACE_URL, name))


async def loaded_tenants(conn: Owner) -> int:
    found = await conn.execute(
        "SELECT count(*) FROM memory.tenants WHERE tenant_id BETWEEN %s AND %s",
        [tenant_name(0), tenant_name(MOST_TENANTS)],
    )
    row = await found.fetchone()
    return int(row[0]) if row else 0


async def unused_large_tenant(conn: Owner) -> int:
    """A number beyond the others, new in a kept database too."""
    found = await conn.execute("SELECT count(*) FROM memory.tenants WHERE tenant_id > %s", [tenant_name(MOST_TENANTS)])
    row = await found.fetchone()
    return MOST_TENANTS + 1 + (int(row[0]) if row else 0)


async def some_fact(conn: Owner, tenant: int) -> UUID:
    found = await conn.execute("SELECT id FROM memory.facts WHERE tenant_id = %s LIMIT 1", [tenant_name(tenant)])
    row = await found.fetchone()
    assert row is not None
    return UUID(str(row[0]))


# --- the pool -------------------------------------------------------------------------------------------------------

_POOL = """
CREATE SCHEMA IF NOT EXISTS bench;
DROP TABLE IF EXISTS bench.pool;
CREATE UNLOGGED TABLE bench.pool (
    kind text, n int, subject text, predicate text, subject_key text, predicate_key text, single boolean,
    content text, searched text, permanence text, decay_rate float8, importance float8, confidence float8, scope text,
    maturity text, embedding halfvec STORAGE PLAIN,
    search_vector tsvector GENERATED ALWAYS AS (strip(to_tsvector('english', searched))) STORED,
    PRIMARY KEY (kind, n)
)
"""
_POOL_COLUMNS = (
    "kind, n, subject, predicate, subject_key, predicate_key, single, content, searched, permanence, decay_rate, "
    "importance, confidence, scope, maturity, embedding"
)


async def fill_pool(conn: Owner, corpus: Corpus) -> None:
    await conn.execute(_POOL)
    async with conn.cursor() as cursor, cursor.copy(f"COPY bench.pool ({_POOL_COLUMNS}) FROM STDIN") as copy:
        for row in _pool_rows(corpus):
            await copy.write_row(row)
    await conn.execute("ANALYZE bench.pool")


def _pool_rows(corpus: Corpus) -> Iterator[tuple[Any, ...]]:
    for n, (fact, vector) in enumerate(zip(corpus.facts, corpus.fact_vectors, strict=True)):
        yield _fact_row(n, fact, HalfVector(vector))
    yield from _text_rows("episode", corpus.episodes, corpus.episode_vectors)
    yield from _text_rows("rule", corpus.rules, corpus.rule_vectors)


def _fact_row(n: int, fact: Fact, vector: HalfVector) -> tuple[Any, ...]:
    # One fact in 200 is core memory: permanent and important.
    permanence = Permanence.PERMANENT if n % 200 == 0 else (Permanence.STABLE, Permanence.STANDARD)[n % 2]
    importance = 9.0 if n % 200 == 0 else 3.0 + n % 5
    scope = BUTLER if n % 10 < 3 else "global"
    predicate_key = Registry({}).find(fact.predicate).name
    searched = " ".join([fact.line, *(word.replace("_", " ") for word in other_words(predicate_key))])
    return (
        *("fact", n, fact.subject, fact.predicate, subject_key(fact.subject), key(predicate_key), bool(fact.values)),
        *(fact.content, searched, permanence, DECAY_PER_DAY[permanence], importance, (1.0, 0.9, 0.7)[n % 3], scope),
        *(None, vector),
    )


def _text_rows(kind: str, texts: Sequence[str], vectors: Vectors) -> Iterator[tuple[Any, ...]]:
    for n, (text, vector) in enumerate(zip(texts, vectors, strict=True)):
        maturity = ("candidate", "established", "proven", "candidate")[n % 4]
        scope = BUTLER if n % 2 else "global"
        yield (
            *(kind, n, None, None, None, None, None, text, text, Permanence.STANDARD, 0.008, 5.0, 0.8, scope),
            *(maturity, HalfVector(vector)),
        )


# --- the tenants ----------------------------------------------------------------------------------------------------

_TENANTS = """
INSERT INTO memory.tenants (tenant_id, digest_key, many_valued, created_at)
SELECT 'tenant-' || lpad(t::text, 5, '0'), decode(md5(t::text), 'hex'), true, %(now)s
FROM generate_series(%(first)s::int, %(last)s::int) t
"""
# Row j of tenant t, of `each` rows: the oldest first, over the last `days`; the n-th text of a pool of `pool`.
_ROWS = """
WITH picked AS (
    SELECT 'tenant-' || lpad(t::text, 5, '0') AS tenant, t, j, (t::bigint * %(offset)s + j::bigint * %(stride)s)
               %% %(pool)s AS n,
           %(now)s - (1 - (j - %(start)s + t / (%(last)s + 1.0)) / %(each)s) * %(days)s * interval '1 day' AS made
    FROM generate_series(%(from)s::int, %(to)s::int) j CROSS JOIN generate_series(%(first)s::int, %(last)s::int) t
)
"""
_CROSSES = (
    "CASE WHEN p.decay_rate > 0 THEN picked.made + ln(p.confidence / %({limit})s) / p.decay_rate * interval '1 day' END"
)
_FADING = f"{_CROSSES.format(limit='fades_below')}, {_CROSSES.format(limit='expires_below')}"
_JOINED = "FROM picked JOIN bench.pool p ON p.kind = '{kind}' AND p.n = picked.n ORDER BY picked.j, picked.t"

_FACTS = f"""
INSERT INTO memory.facts (tenant_id, id, version, subject, predicate, subject_key, predicate_key, slot, content,
    content_status, embedding, embedding_version, importance, confidence, decay_rate, permanence, validity, scope,
    source_kind, source_butler, fades_at, expires_at_conf, created_at, last_confirmed_at, tags, metadata, search_vector)
{_ROWS}
SELECT tenant, uuidv7(made - now()), 1, p.subject, p.predicate, p.subject_key, p.predicate_key,
       CASE WHEN p.single THEN '' ELSE md5(tenant || p.content) END, p.content,
       'plain', p.embedding, %(version)s, p.importance, p.confidence, p.decay_rate, p.permanence, 'active', p.scope,
       'user_stated', '{BUTLER}', {_FADING}, made, made, '[]', '{{}}', p.search_vector
{_JOINED.format(kind="fact")}
"""
_RULES = f"""
INSERT INTO memory.rules (tenant_id, id, version, content, content_status, meaning, embedding, embedding_version,
    importance, confidence, decay_rate, permanence, status, maturity, pinned, effectiveness_score, applied_count,
    success_count, harmful_count, scope, source_kind, source_butler, fades_at, expires_at_conf, created_at,
    last_confirmed_at, tags, metadata, search_vector)
{_ROWS}
SELECT tenant, uuidv7(made - now()), 1, p.content, 'plain', md5(p.content), p.embedding, %(version)s,
       p.importance, p.confidence, p.decay_rate, p.permanence, 'active', p.maturity, false, 0, 0,
       0, 0, p.scope, 'user_stated', '{BUTLER}', {_FADING}, made,
       made, '[]', '{{}}', p.search_vector
{_JOINED.format(kind="rule")}
"""
_EPISODES = f"""
INSERT INTO memory.episodes (tenant_id, id, version, state, butler, session_id, content, content_status, embedding,
    embedding_version, importance, consolidation_status, consolidation_attempts, occurred_at, created_at, expires_at,
    source_kind, tags, metadata, search_vector)
{_ROWS}
SELECT tenant, uuidv7(made - now()), 1, 'active', '{BUTLER}', md5(tenant || j / 5)::uuid, p.content, 'plain',
       p.embedding, %(version)s, 5, 'consolidated', 1, made, made, made + interval '7 days',
       'agent_inferred', '[]', '{{}}', p.search_vector
{_JOINED.format(kind="episode")}
"""


async def add_tenants(conn: Owner, shape: Shape, corpus: Corpus, first: int, last: int, advance: Advance) -> None:
    """Tenants `first` to `last`, each with its facts, rules and episodes."""
    await conn.execute(_TENANTS, {"now": shape.now, "first": first, "last": last})
    await _add(conn, shape, _EPISODES, (first, last), (0, EPISODES_EACH), 6.5, len(corpus.episodes), advance)
    await _add(conn, shape, _RULES, (first, last), (0, RULES_EACH), 80.0, len(corpus.rules), advance)
    await _add(conn, shape, _FACTS, (first, last), (0, shape.facts), 90.0, shape.pool, advance)


async def grow_tenant(conn: Owner, shape: Shape, tenant: int, rows: tuple[int, int], advance: Advance) -> None:
    """More facts for one tenant: number `rows[0]` up to `rows[1]`."""
    await _add(conn, shape, _FACTS, (tenant, tenant), rows, 1.0, shape.pool, advance)


async def _add(
    conn: Owner,
    shape: Shape,
    statement: str,
    tenants: tuple[int, int],
    rounds: tuple[int, int],
    days: float,
    pool: int,
    advance: Advance,
) -> None:
    count = tenants[1] - tenants[0] + 1
    step = max(1, ROWS_PER_STATEMENT // count)
    given = {
        "now": shape.now, "first": tenants[0], "last": tenants[1], "start": rounds[0], "each": rounds[1] - rounds[0],
        "days": days, "pool": pool, "stride": STRIDE, "offset": OFFSET, "version": shape.version,
        "fades_below": shape.fades_below, "expires_below": shape.expires_below,
    }  # fmt: skip
    for start in range(*rounds, step):
        stop = min(start + step, rounds[1])
        await conn.execute(statement, {**given, "from": start, "to": stop - 1})
        advance((stop - start) * count)


async def settle(conn: Owner) -> None:
    """What autovacuum would have done by the time anybody measures."""
    for table in ("facts", "rules", "episodes", "tenants", "tokens", "refs", "served_contexts"):
        await conn.execute(f"VACUUM (ANALYZE) memory.{table}")


async def database_bytes(conn: Owner) -> int:
    found = await conn.execute("SELECT pg_database_size(current_database())")
    row = await found.fetchone()
    return int(row[0]) if row else 0
