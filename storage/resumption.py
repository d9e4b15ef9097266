"""Which runs an operator can have go on."""

from storage.errors import StorageError
from storage.job import Job
from storage.job_state import MOVES, JobState
from storage.run_records import RunRecord


def why_not_resumable(
    job: Job, record: RunRecord, *, model: str, weights_sha256: str | None
) -> str | None:
    """Why the run cannot go on where `model` is served, in a sentence; None if it can. Blocks."""
    if job.state in (JobState.QUEUED, JobState.RUNNING):
        return f"{job.id} is {job.state} already"
    if JobState.QUEUED not in MOVES[job.state]:
        return f"{job.id} has {job.state}: only what was cancelled or interrupted can be resumed"
    if job.batch_id is not None:
        return (
            f"{job.id} is part of the batch {job.batch_id}, whose results do not change any more; "
            "send its request again"
        )
    if job.model != model:
        return (
            f"{job.id} was begun by the model {job.model}, and {model} is served; "
            f"serve {job.model} to resume it"
        )
    try:
        prompt = record.prompt()
    except StorageError as error:
        return str(error)
    if prompt.get("ids") is None:
        return (
            f"{job.id} was recorded without its content, so there is nothing to go on from; "
            "send its request again"
        )
    if prompt.get("weights_sha256") != weights_sha256:
        return (
            f"{job.id} was begun with other weights of {model} than those that are served; "
            "send its request again"
        )
    if not isinstance(prompt.get("stop_sequences"), list):
        return (
            f"{job.id} was recorded by an older mererun, without its stop sequences; "
            "send its request again"
        )
    return None
