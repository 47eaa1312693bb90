"""Alembic's entry: runs the chain on the connection that `migrate` hands over."""

from alembic import context

context.configure(
    connection=context.config.attributes["connection"],
    version_table="alembic_version",
    version_table_schema="memory",
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
