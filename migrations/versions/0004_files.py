"""Files that clients upload. Their bytes are in the data folder."""

from alembic import op

from migrations import postgres

revision = "0004"
down_revision = "0003"

# `api_key` is empty for none.
FILES = """
CREATE TABLE files (
    id TEXT PRIMARY KEY NOT NULL,
    api_key TEXT NOT NULL,
    filename TEXT NOT NULL,
    mime_type TEXT NOT NULL,
    size INTEGER NOT NULL CHECK (size >= 0),
    sha256 TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    expires_at DOUBLE
)
"""

INDEXES = [
    "CREATE INDEX files_listed ON files (api_key, created_at, id)",
    "CREATE INDEX files_expiry ON files (expires_at) WHERE expires_at IS NOT NULL",
]


def upgrade() -> None:
    files = FILES
    if op.get_context().dialect.name == "postgresql":
        files = files.replace("TEXT", postgres.TEXT).replace("INTEGER", "BIGINT")
        files = files.replace("DOUBLE", "DOUBLE PRECISION")
    for statement in [files, *INDEXES]:
        op.execute(statement)
