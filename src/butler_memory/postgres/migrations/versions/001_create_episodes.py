"""Episodes: what happened; and what is left of a deleted one."""

from butler_memory.postgres.migrations import tables as t

revision = "memory_001"
down_revision = None
branch_labels = ("memory",)
depends_on = None


def upgrade() -> None:
    for name in t.roles().values():
        t.run(f"GRANT USAGE ON SCHEMA memory TO {name}")
    t.run(
        f"""
        CREATE TABLE memory.episodes (
            {t.TENANT},
            id uuid NOT NULL,
            version int NOT NULL CHECK (version >= 1),
            state text NOT NULL, {t.one_of("state", "active", "retracted")},
            butler text NOT NULL CHECK (butler <> ''),
            session_id uuid,
            content text,
            content_status text NOT NULL, {t.one_of("content_status", *t.CONTENT_STATUS)},
            embedding halfvec,
            embedding_version text,
            importance float8 NOT NULL CHECK (importance BETWEEN 1 AND 10),
            consolidation_status text NOT NULL,
            {t.one_of("consolidation_status", "pending", "consolidated", "failed", "dead_letter")},
            consolidated boolean GENERATED ALWAYS AS (consolidation_status = 'consolidated') STORED,
            consolidation_attempts int NOT NULL CHECK (consolidation_attempts >= 0),
            last_consolidation_error text,
            next_consolidation_retry_at timestamptz,
            occurred_at timestamptz NOT NULL,
            created_at timestamptz NOT NULL,
            expires_at timestamptz NOT NULL,
            request_id text,
            source_kind text NOT NULL, {t.one_of("source_kind", *t.SOURCE_KIND)},
            {t.JSON_COLUMNS},
            PRIMARY KEY (tenant_id, id)
        ) WITH ({t.HOT_ROWS})
        """
    )
    t.run("ALTER TABLE memory.episodes ALTER COLUMN embedding SET STORAGE PLAIN")
    t.run("CREATE INDEX episodes_by_butler ON memory.episodes (tenant_id, butler, created_at DESC)")
    t.run("CREATE INDEX episodes_by_expiry ON memory.episodes (tenant_id, expires_at)")
    t.run(
        "CREATE INDEX episodes_pending ON memory.episodes (tenant_id, butler, created_at, id)"
        " WHERE consolidation_status = 'pending'"
    )
    t.protect("episodes", app="SELECT, INSERT, UPDATE, DELETE")
    t.run(
        f"""
        CREATE TABLE memory.episode_tombstones (
            {t.TENANT},
            id uuid NOT NULL,
            butler text NOT NULL,
            session_id uuid,
            occurred_at timestamptz NOT NULL,
            created_at timestamptz NOT NULL,
            deleted_at timestamptz NOT NULL,
            reason text NOT NULL, {t.one_of("reason", "expired", "forgotten", "erased")},
            digest text NOT NULL,
            PRIMARY KEY (tenant_id, id)
        )
        """
    )
    t.protect("episode_tombstones", app="SELECT, INSERT")
