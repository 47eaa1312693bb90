"""Background work: leases, schedules, runs, reviews, and what sessions were served."""

from butler_memory.postgres.migrations import tables as t

revision = "memory_008"
down_revision = "memory_007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    t.run(
        f"""
        CREATE TABLE memory.shards (
            {t.TENANT},
            butler text NOT NULL,
            kind text NOT NULL,
            next_run_at timestamptz NOT NULL,
            lease_token bigint NOT NULL CHECK (lease_token >= 0),
            lease_until timestamptz,
            PRIMARY KEY (tenant_id, butler, kind)
        )
        """
    )
    t.run("CREATE INDEX shards_due ON memory.shards (kind, next_run_at)")
    t.protect("shards", app="SELECT, INSERT, UPDATE", worker="SELECT, INSERT, UPDATE, DELETE")
    t.run(
        f"""
        CREATE TABLE memory.schedules (
            {t.TENANT},
            job text NOT NULL,
            next_run_at timestamptz NOT NULL,
            last_run_at timestamptz,
            lease_token bigint NOT NULL CHECK (lease_token >= 0),
            lease_until timestamptz,
            PRIMARY KEY (tenant_id, job)
        )
        """
    )
    t.protect("schedules", app="SELECT", worker="SELECT, INSERT, UPDATE")
    t.run(
        f"""
        CREATE TABLE memory.job_runs (
            {t.TENANT},
            id uuid NOT NULL,
            job text NOT NULL,
            started_at timestamptz NOT NULL,
            finished_at timestamptz,
            outcome text NOT NULL, {t.one_of("outcome", "running", "ok", "failed", "lost")},
            counts jsonb NOT NULL,
            PRIMARY KEY (tenant_id, id)
        )
        """
    )
    t.run("CREATE INDEX job_runs_by_job ON memory.job_runs (tenant_id, job, started_at DESC)")
    t.protect("job_runs", app="SELECT, INSERT, UPDATE", worker="SELECT, INSERT, UPDATE, DELETE")
    t.run(
        f"""
        CREATE TABLE memory.consolidation_runs (
            {t.TENANT},
            id uuid NOT NULL,
            butler text NOT NULL,
            backend text NOT NULL,
            started_at timestamptz NOT NULL,
            finished_at timestamptz,
            outcome text NOT NULL, {t.one_of("outcome", "running", "applied", "empty", "refused", "paused", "failed")},
            counts jsonb NOT NULL,
            tokens_in bigint NOT NULL CHECK (tokens_in >= 0),
            tokens_out bigint NOT NULL CHECK (tokens_out >= 0),
            proposal jsonb,
            PRIMARY KEY (tenant_id, id)
        )
        """
    )
    t.run("CREATE INDEX consolidation_runs_by_time ON memory.consolidation_runs (tenant_id, butler, started_at DESC)")
    t.protect("consolidation_runs", app="SELECT, INSERT, UPDATE, DELETE")
    t.run(
        f"""
        CREATE TABLE memory.reviews (
            {t.TENANT},
            id uuid NOT NULL,
            kind text NOT NULL, {t.one_of("kind", "reconfirm", "contradiction", "proposal")},
            entity_type text, {t.one_of("entity_type", "episode", "fact", "rule")},
            entity_id uuid,
            run_id uuid,
            state text NOT NULL, {t.one_of("state", "open", "accepted", "rejected")},
            proposal jsonb,
            created_at timestamptz NOT NULL,
            closed_at timestamptz,
            closed_by text,
            PRIMARY KEY (tenant_id, id)
        )
        """
    )
    t.run("CREATE INDEX reviews_open ON memory.reviews (tenant_id, created_at) WHERE state = 'open'")
    t.protect("reviews", app="SELECT, INSERT, UPDATE")
    t.run(
        f"""
        CREATE TABLE memory.served_contexts (
            {t.TENANT},
            id uuid NOT NULL,
            butler text NOT NULL,
            session_id uuid,
            request_id text,
            served_at timestamptz NOT NULL,
            status text NOT NULL, {t.one_of("status", "ok", "empty", "degraded", "budget_too_small")},
            budget int NOT NULL CHECK (budget >= 0),
            tokens int NOT NULL CHECK (tokens >= 0),
            tokenizer text NOT NULL,
            items jsonb NOT NULL,
            body jsonb,
            PRIMARY KEY (tenant_id, id)
        )
        """
    )
    t.run("CREATE INDEX served_contexts_by_time ON memory.served_contexts (tenant_id, served_at DESC)")
    t.protect("served_contexts", app="SELECT, INSERT, UPDATE, DELETE")
