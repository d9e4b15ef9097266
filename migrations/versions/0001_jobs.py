"""Jobs, their history, their telemetry."""

from alembic import op

from storage.job_state import MOVES

revision = "0001"
down_revision = None

JOBS = """
CREATE TABLE jobs (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    message_id TEXT NOT NULL,
    request_id TEXT NOT NULL,
    state TEXT NOT NULL,
    model TEXT NOT NULL,
    streaming BOOLEAN NOT NULL,
    api_key TEXT,
    record TEXT NOT NULL,
    created_at DOUBLE NOT NULL,
    started_at DOUBLE,
    finished_at DOUBLE,
    owner TEXT,
    lease_expires_at DOUBLE,
    attempt INTEGER NOT NULL DEFAULT 0,
    engine TEXT,
    cancel_requested_at DOUBLE,
    cancel_reason TEXT,
    stop_reason TEXT,
    error_type TEXT,
    error_message TEXT,
    input_tokens INTEGER NOT NULL,
    max_tokens INTEGER NOT NULL,
    output_tokens INTEGER,

    CONSTRAINT state_is_known CHECK (
        state IN ('queued', 'running', 'succeeded', 'failed', 'cancelled', 'interrupted')),
    CONSTRAINT running_is_held CHECK (
        (state = 'running') = (owner IS NOT NULL AND lease_expires_at IS NOT NULL
            AND engine IS NOT NULL AND started_at IS NOT NULL AND finished_at IS NULL)),
    CONSTRAINT queued_is_free CHECK (
        state <> 'queued' OR (owner IS NULL AND lease_expires_at IS NULL
            AND engine IS NULL AND started_at IS NULL AND finished_at IS NULL)),
    CONSTRAINT ended_has_a_time CHECK (state IN ('queued', 'running') OR finished_at IS NOT NULL),
    CONSTRAINT streaming_is_boolean CHECK (streaming IN (0, 1)),
    CONSTRAINT counts_are_natural CHECK (
        attempt >= 0 AND input_tokens >= 0 AND max_tokens >= 0
        AND (output_tokens IS NULL OR output_tokens >= 0))
)
"""

# A foreign key with ON DELETE CASCADE, so that whoever prunes old jobs leaves nothing behind.
HISTORY = """
CREATE TABLE job_history (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job_id TEXT NOT NULL,
    at DOUBLE NOT NULL,
    from_state TEXT,
    to_state TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    owner TEXT,
    FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
"""

TELEMETRY = """
CREATE TABLE telemetry (
    job_id TEXT PRIMARY KEY NOT NULL,
    queue_seconds DOUBLE NOT NULL,
    load_seconds DOUBLE NOT NULL,
    prefill_seconds DOUBLE NOT NULL,
    decode_seconds DOUBLE NOT NULL,
    engine_seconds DOUBLE NOT NULL,
    input_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    prefilled_tokens INTEGER NOT NULL,
    peak_memory_bytes INTEGER,
    first_token_seconds DOUBLE,
    longest_step_seconds DOUBLE,
    FOREIGN KEY (job_id) REFERENCES jobs (id) ON DELETE CASCADE
)
"""

INDEXES = [
    "CREATE INDEX jobs_queue ON jobs (seq) WHERE state = 'queued'",
    "CREATE INDEX jobs_cancel_requests ON jobs (seq) "
    "WHERE cancel_requested_at IS NOT NULL AND state IN ('queued', 'running')",
    "CREATE UNIQUE INDEX jobs_one_running_per_engine ON jobs (engine) WHERE state = 'running'",
    "CREATE INDEX jobs_created_at ON jobs (created_at)",
    "CREATE INDEX job_history_job ON job_history (job_id, seq)",
]

LEGAL = " OR ".join(
    f"(OLD.state = '{old}' AND NEW.state IN ({', '.join(repr(str(new)) for new in sorted(news))}))"
    for old, news in MOVES.items()
    if news
)

TRIGGERS = [
    """
    CREATE TRIGGER jobs_begin BEFORE INSERT ON jobs WHEN NEW.state <> 'queued'
    BEGIN SELECT RAISE(ABORT, 'a job begins as queued'); END
    """,
    f"""
    CREATE TRIGGER jobs_move BEFORE UPDATE OF state ON jobs
    WHEN OLD.state <> NEW.state AND NOT ({LEGAL})
    BEGIN SELECT RAISE(ABORT, 'a job cannot make this move'); END
    """,
    """
    CREATE TRIGGER jobs_cancel BEFORE UPDATE OF cancel_requested_at ON jobs
    WHEN NEW.cancel_requested_at IS NOT NULL
        AND NEW.cancel_requested_at IS NOT OLD.cancel_requested_at
        AND OLD.state NOT IN ('queued', 'running')
    BEGIN SELECT RAISE(ABORT, 'only a queued or running job can be asked to stop'); END
    """,
    """
    CREATE TRIGGER jobs_history_begin AFTER INSERT ON jobs
    BEGIN
        INSERT INTO job_history (job_id, at, from_state, to_state, attempt, owner)
        VALUES (NEW.id, NEW.created_at, NULL, NEW.state, NEW.attempt, NEW.owner);
    END
    """,
    # A move carries the row's own time, so that history and row agree to the digit; only a job
    # that is queued again has no such column.
    """
    CREATE TRIGGER jobs_history_move AFTER UPDATE OF state ON jobs WHEN OLD.state <> NEW.state
    BEGIN
        INSERT INTO job_history (job_id, at, from_state, to_state, attempt, owner)
        VALUES (
            NEW.id,
            CASE NEW.state
                WHEN 'running' THEN NEW.started_at
                WHEN 'queued' THEN (julianday('now') - 2440587.5) * 86400.0
                ELSE NEW.finished_at
            END,
            OLD.state, NEW.state, NEW.attempt, NEW.owner);
    END
    """,
]


def upgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        return  # version 0002 makes the whole schema there
    for statement in [JOBS, HISTORY, TELEMETRY, *INDEXES, *TRIGGERS]:
        op.execute(statement)
