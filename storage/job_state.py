from enum import StrEnum


class JobState(StrEnum):
    """Where a job is in its life; `MOVES` says how it gets from one state to the next."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


# The one table of legal moves; the database's `jobs_move` trigger is built from it. Databases that
# exist keep the trigger they were made with: a change here needs a migration that makes it anew.
MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset(
        {JobState.RUNNING, JobState.CANCELLED, JobState.INTERRUPTED, JobState.FAILED}
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.SUCCEEDED,
            JobState.FAILED,
            JobState.CANCELLED,
            JobState.INTERRUPTED,
            JobState.QUEUED,
        }
    ),
    JobState.INTERRUPTED: frozenset({JobState.QUEUED}),
    JobState.CANCELLED: frozenset({JobState.QUEUED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.FAILED: frozenset(),
}
