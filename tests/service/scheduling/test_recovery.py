"""What an earlier service left behind is brought to an end that its records bear out."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from service.scheduling.recorded import recorded
from service.scheduling.recovery import recover
from service.wire.responses import Message, PromptUsage, Usage
from storage.batches import Batches, NewBatch, NewRequest
from storage.database import Database
from storage.jobs import Job, Jobs, JobState, NewJob
from storage.run_records import RunRecord
from storage.telemetry import Telemetry, telemetry_of
from storage.verification import StoredRun, disagreements

GONE = "1:0.00"
NEW = NewJob(
    id="run_1",
    message_id="msg_1",
    request_id="req_1",
    model="tiny",
    streaming=True,
    api_key=None,
    record="",
    created_at=1_800_000_000.0,
    input_tokens=3,
    max_tokens=9,
    home=GONE,
)
MEASURED = Telemetry(0.1, 0.0, 0.2, 0.3, 0.5, 3, 2, 3, None, 0.2, 0.01)


@pytest.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Jobs]:
    async with Database.open(tmp_path / "mererun.db") as db:
        yield Jobs(db)


def begin(data_dir: Path) -> tuple[NewJob, RunRecord]:
    prompt = {"model": "tiny", "tokens": 3, "ids": [1, 2, 3], "max_tokens": 9}
    record = RunRecord.create(data_dir, NEW.id, NEW.created_at, request={}, prompt=prompt)
    return replace(NEW, record=str(record.path.relative_to(data_dir))), record


async def run_begun(jobs: Jobs, data_dir: Path) -> tuple[Job, RunRecord]:
    new, record = begin(data_dir)
    await jobs.insert(new)
    job = await jobs.claim(GONE, "engine-0", 30, model="tiny")
    assert job is not None
    record.append([{"event": "admitted"}, {"event": "claimed", "attempt": 1}])
    record.append([{"event": "tokens", "ids": [7, 8], "text": "ab"}])
    return job, record


def response(state: JobState, **more: Any) -> dict[str, Any]:
    text = {"type": "text", "text": "ab"}
    usage = Usage(PromptUsage(3), output_tokens=2)
    message = Message("msg_1", "tiny", [text], stop_sequence=None, usage=usage, **more)
    return recorded(state, message, None)


async def recovered(jobs: Jobs, data_dir: Path, *, agrees: bool = True) -> Job:
    """The one job after recovery, which everything stored must agree about."""
    assert await recover(jobs, data_dir, lambda owner: False) == 1
    assert await recover(jobs, data_dir, lambda owner: False) == 0
    [job] = await jobs.list()
    telemetry = await telemetry_of(jobs._db, job.id)  # pyright: ignore[reportPrivateUsage]
    stored = StoredRun(job, await jobs.history(job.id), telemetry)
    found = disagreements(stored, data_dir)
    assert (found == []) is agrees, found
    return job


@pytest.mark.anyio
async def test_a_running_job_is_interrupted_and_its_record_stays_open(
    jobs: Jobs, tmp_path: Path
) -> None:
    _, record = await run_begun(jobs, tmp_path)
    job = await recovered(jobs, tmp_path)
    assert job.state is JobState.INTERRUPTED
    assert job.error_message == "the service ended while the run was going on"
    assert not record.closed


@pytest.mark.anyio
async def test_a_job_whose_record_is_closed_gets_the_end_its_record_has(
    jobs: Jobs, tmp_path: Path
) -> None:
    _, record = await run_begun(jobs, tmp_path)
    measured = {name: getattr(MEASURED, name) for name in MEASURED.__dataclass_fields__}
    record.close(response=response(JobState.SUCCEEDED, stop_reason="end_turn"), telemetry=measured)
    job = await recovered(jobs, tmp_path)
    assert (job.state, job.stop_reason, job.output_tokens) == (JobState.SUCCEEDED, "end_turn", 2)


@pytest.mark.anyio
async def test_a_batchs_request_is_run_again_when_its_answer_was_not_kept(
    jobs: Jobs, tmp_path: Path
) -> None:
    """With content off, the record has the answer's shape, which would be no result."""
    at = NEW.created_at
    batch = NewBatch("msgbatch_1", "req_1", "tiny", None, 1, created_at=at, expires_at=at + 60)
    batches = Batches(jobs._db)  # pyright: ignore[reportPrivateUsage]
    await batches.create(batch, [NewRequest(NEW.id, "msg_1", "first", 9, b"{}")])
    _, record = begin(tmp_path)
    job = await jobs.claim(GONE, "engine-0", 30, model="tiny")
    assert job is not None
    record.append([{"event": "claimed", "attempt": 1}, {"event": "tokens", "count": 2, "chars": 2}])
    answer = response(JobState.SUCCEEDED, stop_reason="end_turn")
    answer["message"]["content"] = [{"type": "text", "text": {"chars": 2}}]
    record.close(response=answer, telemetry=None)
    assert await recover(jobs, tmp_path, lambda owner: False) == 1
    [job] = await jobs.list()
    assert (job.state, job.lost_leases) == (JobState.QUEUED, 1)
    assert await batches.params(job.id) == b"{}"


@pytest.mark.anyio
async def test_a_running_job_that_was_asked_to_stop_is_cancelled_with_its_text(
    jobs: Jobs, tmp_path: Path
) -> None:
    _, record = await run_begun(jobs, tmp_path)
    await jobs.request_cancel(NEW.id, "by hand")
    job = await recovered(jobs, tmp_path)
    assert (job.state, job.output_tokens) == (JobState.CANCELLED, 2)
    kept = record.response()
    assert kept is not None
    assert kept["message"]["content"] == [{"type": "text", "text": "ab"}]


@pytest.mark.anyio
async def test_a_cancelled_job_recorded_without_content_agrees_with_its_events(
    jobs: Jobs, tmp_path: Path
) -> None:
    new, record = begin(tmp_path)
    await jobs.insert(new)
    assert await jobs.claim(GONE, "engine-0", 30, model="tiny") is not None
    record.append([{"event": "admitted"}, {"event": "claimed", "attempt": 1}])
    record.append([{"event": "tokens", "count": 2, "chars": 5}])
    await jobs.request_cancel(NEW.id, "by hand")
    assert (await recovered(jobs, tmp_path)).output_tokens == 2


@pytest.mark.anyio
async def test_a_queued_job_is_interrupted(jobs: Jobs, tmp_path: Path) -> None:
    new, record = begin(tmp_path)
    await jobs.insert(new)
    job = await recovered(jobs, tmp_path)
    assert job.state is JobState.INTERRUPTED
    assert not record.closed


@pytest.mark.anyio
async def test_a_queued_job_that_was_asked_to_stop_is_cancelled(jobs: Jobs, tmp_path: Path) -> None:
    new, record = begin(tmp_path)
    await jobs.insert(new)
    await jobs.request_cancel(NEW.id, "by hand")
    job = await recovered(jobs, tmp_path)
    assert job.state is JobState.CANCELLED
    assert record.closed


@pytest.mark.anyio
@pytest.mark.parametrize("running", [False, True], ids=["queued", "running"])
@pytest.mark.parametrize("asked_to_stop", [False, True], ids=["", "asked to stop"])
async def test_a_job_whose_record_is_gone_ends_all_the_same(
    jobs: Jobs, tmp_path: Path, running: bool, asked_to_stop: bool
) -> None:
    if running:
        _, record = await run_begun(jobs, tmp_path)
    else:
        new, record = begin(tmp_path)
        await jobs.insert(new)
    if asked_to_stop:
        await jobs.request_cancel(NEW.id, "by hand")
    shutil.rmtree(record.path)
    job = await recovered(jobs, tmp_path, agrees=False)
    assert job.state not in (JobState.QUEUED, JobState.RUNNING)


@pytest.mark.anyio
async def test_a_job_whose_record_is_damaged_fails_with_the_reason(
    jobs: Jobs, tmp_path: Path
) -> None:
    _, record = await run_begun(jobs, tmp_path)
    await jobs.request_cancel(NEW.id, "by hand")
    (record.path / "events.jsonl").write_bytes(b"torn\n{}\n")
    job = await recovered(jobs, tmp_path, agrees=False)
    assert job.state is JobState.FAILED
    assert "is damaged" in (job.error_message or "")


@pytest.mark.anyio
@pytest.mark.parametrize("response", [b"{}", b"[]", b'{"state": "gone", "error": null}'])
async def test_a_job_whose_response_is_none_fails_with_the_reason(
    jobs: Jobs, tmp_path: Path, response: bytes
) -> None:
    _, record = await run_begun(jobs, tmp_path)
    (record.path / "response.json").write_bytes(response)
    job = await recovered(jobs, tmp_path, agrees=False)
    assert (job.state, job.error_type) == (JobState.FAILED, "api_error")
    assert job.error_message == "the run's record has not the shape of one"
