from dataclasses import dataclass
from enum import IntEnum

from storage.job_state import JobState


class Priority(IntEnum):
    """The higher goes first."""

    BACKGROUND = 0
    INTERACTIVE = 1


@dataclass(frozen=True, slots=True)
class NewJob:
    """What is known of a job when it arrives."""

    id: str
    message_id: str
    request_id: str
    model: str
    streaming: bool
    # The id of the key that asked, never the key; None where no key is needed.
    api_key: str | None
    # The run record's folder, relative to the data folder.
    record: str
    # Unix seconds, UTC, as every `_at` below.
    created_at: float
    # 0 until a batch's request is prepared, which is when it is first claimed.
    input_tokens: int
    max_tokens: int
    priority: Priority = Priority.INTERACTIVE
    # The owner string of the process that holds the connection; None where anyone may run the job.
    home: str | None = None
    batch_id: str | None = None
    # What the client sent to be able to ask again, and the digest of what it asked.
    idempotency_key: str | None = None
    request_sha256: str | None = None
    # The id of the message that it continues in a thread.
    continues: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it was when it was read; `owner` and `attempt` are its fencing token."""

    id: str
    message_id: str
    request_id: str
    state: JobState
    model: str
    streaming: bool
    api_key: str | None
    record: str
    created_at: float
    started_at: float | None
    finished_at: float | None
    owner: str | None
    lease_expires_at: float | None
    attempt: int
    engine: str | None
    cancel_requested_at: float | None
    cancel_reason: str | None
    stop_reason: str | None
    error_type: str | None
    error_message: str | None
    input_tokens: int
    max_tokens: int
    output_tokens: int | None
    priority: Priority
    home: str | None
    batch_id: str | None
    idempotency_key: str | None
    request_sha256: str | None
    # How often the engine died of it, and how often its owner died or was away for too long.
    engine_deaths: int
    lost_leases: int

    @property
    def is_background(self) -> bool:
        """Nobody is connected and waits: it may be run again."""
        return self.priority is Priority.BACKGROUND


@dataclass(frozen=True, slots=True)
class Transition:
    """One move of a job, as the database's trigger wrote it; `from_state` is None at arrival."""

    at: float
    from_state: JobState | None
    to_state: JobState
    attempt: int
    owner: str | None
