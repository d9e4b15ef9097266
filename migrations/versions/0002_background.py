"""Background work: batches, jobs that are queued again, fair turns, idempotency."""

from alembic import op

from migrations import postgres
from storage.job_state import MOVES

revision = "0002"
down_revision = "0001"

# No foreign keys on columns that are added: SQLite checks none of them for rows that exist.
COLUMNS = [
    "priority INTEGER NOT NULL DEFAULT 1 CHECK (priority IN (0, 1))",
    "turn INTEGER NOT NULL DEFAULT 0",
    "home TEXT",
    "batch_id TEXT REFERENCES batches (id)",
    "idempotency_key TEXT",
    "request_sha256 TEXT",
    "engine_deaths INTEGER NOT NULL DEFAULT 0 CHECK (engine_deaths >= 0)",
    "lost_leases INTEGER NOT NULL DEFAULT 0 CHECK (lost_leases >= 0)",
]

BATCHES = """
CREATE TABLE batches (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    api_key TEXT,
    total INTEGER NOT NULL CHECK (total > 0),
    created_at DOUBLE NOT NULL,
    expires_at DOUBLE NOT NULL,
    cancel_requested_at DOUBLE,
    ended_at DOUBLE,
    idempotency_key TEXT,
    request_sha256 TEXT
)
"""

# `params` and `result` are JSON; a request's text is kept until its run has ended, no longer.
BATCH_REQUESTS = """
CREATE TABLE batch_requests (
    job_id TEXT PRIMARY KEY NOT NULL,
    batch_id TEXT NOT NULL,
    place INTEGER NOT NULL,
    custom_id TEXT NOT NULL,
    params BLOB,
    result BLOB,
    UNIQUE (batch_id, custom_id),
    UNIQUE (batch_id, place),
    FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE,
    FOREIGN KEY (batch_id) REFERENCES batches (id) ON DELETE CASCADE
)
"""

# Records whose rows are gone: written with the deletion of the rows, emptied as folders go.
DISCARDED = "CREATE TABLE discarded_records (record TEXT PRIMARY KEY NOT NULL)"

INDEXES = [
    "DROP INDEX jobs_queue",
    "CREATE INDEX jobs_queue ON jobs (model, priority DESC, turn, seq) WHERE state = 'queued'",
    "CREATE INDEX jobs_turns ON jobs (model, priority, api_key, turn) WHERE state = 'queued'",
    # A job is open as long as `finished_at` is NULL; put so, no index on states can be preferred.
    "DROP INDEX jobs_cancel_requests",
    "CREATE INDEX jobs_cancel_requests ON jobs (seq) "
    "WHERE cancel_requested_at IS NOT NULL AND finished_at IS NULL",
    "CREATE INDEX jobs_state ON jobs (state, seq)",
    "CREATE INDEX jobs_model ON jobs (model, seq)",
    "CREATE INDEX jobs_api_key ON jobs (api_key, seq) WHERE api_key IS NOT NULL",
    "CREATE INDEX jobs_message ON jobs (message_id)",
    "CREATE INDEX jobs_finished_at ON jobs (finished_at) WHERE finished_at IS NOT NULL",
    "CREATE INDEX jobs_batch ON jobs (batch_id, state) WHERE batch_id IS NOT NULL",
    "CREATE UNIQUE INDEX jobs_idempotency ON jobs (coalesce(api_key, ''), idempotency_key) "
    "WHERE idempotency_key IS NOT NULL AND state IN ('queued', 'running', 'succeeded')",
    "CREATE UNIQUE INDEX batches_idempotency ON batches (coalesce(api_key, ''), idempotency_key) "
    "WHERE idempotency_key IS NOT NULL",
    "CREATE INDEX batches_open ON batches (expires_at) WHERE ended_at IS NULL",
]

LEGAL = " OR ".join(
    f"(OLD.state = '{old}' AND NEW.state IN ({', '.join(repr(str(new)) for new in sorted(news))}))"
    for old, news in MOVES.items()
    if news
)

TRIGGERS = [
    "DROP TRIGGER jobs_move",
    f"""
    CREATE TRIGGER jobs_move BEFORE UPDATE OF state ON jobs
    WHEN OLD.state <> NEW.state AND NOT ({LEGAL})
    BEGIN SELECT RAISE(ABORT, 'a job cannot make this move'); END
    """,
    """
    CREATE TRIGGER jobs_batch_end AFTER UPDATE OF state ON jobs
    WHEN NEW.batch_id IS NOT NULL AND NEW.state NOT IN ('queued', 'running')
    BEGIN
        UPDATE batch_requests SET params = NULL WHERE job_id = NEW.id;
        UPDATE batches SET ended_at = NEW.finished_at
        WHERE id = NEW.batch_id AND ended_at IS NULL AND NOT EXISTS (
            SELECT 1 FROM jobs
            WHERE batch_id = NEW.batch_id AND state IN ('queued', 'running'));
    END
    """,
]


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        postgres.create_schema(op)
        return
    for statement in [BATCHES, BATCH_REQUESTS, DISCARDED]:
        op.execute(statement)
    for column in COLUMNS:
        op.execute(f"ALTER TABLE jobs ADD COLUMN {column}")
    for statement in [*INDEXES, *TRIGGERS]:
        op.execute(statement)
