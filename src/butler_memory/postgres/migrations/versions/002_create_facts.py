"""Facts: what is true; one live row per key and slot (F3)."""

from butler_memory.postgres.migrations import tables as t

revision = "memory_002"
down_revision = "memory_001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    t.run(
        f"""
        CREATE TABLE memory.facts (
            {t.TENANT},
            id uuid NOT NULL,
            version int NOT NULL CHECK (version >= 1),
            subject text,
            predicate text,
            subject_key text NOT NULL CHECK (subject_key <> ''),
            predicate_key text NOT NULL CHECK (predicate_key <> ''),
            slot text NOT NULL,
            content text,
            content_status text NOT NULL, {t.one_of("content_status", *t.CONTENT_STATUS)},
            embedding halfvec,
            embedding_version text,
            importance float8 NOT NULL CHECK (importance BETWEEN 1 AND 10),
            confidence float8 NOT NULL CHECK (confidence >= 0 AND confidence <= 1),
            decay_rate float8 NOT NULL CHECK (decay_rate >= 0),
            permanence text NOT NULL, {t.one_of("permanence", *t.PERMANENCE)},
            validity text NOT NULL,
            {t.one_of("validity", "active", "fading", "superseded", "expired", "retracted")},
            scope text NOT NULL CHECK (scope <> ''),
            source_kind text NOT NULL, {t.one_of("source_kind", *t.SOURCE_KIND)},
            source_butler text NOT NULL,
            source_episode_id uuid,
            source_session_id uuid,
            request_id text,
            supersedes_id uuid,
            superseded_at timestamptz,
            valid_from timestamptz,
            valid_to timestamptz,
            fades_at timestamptz,
            expires_at_conf timestamptz,
            created_at timestamptz NOT NULL,
            last_confirmed_at timestamptz NOT NULL,
            {t.JSON_COLUMNS},
            PRIMARY KEY (tenant_id, id),
            FOREIGN KEY (tenant_id, supersedes_id) REFERENCES memory.facts (tenant_id, id),
            CONSTRAINT valid_range CHECK (valid_to >= valid_from)
        ) WITH ({t.HOT_ROWS})
        """
    )
    t.run("ALTER TABLE memory.facts ALTER COLUMN embedding SET STORAGE PLAIN")
    t.run(
        "CREATE UNIQUE INDEX facts_live_key ON memory.facts (tenant_id, scope, subject_key, predicate_key, slot)"
        " WHERE validity IN ('active', 'fading')"
    )
    t.run("CREATE INDEX facts_by_key ON memory.facts (tenant_id, subject_key, predicate_key, created_at)")
    t.run("CREATE INDEX facts_by_time ON memory.facts (tenant_id, created_at DESC, id)")
    t.run("CREATE INDEX facts_to_fade ON memory.facts (tenant_id, fades_at) WHERE validity = 'active'")
    t.run(
        "CREATE INDEX facts_to_expire ON memory.facts (tenant_id, expires_at_conf)"
        " WHERE validity IN ('active', 'fading')"
    )
    t.protect("facts", app="SELECT, INSERT, UPDATE")
