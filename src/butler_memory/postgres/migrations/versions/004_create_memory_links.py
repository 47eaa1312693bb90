"""Links between memories: append-only, read both ways (L1)."""

from butler_memory.postgres.migrations import tables as t

revision = "memory_004"
down_revision = "memory_003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    types = ("episode", "fact", "rule")
    t.run(
        f"""
        CREATE TABLE memory.memory_links (
            {t.TENANT},
            source_type text NOT NULL, {t.one_of("source_type", *types)},
            source_id uuid NOT NULL,
            target_type text NOT NULL, {t.one_of("target_type", *types)},
            target_id uuid NOT NULL,
            relation text NOT NULL,
            {t.one_of("relation", "derived_from", "supports", "contradicts", "supersedes", "related_to")},
            created_at timestamptz NOT NULL,
            PRIMARY KEY (tenant_id, source_type, source_id, target_type, target_id, relation),
            CONSTRAINT not_itself CHECK (source_id <> target_id)
        )
        """
    )
    t.run("CREATE INDEX memory_links_by_target ON memory.memory_links (tenant_id, target_type, target_id)")
    t.protect("memory_links", app="SELECT, INSERT")
