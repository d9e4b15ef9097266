"""Alembic's environment: it runs in the transaction that `storage.schema` has opened."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
