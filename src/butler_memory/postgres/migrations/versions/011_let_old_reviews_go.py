"""Reviews that were decided long ago may be deleted, as the runs that they came from are: both quote what was said."""

from butler_memory.postgres.migrations import tables as t

revision = "memory_011"
down_revision = "memory_010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    t.run(f"GRANT DELETE ON memory.reviews TO {t.roles()['app']}")
