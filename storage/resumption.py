"""Which runs an operator can have go on."""

from functools import partial
from pathlib import Path

from anyio import to_thread

from storage.database import Database
from storage.errors import StorageError
from storage.job_state import MOVES, JobState
from storage.jobs import Job, Jobs
from storage.run_records import RunRecord


async def resume(
    db: Database, job: Job, data_dir: Path, *, owner: str, model: str, weights_sha256: str | None
) -> str | None:
    """Queue a run again, for the service `owner` that works on `data_dir` and serves `model`.

    Why it cannot go on there, in a sentence; None when it is queued. Raises StorageError.
    """
    record = RunRecord.at(data_dir / job.record)
    why_not = await to_thread.run_sync(partial(_why_not, job, record, model, weights_sha256))
    # Of services that share a database, only this one has the record.
    home = owner if db.shared else None
    if why_not is None and not await Jobs(db).resume(job.id, home=home):
        return f"{job.id} was resumed or removed by somebody else meanwhile"
    return why_not


def _why_not(job: Job, record: RunRecord, model: str, weights_sha256: str | None) -> str | None:
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
