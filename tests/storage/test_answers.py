"""The tokens of answers go with their runs, and belong to one API key."""

from collections.abc import Callable
from hashlib import sha256

import anyio
import pytest
from sqlalchemy import delete

from storage.answers import KeptAnswer, kept_answers
from storage.database import Database
from storage.jobs import Job, Jobs, JobState, NewJob
from storage.tables import jobs as table

pytestmark = pytest.mark.anyio

NewJobs = Callable[..., NewJob]
DIGEST = sha256(b"an answer").digest()


async def claimed(jobs: Jobs, new: NewJob) -> Job:
    await jobs.insert(new)
    job = await jobs.claim("me", new.id, lease_seconds=30, model="m", only=new.id)
    assert job is not None
    return job


async def succeed(jobs: Jobs, job: Job, ids: bytes, digest: bytes = DIGEST) -> bool:
    return await jobs.finish(job, JobState.SUCCEEDED, answers=[KeptAnswer(digest, ids)])


async def test_an_answer_is_found_by_the_key_of_its_job_alone(
    db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    await succeed(jobs, await claimed(jobs, new_job(api_key="key_a")), b"of a")
    await succeed(jobs, await claimed(jobs, new_job(api_key=None)), b"of none")
    assert await kept_answers(db, "key_a", [DIGEST]) == [KeptAnswer(DIGEST, b"of a")]
    assert await kept_answers(db, None, [DIGEST]) == [KeptAnswer(DIGEST, b"of none")]
    assert await kept_answers(db, "key_b", [DIGEST]) == []
    assert await kept_answers(db, "key_a", [sha256(b"another").digest()]) == []


async def test_of_answers_that_say_the_same_the_last_stays_and_goes_with_its_own_job(
    db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    first, last = [await claimed(jobs, new_job()) for _ in range(2)]
    await succeed(jobs, first, b"first")
    await succeed(jobs, last, b"last")
    for job, left in ((first, [KeptAnswer(DIGEST, b"last")]), (last, [])):
        async with db.write() as connection:
            await connection.execute(delete(table).where(table.c.id == job.id))
        assert await kept_answers(db, None, [DIGEST]) == left


async def test_a_job_that_was_lost_leaves_no_answer(
    db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    job = await claimed(jobs, new_job())
    assert await jobs.requeue(job)
    assert not await succeed(jobs, job, b"too late")
    assert await kept_answers(db, None, [DIGEST]) == []


async def test_answers_that_say_the_same_may_end_at_the_same_time(
    db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    all_of_them = [await claimed(jobs, new_job()) for _ in range(8)]
    async with anyio.create_task_group() as tasks:
        for job in all_of_them:
            tasks.start_soon(succeed, jobs, job, job.id.encode())
    (kept,) = await kept_answers(db, None, [DIGEST])
    assert kept.ids.decode() in {job.id for job in all_of_them}


async def test_any_number_of_answers_may_be_asked_for_at_once(
    db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    digests = [sha256(str(each).encode()).digest() for each in range(40_000)]
    await succeed(jobs, await claimed(jobs, new_job()), b"ids", digests[-1])
    assert await kept_answers(db, None, digests) == [KeptAnswer(digests[-1], b"ids")]
