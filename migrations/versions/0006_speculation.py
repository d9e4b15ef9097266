"""What came of each job's drafts."""

from alembic import op

revision = "0006"
down_revision = "0005"

COLUMNS = ("verified_rounds", "drafted_tokens", "accepted_tokens", "draft_pauses")


def upgrade() -> None:
    whole = "BIGINT" if op.get_context().dialect.name == "postgresql" else "INTEGER"
    for column in COLUMNS:
        check = f"NOT NULL DEFAULT 0 CHECK ({column} >= 0)"
        op.execute(f"ALTER TABLE telemetry ADD COLUMN {column} {whole} {check}")
