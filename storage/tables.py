"""Columns of the tables, for building statements.

The constraints, indexes and triggers live in `migrations/versions`; a test compares the two.
Times are unix seconds (UTC) as REAL.
"""

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    TypeDecorator,
)

metadata = MetaData()
# 64 bits in both databases; SQLite knows one kind of whole number, and calls it so.
Whole = BigInteger().with_variant(Integer, "sqlite")


class Prose(TypeDecorator[str]):
    """Text that may quote what a client or a model said.

    Halves of characters, and the zero that PostgreSQL does not take, become "?".
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value and as_prose(value)


def as_prose(text: str) -> str:
    """What a `Prose` column keeps of it."""
    return text.encode(errors="replace").decode().replace("\0", "?")


jobs = Table(
    "jobs",
    metadata,
    # Arrival order. Wall clocks jump; this does not.
    Column("seq", Whole, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("message_id", Text, nullable=False),
    Column("request_id", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("streaming", Boolean, nullable=False),
    Column("api_key", Text),
    Column("record", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("finished_at", Double),
    Column("owner", Text),
    Column("lease_expires_at", Double),
    Column("attempt", Whole, nullable=False),
    Column("engine", Text),
    Column("cancel_requested_at", Double),
    Column("cancel_reason", Prose),
    Column("stop_reason", Text),
    Column("error_type", Text),
    Column("error_message", Prose),
    Column("input_tokens", Whole, nullable=False),
    Column("max_tokens", Whole, nullable=False),
    Column("output_tokens", Whole),
    Column("priority", Whole, nullable=False),
    # The place in the round robin between API keys; -1 for what had begun and was queued again.
    Column("turn", Whole, nullable=False),
    Column("home", Text),
    Column("batch_id", Text, ForeignKey("batches.id")),
    Column("idempotency_key", Text),
    Column("request_sha256", Text),
    Column("engine_deaths", Whole, nullable=False),
    Column("lost_leases", Whole, nullable=False),
    Column("continues", Text),
)

batches = Table(
    "batches",
    metadata,
    Column("seq", Whole, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("api_key", Text),
    Column("total", Whole, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double, nullable=False),
    Column("cancel_requested_at", Double),
    Column("ended_at", Double),
    Column("idempotency_key", Text),
    Column("request_sha256", Text),
)

batch_requests = Table(
    "batch_requests",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("batch_id", Text, ForeignKey("batches.id", ondelete="CASCADE"), nullable=False),
    Column("place", Whole, nullable=False),
    Column("custom_id", Text, nullable=False),
    Column("params", LargeBinary),
    Column("result", LargeBinary),
)

discarded_records = Table(
    "discarded_records",
    metadata,
    Column("record", Text, primary_key=True),
)

job_history = Table(
    "job_history",
    metadata,
    Column("seq", Whole, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("at", Double, nullable=False),
    Column("from_state", Text),
    Column("to_state", Text, nullable=False),
    Column("attempt", Whole, nullable=False),
    Column("owner", Text),
)

telemetry = Table(
    "telemetry",
    metadata,
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    Column("queue_seconds", Double, nullable=False),
    Column("load_seconds", Double, nullable=False),
    Column("prefill_seconds", Double, nullable=False),
    Column("decode_seconds", Double, nullable=False),
    Column("engine_seconds", Double, nullable=False),
    Column("input_tokens", Whole, nullable=False),
    Column("output_tokens", Whole, nullable=False),
    Column("prefilled_tokens", Whole, nullable=False),
    Column("peak_memory_bytes", Whole),
    Column("first_token_seconds", Double),
    Column("longest_step_seconds", Double),
    Column("cache_read_tokens", Whole, nullable=False),
    Column("cache_creation_tokens", Whole, nullable=False),
    Column("verified_rounds", Whole, nullable=False),
    Column("drafted_tokens", Whole, nullable=False),
    Column("accepted_tokens", Whole, nullable=False),
    Column("draft_pauses", Whole, nullable=False),
)

# The tokens of answers, by a digest of what they say, so that later prompts can quote them.
answers = Table(
    "answers",
    metadata,
    Column("digest", LargeBinary, primary_key=True),
    Column("api_key", Text, primary_key=True),
    Column("job_id", Text, ForeignKey("jobs.id", ondelete="CASCADE"), nullable=False),
    Column("ids", LargeBinary, nullable=False),
)

# Files that clients upload; their bytes are in the data folder. `api_key` is empty for none.
files = Table(
    "files",
    metadata,
    Column("id", Text, primary_key=True),
    Column("api_key", Text, nullable=False),
    Column("filename", Text, nullable=False),
    Column("mime_type", Text, nullable=False),
    Column("size", Whole, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
)
