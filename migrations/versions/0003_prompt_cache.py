"""The prompt cache: what clients were told of it, and the tokens of answers."""

from alembic import op

revision = "0003"
down_revision = "0002"

COLUMNS = [
    "cache_read_tokens INTEGER NOT NULL DEFAULT 0 CHECK (cache_read_tokens >= 0)",
    "cache_creation_tokens INTEGER NOT NULL DEFAULT 0 CHECK (cache_creation_tokens >= 0)",
]

# `ids` are packed little-endian 32-bit integers; `api_key` is empty for none.
ANSWERS = """
CREATE TABLE answers (
    digest BLOB NOT NULL,
    api_key TEXT NOT NULL,
    job_id TEXT NOT NULL,
    ids BLOB NOT NULL,
    PRIMARY KEY (digest, api_key),
    FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
"""

INDEXES = ["CREATE INDEX answers_job ON answers (job_id)"]


def upgrade() -> None:
    answers, columns = ANSWERS, COLUMNS
    if op.get_context().dialect.name == "postgresql":
        answers = ANSWERS.replace("BLOB", "BYTEA")
        columns = [each.replace("INTEGER", "BIGINT") for each in COLUMNS]
    for column in columns:
        op.execute(f"ALTER TABLE telemetry ADD COLUMN {column}")
    for statement in [answers, *INDEXES]:
        op.execute(statement)
