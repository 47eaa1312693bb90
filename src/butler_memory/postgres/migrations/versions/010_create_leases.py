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
    _say_which_vectors_are_used()


def _say_which_vectors_are_used() -> None:
    """A tenant answers from one version; who writes and asks can look it up. Until now there was one for all."""
    app, worker = t.roles()["app"], t.roles()["worker"]
    t.run(f"GRANT UPDATE (embedding_version) ON memory.tenants TO {app}")
    t.run(f"CREATE POLICY all_tenants ON memory.embedding_versions TO {worker} USING (true) WITH CHECK (true)")
    t.run(f"GRANT SELECT, INSERT ON memory.embedding_versions TO {worker}")
    t.run("ALTER TABLE memory.embedding_versions ADD COLUMN current_since timestamptz")
    seen = " UNION ALL ".join(
        f"(SELECT embedding_version AS version, vector_dims(embedding) AS dimensions FROM memory.{table} m"
        " WHERE m.tenant_id = t.tenant_id AND embedding IS NOT NULL LIMIT 1)"
        for table in ("facts", "rules", "episodes")
    )
    t.run(
        "INSERT INTO memory.embedding_versions"
        " (tenant_id, version, model, dimensions, state, created_at, current_since)"
        " SELECT t.tenant_id, s.version, split_part(s.version, '@', 1), s.dimensions, 'current', t.created_at,"
        " t.created_at"
        f" FROM memory.tenants t CROSS JOIN LATERAL (SELECT * FROM ({seen}) any_row LIMIT 1) s"
    )
    t.run(
        "UPDATE memory.tenants t SET embedding_version = v.version"
        " FROM memory.embedding_versions v WHERE v.tenant_id = t.tenant_id"
    )
