"""Search text beside each memory, and reference counters apart from the wide rows (S7)."""

from butler_memory.postgres.migrations import tables as t

revision = "memory_005"
down_revision = "memory_004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # No GIN, ivfflat or HNSW index: under row-level security the first is never used, and exact search
    # within a tenant is complete and fast (DESIGN 3).
    for table in ("episodes", "facts", "rules"):
        t.run(f"ALTER TABLE memory.{table} ADD COLUMN search_vector tsvector")
        t.run(f"CREATE INDEX {table}_without_vector ON memory.{table} (tenant_id, created_at) WHERE embedding IS NULL")
    t.run(
        f"""
        CREATE TABLE memory.refs (
            {t.TENANT},
            type text NOT NULL, {t.one_of("type", "episode", "fact", "rule")},
            id uuid NOT NULL,
            reference_count bigint NOT NULL CHECK (reference_count >= 0),
            last_referenced_at timestamptz NOT NULL,
            PRIMARY KEY (tenant_id, type, id)
        ) WITH (fillfactor = 70)
        """
    )
    t.protect("refs", app="SELECT, INSERT, UPDATE, DELETE")
