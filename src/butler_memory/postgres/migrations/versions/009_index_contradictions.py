"""Contradictions are few and asked for by every read (L1)."""

from butler_memory.postgres.migrations import tables as t

revision = "memory_009"
down_revision = "memory_008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    t.run("CREATE INDEX memory_links_contradictions ON memory.memory_links (tenant_id) WHERE relation = 'contradicts'")
