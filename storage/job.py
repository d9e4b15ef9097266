from dataclasses import dataclass

from storage.job_state import JobState


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
    input_tokens: int
    max_tokens: int


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


@dataclass(frozen=True, slots=True)
class Transition:
    """One move of a job, as the database's trigger wrote it; `from_state` is None at arrival."""

    at: float
    from_state: JobState | None
    to_state: JobState
    attempt: int
    owner: str | None
