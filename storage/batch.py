from dataclasses import dataclass
from enum import StrEnum

from storage.job_state import JobState

# The reason with which a batch's requests are cancelled when its time is over.
EXPIRED = "expired"


class Outcome(StrEnum):
    """What has become of a batch's request, in the words of the Messages API."""

    PROCESSING = "processing"
    SUCCEEDED = "succeeded"
    ERRORED = "errored"
    CANCELED = "canceled"
    EXPIRED = "expired"

    @classmethod
    def of(cls, state: JobState, cancel_reason: str | None) -> "Outcome":
        match state:
            case JobState.QUEUED | JobState.RUNNING:
                return cls.PROCESSING
            case JobState.SUCCEEDED:
                return cls.SUCCEEDED
            case JobState.CANCELLED:
                return cls.EXPIRED if cancel_reason == EXPIRED else cls.CANCELED
            case JobState.FAILED | JobState.INTERRUPTED:
                return cls.ERRORED


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What is known of a batch when it arrives; times are unix seconds, UTC."""

    id: str
    request_id: str
    # The model that runs it, whatever its requests ask for.
    model: str
    # The id of the key that asked, never the key; None where no key is needed.
    api_key: str | None
    total: int
    created_at: float
    expires_at: float
    # What the client sent to be able to ask again, and the digest of what it asked.
    idempotency_key: str | None = None
    request_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class NewRequest:
    """One request of a new batch."""

    run_id: str
    message_id: str
    custom_id: str
    max_tokens: int
    # The body of a Messages request, as JSON.
    params: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it was when it was read."""

    id: str
    api_key: str | None
    total: int
    created_at: float
    expires_at: float
    cancel_requested_at: float | None
    ended_at: float | None
    idempotency_key: str | None
    request_sha256: str | None


@dataclass(frozen=True, slots=True)
class Result:
    """What has become of one request of a batch."""

    custom_id: str
    request_id: str
    outcome: Outcome
    error_type: str | None
    error_message: str | None
    # The answer as JSON, where there is one.
    message: bytes | None
