"""The Alembic chain `memory`: from an empty database to the schema that this code needs."""
