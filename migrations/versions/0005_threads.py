"""Threads: which message a run continues, which one run at a time may."""

from alembic import op

from migrations import postgres

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    is_postgres = op.get_context().dialect.name == "postgresql"
    text = postgres.TEXT if is_postgres else "TEXT"
    op.execute(f"ALTER TABLE jobs ADD COLUMN continues {text}")
    op.execute(
        "CREATE UNIQUE INDEX jobs_continues ON jobs (continues) "
        "WHERE continues IS NOT NULL AND state IN ('queued', 'running', 'succeeded')"
    )
