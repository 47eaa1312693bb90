"""Search in one pass over a tenant's rows: both signals, both ranks and their fusion in one statement (DESIGN 3).

Exact within the tenant: no approximate index, every filter before the limit. The steps, one per CTE:

    asked      the query's lexemes, as an array and as an OR query
    scanned    every row that passes the filters, with its effective confidence; `visible`: neither faded nor shadowed
    mean       the middle of the tenant's vectors (what all its texts share says nothing about any of them)
    matched    (row, lexeme) for the query's lexemes, and how many rows have it
    weighed    each lexeme's IDF within what is visible
    heaviest   the query's rarest lexemes: a long prompt is not less about a memory for all else that it says
    lexical    sum of matched IDF of each row, as an array by row number
    signals    cosine and nearness (cosine without the middle); that sum / sqrt(distinct lexemes); the covered part
    scaled     both signals between 0 and 1, and both ranks
    fused      convex or reciprocal-rank fusion
    cited      the best facts, by the episodes they were derived from
    lifted     the fused score with a little of that, and of an episode's neighbours in its session
    gated      the best of all; or, for a context, the best (without a prompt, the newest) of each type, and core memory
    contested  memories that a live one contradicts

No step joins rows to rows: PostgreSQL knows no sizes of what it makes on the way, expects one row, and would compare
every row with every other. Hence the array, the windows and the sub-selects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from functools import lru_cache
from typing import Any

from pgvector import HalfVector
from psycopg import AsyncRawCursor
from psycopg.rows import DictRow, dict_row
from psycopg.types.json import Jsonb

from butler_memory.domain.kinds import MemoryType, SearchMode, Tier
from butler_memory.domain.ranking import CLEARLY_NEAR, CORE_IMPORTANCE, Candidate, Fusion, Recipe
from butler_memory.embedding.ports import Vector
from butler_memory.postgres.database import Conn
from butler_memory.postgres.important import important


@dataclass(frozen=True)
class Filters:
    """What a row must be to be looked at. `scopes` nearest first; None means all of the tenant, () none of it."""

    types: tuple[MemoryType, ...]
    scopes: tuple[str, ...] | None
    butlers: tuple[str, ...] | None
    now: datetime
    min_confidence: float
    tier: Tier | None = None
    unconfirmed: bool = False  # important facts are served although they have faded (J3)
    tags: tuple[str, ...] = ()
    subject_key: str | None = None
    predicate_keys: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    valid_at: datetime | None = None


@dataclass(frozen=True)
class Asked:
    text: str
    vector: Vector | None
    version: str


@dataclass(frozen=True)
class Found:
    candidates: list[Candidate]
    decayed: int
    shadowed: int
    version: str = ""  # whose vectors the tenant answers from, at the moment of the question


# A question is measured by its rarest lexemes: this many, or the square root of how many a long prompt has.
COUNTED_LEXEMES = 8
# The middle of a large tenant's vectors is that of about so many of them, taken evenly.
SAMPLED_ROWS = 500

_EFFECTIVE = (
    "{t}.confidence * exp(-{t}.decay_rate * greatest(0, extract(epoch FROM %(now)s - {t}.last_confirmed_at) / 86400.0))"
)

_RULE_EFFECTIVE = f"CASE WHEN m.maturity = 'anti_pattern' THEN m.confidence ELSE {_EFFECTIVE.format(t='m')} END"

# J3: an important fact that has faded is not lost: it is served, and said to be unconfirmed.
_SERVED = "({effective} >= %(min_confidence)s OR (%(unconfirmed)s AND {important}))"

_HELD_THEN = """(%(valid_at)s::timestamptz IS NULL OR (({t}.valid_from IS NULL OR {t}.valid_from <= %(valid_at)s)
               AND ({t}.valid_to IS NULL OR {t}.valid_to > %(valid_at)s)))"""

_SCAN = {
    MemoryType.FACT: f"""
        SELECT 'fact' AS type, m.id, m.created_at, NULL::timestamptz AS occurred_at, NULL::uuid AS session_id,
               m.embedding, m.embedding_version, m.search_vector,
               {_EFFECTIVE.format(t="m")} AS effective, {{shadowed}} AS shadowed,
               {_SERVED.format(effective=_EFFECTIVE.format(t="m"), important=important("m"))} AS served,
               m.permanence = 'permanent' AND m.importance >= {CORE_IMPORTANCE} AS core
        FROM memory.facts m
        WHERE m.tenant_id = %(tenant)s AND m.validity IN ('active', 'fading') AND {{common}}
          AND (%(scopes)s::text[] IS NULL OR m.scope = ANY(%(scopes)s))
          AND (%(subject)s::text IS NULL OR m.subject_key = %(subject)s)
          AND (%(predicates)s::text[] IS NULL OR m.predicate_key = ANY(%(predicates)s))
          AND (%(tier)s::text IS NULL OR (m.permanence IN ('permanent', 'stable')) = (%(tier)s = 'long'))
          AND {_HELD_THEN.format(t="m")}""",
    MemoryType.RULE: f"""
        SELECT 'rule' AS type, m.id, m.created_at, NULL::timestamptz AS occurred_at, NULL::uuid AS session_id,
               m.embedding, m.embedding_version, m.search_vector,
               {_RULE_EFFECTIVE} AS effective,
               false AS shadowed,
               {_RULE_EFFECTIVE} >= %(min_confidence)s AS served,
               m.maturity = 'proven' AND m.scope = 'global' AS core
        FROM memory.rules m
        WHERE m.tenant_id = %(tenant)s AND m.status IN ('active', 'fading') AND {{common}}
          AND (%(scopes)s::text[] IS NULL OR m.scope = ANY(%(scopes)s))
          AND (%(tier)s::text IS NULL OR (m.maturity <> 'candidate') = (%(tier)s = 'long'))""",
    MemoryType.EPISODE: """
        SELECT 'episode' AS type, m.id, m.created_at, m.occurred_at, m.session_id, m.embedding, m.embedding_version,
               m.search_vector, 1.0::float8 AS effective, false AS shadowed, true AS served, false AS core
        FROM memory.episodes m
        WHERE m.tenant_id = %(tenant)s AND m.state = 'active' AND {common}
          AND (%(butlers)s::text[] IS NULL OR m.butler = ANY(%(butlers)s))""",
}

_COMMON = """
    (%(tags)s::jsonb IS NULL OR m.tags @> %(tags)s)
    AND (%(since)s::timestamptz IS NULL OR {when} >= %(since)s)
    AND (%(until)s::timestamptz IS NULL OR {when} < %(until)s)"""

# F12: a fact in a nearer scope hides one further out on the same single-valued key, while it is to be seen itself.
# A caller has at most three scopes.
_SHADOWED = """CASE WHEN m.slot = '' THEN CASE array_position(%(scopes)s::text[], m.scope)
               WHEN 2 THEN {held_in_first} WHEN 3 THEN {held_in_first_two} ELSE false END ELSE false END"""
_HELD = f"""(m.subject_key, m.predicate_key) IN (
                   SELECT n.subject_key, n.predicate_key FROM memory.facts n
                   WHERE n.tenant_id = %(tenant)s AND n.validity IN ('active', 'fading') AND n.slot = ''
                     AND n.scope = ANY ((%(scopes)s::text[])[:{{places}}])
                     AND {_SERVED.format(effective=_EFFECTIVE.format(t="n"), important=important("n"))}
                     AND {_HELD_THEN.format(t="n")})"""

_IDF = "ln(1 + (total.n - {df} + 0.5) / ({df} + 0.5))"

_RANK = """
WITH asked AS MATERIALIZED (
    SELECT tsvector_to_array(to_tsvector(%(config)s::regconfig, %(text)s)) AS lexemes,
           replace(plainto_tsquery(%(config)s::regconfig, %(text)s)::text, ' & ', ' | ')::tsquery AS any_of
),
scanned AS MATERIALIZED (
    SELECT row_number() OVER () AS n, u.type, u.id, u.created_at, u.occurred_at, u.session_id, u.effective, u.core,
           u.served, u.shadowed, u.search_vector, u.embedding, u.served AND NOT u.shadowed AS visible,
           u.embedding_version = %(version)s AND %(vector)s::halfvec IS NOT NULL AS has_vector
    FROM ({sources}) u
),
total AS MATERIALIZED (SELECT count(*)::float8 AS n FROM scanned WHERE visible),
mean AS MATERIALIZED (
    SELECT avg(embedding) AS middle
    FROM scanned CROSS JOIN total
    WHERE visible AND has_vector AND %(mean_shift)s > 0 AND mod(scanned.n, greatest(1, total.n::bigint / {sampled})) = 0
),
matched AS MATERIALIZED (
    SELECT n, lexeme, count(*) OVER (PARTITION BY lexeme) AS df
    FROM (SELECT n, unnest(tsvector_to_array(
                     ts_delete(search_vector, tsvector_to_array(ts_delete(search_vector, lexemes))))) AS lexeme
          FROM scanned CROSS JOIN asked WHERE visible AND search_vector @@ any_of) words
),
weighed AS (
    SELECT {idf_wanted} AS idf
    FROM (SELECT unnest(lexemes) AS lexeme FROM asked) wanted CROSS JOIN total
    LEFT JOIN (SELECT lexeme, max(df) AS df FROM matched GROUP BY lexeme) seen USING (lexeme)
),
heaviest AS (
    SELECT idf, row_number() OVER (ORDER BY idf DESC) <= greatest({counted}, sqrt(count(*) OVER ())) AS counts
    FROM weighed
),
whole AS MATERIALIZED (SELECT nullif(sum(idf) FILTER (WHERE counts), 0) AS idf FROM heaviest),
lexical AS MATERIALIZED (
    SELECT array_agg(idf ORDER BY n) AS idfs
    FROM (SELECT n, sum(idf) AS idf
          FROM (SELECT n, 0::float8 AS idf FROM scanned
                UNION ALL SELECT matched.n, {idf_matched} FROM matched CROSS JOIN total) each
          GROUP BY n) by_row
),
signals AS MATERIALIZED (
    SELECT n, type, id, created_at, occurred_at, session_id, effective, core, cosine, nearness,
           covered / sqrt(greatest(length(search_vector), 1)) AS lexical,
           least(1, covered / (SELECT idf FROM whole)) AS coverage
    FROM (SELECT *, (SELECT idfs FROM lexical)[n] AS covered,
                 CASE WHEN has_vector THEN 1 - (embedding <=> %(vector)s::halfvec) END AS cosine,
                 CASE WHEN has_vector THEN -(embedding <#> %(vector)s::halfvec)
                     + coalesce(%(mean_shift)s * (embedding <#> (SELECT middle FROM mean)), 0) END AS nearness
          FROM scanned WHERE visible) measured
),
scaled AS (
    SELECT *,
           coalesce((nearness - min(nearness) OVER ()) / nullif(max(nearness) OVER () - min(nearness) OVER (), 0),
                    CASE WHEN nearness IS NULL THEN 0 ELSE 1 END) AS dense_scaled,
           coalesce(lexical / nullif(max(lexical) OVER (), 0), 0) AS lexical_scaled,
           CASE WHEN nearness IS NOT NULL THEN rank() OVER (ORDER BY nearness DESC NULLS LAST) END AS dense_rank,
           CASE WHEN lexical > 0 THEN rank() OVER (ORDER BY lexical DESC) END AS lexical_rank
    FROM signals
),
fused AS MATERIALIZED (
    SELECT *, {fusion} AS own_score FROM scaled
),
{cited}
lifted AS MATERIALIZED ({lifted}),
gated AS MATERIALIZED ({gated}),
contested AS MATERIALIZED ({contested})
SELECT g.type, g.id, g.created_at, g.fused, g.cosine, g.lexical, g.coverage, g.dense_rank, g.lexical_rank,
       g.effective, refs.last_referenced_at, coalesce(refs.reference_count, 0) AS reference_count,
       (SELECT count(*) FROM scanned WHERE NOT served AND NOT shadowed
          AND (search_vector @@ (SELECT any_of FROM asked)
               OR (has_vector AND 1 - (embedding <=> %(vector)s::halfvec) >= {near}))) AS decayed,
       (SELECT count(*) FROM scanned WHERE shadowed) AS shadowed,
       (SELECT t.embedding_version FROM memory.tenants t WHERE t.tenant_id = %(tenant)s) AS answers_from,
       {columns}
FROM (SELECT 1) AS always
LEFT JOIN gated g ON true
{joins}
ORDER BY g.fused DESC, g.created_at DESC, g.id
"""

_FUSION = {
    (SearchMode.SEMANTIC, Fusion.CONVEX): "coalesce(nearness, -2)",
    (SearchMode.KEYWORD, Fusion.CONVEX): "lexical",
    (SearchMode.HYBRID, Fusion.CONVEX): "%(dense_share)s * dense_scaled + (1 - %(dense_share)s) * lexical_scaled",
    (SearchMode.HYBRID, Fusion.RRF): (
        "coalesce(1.0::float8 / (%(k)s + dense_rank), 0) + coalesce(1.0::float8 / (%(k)s + lexical_rank), 0)"
    ),
}
_ADMITTED = {
    SearchMode.SEMANTIC: "nearness IS NOT NULL",
    SearchMode.KEYWORD: "lexical > 0",
    SearchMode.HYBRID: "nearness IS NOT NULL OR lexical > 0",
}
_BY_SCORE = "fused DESC, created_at DESC, id"
_BY_AGE = "coalesce(occurred_at, created_at) DESC, id"
_FIRST = "SELECT {what} FROM lifted WHERE {which} ORDER BY {order} LIMIT %(gate)s"


_CITED = """
best_facts AS (SELECT id, own_score FROM fused WHERE type = 'fact' ORDER BY own_score DESC, id LIMIT %(gate)s),
cited AS MATERIALIZED (
    SELECT l.target_id AS id, max(b.own_score) AS score
    FROM best_facts b JOIN memory.memory_links l
      ON l.tenant_id = %(tenant)s AND l.source_type = 'fact' AND l.source_id = b.id AND l.target_type = 'episode'
         AND l.relation = 'derived_from'
    GROUP BY l.target_id
),"""
_OWN = "SELECT fused.*, own_score AS fused FROM fused"
_LIFTED = f"""
    SELECT fused.*, own_score + %(neighbours)s * (coalesce(lag(own_score) OVER in_session, 0)
                                                  + coalesce(lead(own_score) OVER in_session, 0)) {{from_fact}} AS fused
    FROM fused {{joined}} WHERE type = 'episode'
    WINDOW in_session AS (PARTITION BY coalesce(session_id, fused.id) ORDER BY occurred_at, fused.id)
    UNION ALL {_OWN} WHERE type <> 'episode'"""
_FROM_FACT = "+ %(cited)s * coalesce(cited.score, 0)"
_WITH_CITED = "LEFT JOIN cited ON cited.id = fused.id"

_CONTESTED = """
    SELECT pair.id
    FROM (SELECT l.source_id AS id, l.target_id AS other FROM memory.memory_links l
          WHERE l.tenant_id = %(tenant)s AND l.relation = 'contradicts'
          UNION ALL
          SELECT l.target_id, l.source_id FROM memory.memory_links l
          WHERE l.tenant_id = %(tenant)s AND l.relation = 'contradicts') pair
    LEFT JOIN memory.facts f ON f.tenant_id = %(tenant)s AND f.id = pair.other
    LEFT JOIN memory.rules r ON r.tenant_id = %(tenant)s AND r.id = pair.other
    WHERE coalesce(f.validity, r.status) IN ('active', 'fading')"""

# What a result shows, whichever table it is from.
_COLUMNS = """
    coalesce(f.content, r.content, e.content) AS content, f.subject, f.predicate,
    coalesce(f.scope, r.scope, e.butler) AS scope,
    coalesce(f.validity, r.status, e.state) AS state,
    coalesce(f.permanence, r.permanence) AS permanence, r.maturity,
    coalesce(f.source_kind, r.source_kind, e.source_kind) AS source_kind,
    coalesce(f.importance, r.importance, e.importance) AS importance,
    f.valid_from, f.valid_to, e.occurred_at, coalesce(f.last_confirmed_at, r.last_confirmed_at) AS last_confirmed_at,
    coalesce(f.tags, r.tags, e.tags) AS tags, coalesce(f.metadata, r.metadata, e.metadata) AS metadata,
    g.id IN (SELECT id FROM contested) AS contested,
    g.type = 'fact' AND g.effective < %(min_confidence)s AS unconfirmed,
    coalesce(f.source_episode_id, r.source_episode_id) AS source_episode_id,
    coalesce(f.source_session_id, r.source_session_id, e.session_id) AS source_session_id"""
_JOINS = """
LEFT JOIN memory.refs refs ON refs.tenant_id = %(tenant)s AND refs.type = g.type AND refs.id = g.id
LEFT JOIN memory.facts f ON g.type = 'fact' AND f.tenant_id = %(tenant)s AND f.id = g.id
LEFT JOIN memory.rules r ON g.type = 'rule' AND r.tenant_id = %(tenant)s AND r.id = g.id
LEFT JOIN memory.episodes e ON g.type = 'episode' AND e.tenant_id = %(tenant)s AND e.id = g.id"""


class Gating(Enum):
    """Which rows come through the gate."""

    BEST = auto()  # the best of all
    BEST_OF_EACH = auto()  # of each type, and core memory
    NEWEST_OF_EACH = auto()  # the same where nothing is asked


@dataclass(frozen=True)
class Question:
    """One thing asked of `ranked`."""

    asked: Asked
    filters: Filters
    recipe: Recipe
    mode: SearchMode
    gate: int
    text_config: str
    gating: Gating = Gating.BEST


async def ranked(conn: Conn, tenant: str, question: Question) -> Found:
    """The `gate` best rows for a question, best first, with the signals that made them so."""
    return (await ranked_many(conn, tenant, [question]))[0]


async def ranked_many(conn: Conn, tenant: str, questions: Sequence[Question]) -> list[Found]:
    """All questions are sent before the first answer is read: one round trip (C8)."""
    async with conn.pipeline():
        cursors = [await _sent(conn, _statement_for(q), _all_parameters(tenant, q)) for q in questions]
        answers = [await cursor.fetchall() for cursor in cursors]
    return [_found(rows, question.asked.version) for rows, question in zip(answers, questions, strict=True)]


def _found(rows: Sequence[dict[str, Any]], version: str) -> Found:
    first = rows[0]  # there is always one, if only to say this
    candidates = [_candidate(row) for row in rows if row["id"] is not None]
    return Found(candidates, first["decayed"], first["shadowed"], first["answers_from"] or version)


async def _sent(conn: Conn, statement: str, parameters: dict[str, Any]) -> AsyncRawCursor[DictRow]:
    """Parsed by us once, not by the driver at every call, and by the server once for each connection."""
    text, names = _numbered(statement)
    cursor: AsyncRawCursor[DictRow] = AsyncRawCursor(conn, row_factory=dict_row)
    return await cursor.execute(text.encode(), [parameters[name] for name in names], prepare=True)


@lru_cache(maxsize=64)
def _numbered(statement: str) -> tuple[str, tuple[str, ...]]:
    """`%(name)s` as `$1`, and which name each number stands for."""
    names = tuple(dict.fromkeys(_PLACEHOLDER.findall(statement)))
    return _PLACEHOLDER.sub(lambda found: f"${names.index(found[1]) + 1}", statement), names


_PLACEHOLDER = re.compile(r"%\((\w+)\)s")


def _all_parameters(tenant: str, question: Question) -> dict[str, Any]:
    asked, recipe = question.asked, question.recipe
    return _parameters(tenant, question.filters) | {
        "text": asked.text,
        "vector": None if asked.vector is None else HalfVector(asked.vector),
        "version": asked.version,
        "config": question.text_config,
        "gate": question.gate,
        "k": recipe.k,
        "dense_share": recipe.dense_share,
        "mean_shift": recipe.mean_shift,
        "neighbours": recipe.neighbours,
        "cited": recipe.cited,
    }


def _statement_for(question: Question) -> str:
    return _statement(question.filters.types, question.mode, question.recipe, question.gating)


@lru_cache(maxsize=64)
def _statement(types: tuple[MemoryType, ...], mode: SearchMode, recipe: Recipe, gating: Gating) -> str:
    fusion = Fusion.CONVEX if mode is not SearchMode.HYBRID else recipe.fusion
    # What lifts adds to a score between 0 and 1; ranks and raw nearness are left as they are.
    lifts = mode is SearchMode.HYBRID and fusion is Fusion.CONVEX and MemoryType.EPISODE in types
    cites = lifts and MemoryType.FACT in types and recipe.cited > 0
    lifted = _LIFTED.format(from_fact=_FROM_FACT if cites else "", joined=_WITH_CITED if cites else "")
    return _RANK.format(
        sources=_sources(types),
        idf_wanted=_IDF.format(df="coalesce(seen.df, 0)"),
        idf_matched=_IDF.format(df="matched.df"),
        fusion=_FUSION[(mode, fusion)],
        cited=_CITED if cites else "",
        lifted=lifted if lifts else _OWN,
        gated=_gate(types, _ADMITTED[mode], gating),
        contested=_CONTESTED,
        columns=_COLUMNS,
        joins=_JOINS,
        counted=COUNTED_LEXEMES,
        sampled=SAMPLED_ROWS,
        near=CLEARLY_NEAR if mode is not SearchMode.KEYWORD else 2,  # no cosine is over 1
    )


def _gate(types: tuple[MemoryType, ...], admitted: str, gating: Gating) -> str:
    if gating is Gating.BEST:
        return _FIRST.format(what="*", which=admitted, order=_BY_SCORE)
    which, order = (admitted, _BY_SCORE) if gating is Gating.BEST_OF_EACH else ("true", _BY_AGE)
    wanted = [f"({which}) AND type = '{kind}'" for kind in types]
    parts = [_FIRST.format(what="n", which=each, order=order) for each in wanted]
    parts.append(_FIRST.format(what="n", which="core", order=_BY_SCORE))
    return f"SELECT * FROM lifted WHERE n IN ({' UNION ALL '.join(f'({part})' for part in parts)})"


def _sources(types: Sequence[MemoryType]) -> str:
    return " UNION ALL ".join(
        _SCAN[kind].format(
            common=_COMMON.format(when="m.occurred_at" if kind is MemoryType.EPISODE else "m.created_at"),
            shadowed=_SHADOWED.format(held_in_first=_HELD.format(places=1), held_in_first_two=_HELD.format(places=2)),
        )
        for kind in types
    )


def _parameters(tenant: str, filters: Filters) -> dict[str, Any]:
    return {
        "tenant": tenant,
        "now": filters.now,
        "scopes": None if filters.scopes is None else list(filters.scopes),
        "butlers": None if filters.butlers is None else list(filters.butlers),
        "min_confidence": filters.min_confidence,
        "tier": filters.tier,
        "unconfirmed": filters.unconfirmed,
        "tags": Jsonb(list(filters.tags)) if filters.tags else None,
        "subject": filters.subject_key,
        "predicates": list(filters.predicate_keys) or None,
        "since": filters.since,
        "until": filters.until,
        "valid_at": filters.valid_at,
    }


def _candidate(row: dict[str, Any]) -> Candidate:
    return Candidate(
        type=MemoryType(row["type"]),
        id=row["id"],
        created_at=row["created_at"],
        fused=row["fused"],
        cosine=row["cosine"],
        lexical=row["lexical"],
        coverage=row["coverage"],
        dense_rank=row["dense_rank"],
        lexical_rank=row["lexical_rank"],
        effective_confidence=row["effective"],
        last_referenced_at=row["last_referenced_at"],
        row=row,
    )


async def newest(conn: Conn, tenant: str, filters: Filters, limit: int) -> Found:
    """Filters without a question browse, newest first (S4)."""
    statement = _BROWSE.format(sources=_sources(filters.types), contested=_CONTESTED, columns=_COLUMNS, joins=_JOINS)
    found = await _sent(conn, statement, _parameters(tenant, filters) | {"gate": limit})
    rows = await found.fetchall()
    return Found([_candidate(row) for row in rows if row["id"] is not None], rows[0]["decayed"], rows[0]["shadowed"])


_BROWSE = """
WITH scanned AS MATERIALIZED ({sources}),
gated AS MATERIALIZED (
    SELECT type, id, created_at, effective FROM scanned
    WHERE served AND NOT shadowed
    ORDER BY coalesce(occurred_at, created_at) DESC, id LIMIT %(gate)s
),
contested AS MATERIALIZED ({contested})
SELECT g.type, g.id, g.created_at, 0.0::float8 AS fused, NULL::float8 AS cosine, 0.0::float8 AS lexical,
       NULL::float8 AS coverage, NULL::int AS dense_rank, NULL::int AS lexical_rank, g.effective,
       refs.last_referenced_at, coalesce(refs.reference_count, 0) AS reference_count,
       (SELECT count(*) FROM scanned WHERE NOT served AND NOT shadowed) AS decayed,
       (SELECT count(*) FROM scanned WHERE shadowed) AS shadowed,
       {columns}
FROM (SELECT 1) AS always
LEFT JOIN gated g ON true
{joins}
ORDER BY coalesce(e.occurred_at, g.created_at) DESC, g.id
"""
