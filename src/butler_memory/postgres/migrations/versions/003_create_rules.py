"""Rules: how to behave, and each time one was applied (R1, R5)."""

from butler_memory.postgres.migrations import tables as t

revision = "memory_003"
down_revision = "memory_002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    t.run(
        f"""
        CREATE TABLE memory.rules (
            {t.TENANT},
            id uuid NOT NULL,
            version int NOT NULL CHECK (version >= 1),
            content text,
            content_status text NOT NULL, {t.one_of("content_status", *t.CONTENT_STATUS)},
            original_content text,
            meaning text NOT NULL,
            embedding halfvec,
            embedding_version text,
            importance float8 NOT NULL CHECK (importance BETWEEN 1 AND 10),
            confidence float8 NOT NULL CHECK (confidence >= 0 AND confidence <= 1),
            decay_rate float8 NOT NULL CHECK (decay_rate >= 0),
            permanence text NOT NULL, {t.one_of("permanence", *t.PERMANENCE)},
            status text NOT NULL,
            {t.one_of("status", "active", "fading", "superseded", "expired", "retracted", "disabled")},
            maturity text NOT NULL, {t.one_of("maturity", "candidate", "established", "proven", "anti_pattern")},
            pinned boolean NOT NULL,
            effectiveness_score float8 NOT NULL CHECK (effectiveness_score BETWEEN 0 AND 1),
            applied_count int NOT NULL CHECK (applied_count >= success_count + harmful_count),
            success_count int NOT NULL CHECK (success_count >= 0),
            harmful_count int NOT NULL CHECK (harmful_count >= 0),
            scope text NOT NULL CHECK (scope <> ''),
            source_kind text NOT NULL, {t.one_of("source_kind", *t.SOURCE_KIND)},
            source_butler text NOT NULL,
            source_episode_id uuid,
            source_session_id uuid,
            request_id text,
            supersedes_id uuid,
            superseded_at timestamptz,
            fades_at timestamptz,
            expires_at_conf timestamptz,
            created_at timestamptz NOT NULL,
            last_confirmed_at timestamptz NOT NULL,
            last_applied_at timestamptz,
            last_evaluated_at timestamptz,
            {t.JSON_COLUMNS},
            PRIMARY KEY (tenant_id, id),
            FOREIGN KEY (tenant_id, supersedes_id) REFERENCES memory.rules (tenant_id, id)
        ) WITH ({t.HOT_ROWS})
        """
    )
    t.run("ALTER TABLE memory.rules ALTER COLUMN embedding SET STORAGE PLAIN")
    t.run("CREATE INDEX rules_by_meaning ON memory.rules (tenant_id, meaning)")
    t.run("CREATE INDEX rules_by_scope ON memory.rules (tenant_id, scope, status)")
    t.run(
        "CREATE UNIQUE INDEX rules_live_meaning ON memory.rules (tenant_id, scope, meaning)"
        " WHERE status IN ('active', 'fading') AND maturity <> 'anti_pattern'"
    )
    t.run("CREATE INDEX rules_to_fade ON memory.rules (tenant_id, fades_at) WHERE status = 'active'")
    t.run(
        "CREATE INDEX rules_to_expire ON memory.rules (tenant_id, expires_at_conf) WHERE status IN ('active', 'fading')"
    )
    t.protect("rules", app="SELECT, INSERT, UPDATE")
    t.run(
        f"""
        CREATE TABLE memory.rule_applications (
            {t.TENANT},
            id uuid NOT NULL,
            rule_id uuid NOT NULL,
            session_id uuid,
            outcome text NOT NULL, {t.one_of("outcome", "helpful", "harmful", "neutral")},
            reason text,
            request_id text,
            actor text NOT NULL,
            applied_at timestamptz NOT NULL,
            PRIMARY KEY (tenant_id, id),
            FOREIGN KEY (tenant_id, rule_id) REFERENCES memory.rules (tenant_id, id)
        )
        """
    )
    t.run("CREATE INDEX rule_applications_by_rule ON memory.rule_applications (tenant_id, rule_id, applied_at)")
    t.run(
        "CREATE UNIQUE INDEX rule_applications_once ON memory.rule_applications (tenant_id, rule_id, request_id)"
        " WHERE request_id IS NOT NULL"
    )
    t.protect("rule_applications", app="SELECT, INSERT")
