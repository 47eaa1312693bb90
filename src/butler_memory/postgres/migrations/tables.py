"""What every table of the schema gets: forced row-level security, three policies, named grants (G1)."""

from __future__ import annotations

from alembic import context, op

HOT_ROWS = "toast_tuple_target = 4080"  # keeps vector, text and search terms in one page: DESIGN 2


def run(statement: str) -> None:
    op.execute(statement)


def roles() -> dict[str, str]:
    """Quoted names of the application's and the worker's role, given by whoever migrates."""
    return {name: context.config.attributes[name] for name in ("app", "worker")}


def protect(table: str, app: str, worker: str = "") -> None:
    """Force row-level security on `table` and grant `app` and `worker` privileges on it.

    The owner gets a policy too: FORCE binds it, and a data migration would update 0 rows in silence.
    """
    names = roles()
    run(f"ALTER TABLE memory.{table} ENABLE ROW LEVEL SECURITY")
    run(f"ALTER TABLE memory.{table} FORCE ROW LEVEL SECURITY")
    run(f"CREATE POLICY owner_all ON memory.{table} TO CURRENT_USER USING (true) WITH CHECK (true)")
    own = "tenant_id = current_setting('memory.tenant', true)"
    run(f"CREATE POLICY own_tenant ON memory.{table} TO {names['app']} USING ({own}) WITH CHECK ({own})")
    if app:
        run(f"GRANT {app} ON memory.{table} TO {names['app']}")
    if worker:
        run(f"CREATE POLICY all_tenants ON memory.{table} TO {names['worker']} USING (true) WITH CHECK (true)")
        run(f"GRANT {worker} ON memory.{table} TO {names['worker']}")


def one_of(column: str, *words: str) -> str:
    listed = ", ".join(f"'{word}'" for word in words)
    return f"CONSTRAINT {column}_known CHECK ({column} IN ({listed}))"


TENANT = "tenant_id text NOT NULL CHECK (tenant_id <> '')"
CONTENT_STATUS = ("plain", "redacted", "encrypted", "erased")
SOURCE_KIND = ("user_stated", "agent_inferred", "imported", "corrected")
PERMANENCE = ("permanent", "stable", "standard", "volatile", "ephemeral")
JSON_COLUMNS = """
    tags jsonb NOT NULL CHECK (jsonb_typeof(tags) = 'array'),
    metadata jsonb NOT NULL CHECK (jsonb_typeof(metadata) = 'object')"""
