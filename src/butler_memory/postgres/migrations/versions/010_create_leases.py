"""Jobs under leases, runs that say how they ended, events in an order that skips nothing, vectors on their way.

`schedules` goes: a job's next time and its lease belong to one row, the shard; `shards` and `job_runs` were never
written before this revision, and are made anew.
"""

from butler_memory.postgres.migrations import tables as t

revision = "memory_010"
down_revision = "memory_009"
branch_labels = None
depends_on = None

JOBS = ("consolidate", "decay_sweep", "episode_cleanup", "reembed")


def upgrade() -> None:
    for table in ("schedules", "shards", "job_runs"):
        t.run(f"DROP TABLE memory.{table}")
    # butler '': the job is the whole tenant's. Lease times are the database's clock, all others the engine's.
    t.run(
        f"""
        CREATE TABLE memory.shards (
            {t.TENANT},
            butler text NOT NULL,
            kind text NOT NULL, {t.one_of("kind", *JOBS)},
            created_at timestamptz NOT NULL,
            next_run_at timestamptz NOT NULL,
            last_ok_at timestamptz,
            attempts int NOT NULL CHECK (attempts >= 0),
            lease_token bigint NOT NULL CHECK (lease_token >= 0),
            lease_until timestamptz,
            leased_at timestamptz,
            memo jsonb NOT NULL,
            PRIMARY KEY (tenant_id, butler, kind)
        ) WITH (fillfactor = 70)
        """
    )
    t.run("CREATE INDEX shards_due ON memory.shards (kind, next_run_at)")
    t.run("CREATE INDEX shards_leased ON memory.shards (kind, lease_until) WHERE lease_until IS NOT NULL")
    t.run(
        "INSERT INTO memory.shards (tenant_id, butler, kind, created_at, next_run_at, attempts, lease_token, memo)"
        " SELECT tenant_id, butler, 'consolidate', min(created_at), min(created_at), 0, 0, '{}'"
        " FROM memory.episodes WHERE consolidation_status = 'pending' GROUP BY 1, 2"
    )
    t.protect("shards", app="SELECT, INSERT, UPDATE", worker="SELECT, INSERT, UPDATE, DELETE")
    t.run(
        f"""
        CREATE TABLE memory.job_runs (
            {t.TENANT},
            id uuid NOT NULL,
            job text NOT NULL, {t.one_of("job", *JOBS)},
            butler text NOT NULL,
            started_at timestamptz NOT NULL,
            finished_at timestamptz NOT NULL,
            outcome text NOT NULL, {t.one_of("outcome", "ok", "failed", "lost", "stopped")},
            reason text,
            counts jsonb NOT NULL,
            PRIMARY KEY (tenant_id, id)
        )
        """
    )
    t.run("CREATE INDEX job_runs_by_time ON memory.job_runs (tenant_id, job, finished_at DESC)")
    t.protect("job_runs", app="SELECT, DELETE", worker="SELECT, INSERT")
    # What waits to be asked about is what is fading and important: a query, not rows that could go stale (J3).
    t.run("ALTER TABLE memory.reviews DROP CONSTRAINT kind_known")
    t.run(f"ALTER TABLE memory.reviews ADD {t.one_of('kind', 'contradiction', 'proposal')}")
    t.run(
        "CREATE INDEX rules_to_judge ON memory.rules (tenant_id, id)"
        " WHERE status IN ('active', 'fading') AND maturity <> 'anti_pattern' AND applied_count > 0"
    )
    t.run(
        f"""
        CREATE TABLE memory.new_vectors (
            {t.TENANT},
            type text NOT NULL, {t.one_of("type", "episode", "fact", "rule")},
            id uuid NOT NULL,
            version text NOT NULL,
            embedding halfvec NOT NULL,
            PRIMARY KEY (tenant_id, type, id)
        )
        """
    )
    t.run("ALTER TABLE memory.new_vectors ALTER COLUMN embedding SET STORAGE PLAIN")
    t.protect("new_vectors", app="SELECT, INSERT, UPDATE, DELETE")
    t.run(f"GRANT UPDATE (embedding_version) ON memory.tenants TO {t.roles()['app']}")
