"""Tenants, tokens, predicates, idempotency keys, embedding versions: who may write, and what words mean."""

from butler_memory.postgres.migrations import tables as t

revision = "memory_007"
down_revision = "memory_006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    worker = t.roles()["worker"]
    t.run(
        f"""
        CREATE TABLE memory.tenants (
            {t.TENANT} PRIMARY KEY,
            digest_key bytea NOT NULL CHECK (length(digest_key) >= 16),
            many_valued boolean NOT NULL,
            embedding_version text,
            created_at timestamptz NOT NULL
        )
        """
    )
    t.protect("tenants", app="SELECT")
    t.run(f"CREATE POLICY all_tenants ON memory.tenants TO {worker} USING (true) WITH CHECK (true)")
    # The worker may list tenants and make one; it never reads a tenant's key.
    t.run(f"GRANT INSERT ON memory.tenants TO {worker}")
    t.run(f"GRANT SELECT (tenant_id, many_valued, embedding_version, created_at) ON memory.tenants TO {worker}")
    t.run(
        f"""
        CREATE TABLE memory.tokens (
            {t.TENANT},
            id uuid NOT NULL,
            token_hash text NOT NULL,
            butler text NOT NULL CHECK (butler <> ''),
            role text NOT NULL, {t.one_of("role", "butler", "reader", "admin")},
            trigger_class text NOT NULL, {t.one_of("trigger_class", "session", "maintenance")},
            label text NOT NULL,
            created_at timestamptz NOT NULL,
            revoked_at timestamptz,
            PRIMARY KEY (tenant_id, id)
        )
        """
    )
    t.run("CREATE UNIQUE INDEX tokens_by_hash ON memory.tokens (token_hash)")
    t.protect("tokens", app="", worker="SELECT, INSERT, UPDATE")
    t.run(
        f"""
        CREATE TABLE memory.predicates (
            {t.TENANT},
            name text NOT NULL CHECK (name <> ''),
            cardinality text NOT NULL, {t.one_of("cardinality", "one", "many")},
            temporal boolean NOT NULL,
            permanence text NOT NULL, {t.one_of("permanence", *t.PERMANENCE)},
            sensitivity text NOT NULL, {t.one_of("sensitivity", "normal", "sensitive", "high")},
            aliases jsonb NOT NULL CHECK (jsonb_typeof(aliases) = 'array'),
            changed_at timestamptz NOT NULL,
            PRIMARY KEY (tenant_id, name)
        )
        """
    )
    t.protect("predicates", app="SELECT, INSERT, UPDATE")
    t.run(
        f"""
        CREATE TABLE memory.idempotency_keys (
            {t.TENANT},
            key text NOT NULL,
            type text NOT NULL, {t.one_of("type", "episode", "fact", "rule")},
            id uuid NOT NULL,
            created_at timestamptz NOT NULL,
            PRIMARY KEY (tenant_id, key)
        )
        """
    )
    t.run("CREATE INDEX idempotency_keys_by_age ON memory.idempotency_keys (tenant_id, created_at)")
    t.protect("idempotency_keys", app="SELECT, INSERT, DELETE")
    t.run(
        f"""
        CREATE TABLE memory.embedding_versions (
            {t.TENANT},
            version text NOT NULL,
            model text NOT NULL,
            dimensions int NOT NULL CHECK (dimensions > 0),
            state text NOT NULL, {t.one_of("state", "building", "current", "retired")},
            created_at timestamptz NOT NULL,
            PRIMARY KEY (tenant_id, version)
        )
        """
    )
    t.protect("embedding_versions", app="SELECT, INSERT, UPDATE")
