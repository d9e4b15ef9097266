import re
import time
from collections.abc import Callable
from dataclasses import replace

import anyio
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from storage.database import Database
from storage.jobs import MOVES, DuplicateKey, Job, Jobs, JobState, NewJob
from storage.tables import jobs as table
from storage.telemetry import Telemetry, telemetry_of

pytestmark = pytest.mark.anyio

NewJobs = Callable[..., NewJob]
MEASURED = Telemetry(0.5, 0.0, 1.5, 2.0, 3.5, 5, 7, 5, 1 << 40, 2.0, None)
ENDS = [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.INTERRUPTED]


async def claimed(jobs: Jobs, new: NewJob, engine: str = "engine") -> Job:
    await jobs.insert(new)
    job = await jobs.claim("me", engine, lease_seconds=30, model="m")
    assert job is not None
    return job


async def run_sql(db: Database, statement: str) -> None:
    async with db.write() as connection:
        await connection.execute(text(statement))


RUN = "owner = 'me', lease_expires_at = 9, engine = 'e', started_at = 2, finished_at = NULL"
FREE = "owner = NULL, lease_expires_at = NULL, engine = NULL, started_at = NULL, finished_at = NULL"
END = "lease_expires_at = NULL, finished_at = 3"


def columns(state: JobState) -> str:
    return {JobState.RUNNING: RUN, JobState.QUEUED: FREE}.get(state, END)


async def put_into(db: Database, state: JobState) -> None:
    """Bring the only job, queued, to `state`, by raw SQL and legal moves."""
    if state in (JobState.SUCCEEDED, JobState.RUNNING):
        await run_sql(db, f"UPDATE jobs SET state = 'running', {RUN}")
    if state not in (JobState.QUEUED, JobState.RUNNING):
        await run_sql(db, f"UPDATE jobs SET state = '{state}', {END}")


@pytest.mark.parametrize("old", JobState)
@pytest.mark.parametrize("new", JobState)
async def test_the_database_allows_the_moves_of_the_table_and_no_other(
    db: Database, jobs: Jobs, new_job: NewJobs, old: JobState, new: JobState
) -> None:
    await jobs.insert(new_job(id="a"))
    await put_into(db, old)
    before = await jobs.history("a")
    move = run_sql(db, f"UPDATE jobs SET state = '{new}', {columns(new)}")
    if new in MOVES[old]:
        await move
        last = (await jobs.history("a"))[len(before) :]
        assert [(it.from_state, it.to_state) for it in last] == [(old, new)]
    elif new is old:
        await move
        assert await jobs.history("a") == before
    else:
        with pytest.raises(IntegrityError, match="cannot make this move"):
            await move
        assert await jobs.history("a") == before


@pytest.mark.parametrize(
    ("state", "change"),
    [
        (JobState.QUEUED, "owner = 'me'"),
        (JobState.QUEUED, "finished_at = 3"),
        (JobState.QUEUED, "state = 'running'"),
        (JobState.QUEUED, "state = 'cancelled'"),
        (JobState.QUEUED, "state = 'asleep'"),
        (JobState.QUEUED, "input_tokens = -1"),
        (JobState.RUNNING, "owner = NULL"),
        (JobState.RUNNING, "engine = NULL"),
        (JobState.RUNNING, "started_at = NULL"),
        (JobState.RUNNING, "lease_expires_at = NULL"),
        (JobState.RUNNING, "finished_at = 3"),
        (JobState.RUNNING, "state = 'succeeded'"),
        (JobState.RUNNING, "state = 'interrupted'"),
        (JobState.SUCCEEDED, "finished_at = NULL"),
        (JobState.SUCCEEDED, "cancel_requested_at = 4"),
        (JobState.INTERRUPTED, "finished_at = NULL"),
        (JobState.INTERRUPTED, "cancel_requested_at = 4"),
        (JobState.INTERRUPTED, "state = 'queued'"),
    ],
)
async def test_the_database_refuses_a_row_that_contradicts_itself(
    db: Database, jobs: Jobs, new_job: NewJobs, state: JobState, change: str
) -> None:
    await jobs.insert(new_job())
    await put_into(db, state)
    with pytest.raises(IntegrityError):
        await run_sql(db, f"UPDATE jobs SET {change}")


async def test_a_job_begins_as_queued(db: Database, jobs: Jobs, new_job: NewJobs) -> None:
    await jobs.insert(new_job(id="a"))
    with pytest.raises(IntegrityError, match="begins as queued"):
        await run_sql(
            db,
            "INSERT INTO jobs (id, message_id, request_id, state, model, streaming, record, "
            "created_at, finished_at, input_tokens, max_tokens) "
            "SELECT 'b', message_id, request_id, 'failed', model, streaming, record, "
            "created_at, 3, input_tokens, max_tokens FROM jobs",
        )


async def test_an_engine_runs_one_job_whoever_writes(
    db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    await claimed(jobs, new_job())
    await jobs.insert(new_job(id="b"))
    with pytest.raises(IntegrityError, match="engine"):
        await run_sql(
            db,
            f"UPDATE jobs SET state = 'running', {RUN} WHERE id = 'b'".replace("'e'", "'engine'"),
        )
    assert await jobs.claim("me", "engine", 30, model="m") is None
    assert await jobs.claim("me", "other", 30, model="m") is not None


async def test_an_inserted_job_is_queued_as_it_was_told(jobs: Jobs, new_job: NewJobs) -> None:
    new = new_job(id="a", streaming=False, api_key="key_1", created_at=1234.5)
    job = await jobs.insert(new)
    assert (job.state, job.attempt, job.owner, job.created_at) == ("queued", 0, None, 1234.5)
    assert (job.streaming, job.api_key) == (False, "key_1")
    assert await jobs.get("a") == job
    assert await jobs.get("unknown") is None


async def test_jobs_are_claimed_in_order_of_arrival(jobs: Jobs, new_job: NewJobs) -> None:
    # The clock went back between the two.
    await jobs.insert(new_job(id="first", created_at=200.0))
    await jobs.insert(new_job(id="second", created_at=100.0))
    taken = [await jobs.claim("me", engine, 30, model="m") for engine in ("e1", "e2", "e3")]
    assert [job and job.id for job in taken] == ["first", "second", None]


async def test_a_claim_says_who_holds_the_job_and_for_how_long(
    jobs: Jobs, new_job: NewJobs
) -> None:
    before = time.time()
    job = await claimed(jobs, new_job())
    assert (job.state, job.owner, job.engine, job.attempt) == ("running", "me", "engine", 1)
    assert job.started_at is not None
    assert before <= job.started_at <= time.time()
    assert job.lease_expires_at == job.started_at + 30


async def test_a_job_asked_to_stop_is_not_claimed(jobs: Jobs, new_job: NewJobs) -> None:
    await jobs.insert(new_job(id="a"))
    await jobs.insert(new_job(id="b"))
    await jobs.request_cancel("a", "client left")
    job = await jobs.claim("me", "engine", 30, model="m")
    assert job is not None
    assert job.id == "b"


async def test_a_beat_prolongs_the_lease(jobs: Jobs, new_job: NewJobs) -> None:
    job = await claimed(jobs, new_job())
    assert await jobs.beat(job, lease_seconds=1000)
    now = await jobs.get(job.id)
    assert now is not None
    assert now.lease_expires_at is not None
    assert now.lease_expires_at > time.time() + 900


@pytest.mark.parametrize("state", ENDS)
async def test_a_finished_job_tells_its_end_and_its_telemetry(
    db: Database, jobs: Jobs, new_job: NewJobs, state: JobState
) -> None:
    job = await claimed(jobs, new_job())
    assert await jobs.finish(
        job,
        state,
        stop_reason="end_turn",
        error_type="api_error",
        error_message="why",
        output_tokens=7,
        telemetry=MEASURED,
    )
    done = await jobs.get(job.id)
    assert done is not None
    assert done == replace(
        job,
        state=state,
        lease_expires_at=None,
        finished_at=done.finished_at,
        stop_reason="end_turn",
        error_type="api_error",
        error_message="why",
        output_tokens=7,
    )
    assert await telemetry_of(db, job.id) == MEASURED
    assert await telemetry_of(db, "unknown") is None


@pytest.mark.parametrize("change", [{"attempt": 0}, {"attempt": 2}, {"owner": "another"}])
async def test_a_stale_holder_writes_nothing(
    db: Database, jobs: Jobs, new_job: NewJobs, change: dict[str, object]
) -> None:
    job = await claimed(jobs, new_job())
    stale = replace(job, **change)
    assert not await jobs.beat(stale, 1000)
    assert not await jobs.finish(stale, JobState.SUCCEEDED, telemetry=MEASURED)
    assert await jobs.get(job.id) == job
    assert await telemetry_of(db, job.id) is None


async def test_a_resumed_job_is_out_of_reach_of_its_first_holder(
    db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    first = await claimed(jobs, new_job(id="a"))
    assert await jobs.finish(first, JobState.INTERRUPTED)
    await run_sql(db, f"UPDATE jobs SET state = 'queued', {FREE}")
    second = await jobs.claim("me", "engine", 30, model="m")
    assert second is not None
    assert second.attempt == 2
    assert not await jobs.finish(first, JobState.SUCCEEDED)
    assert await jobs.finish(second, JobState.SUCCEEDED)
    assert [(it.to_state, it.attempt, it.owner) for it in await jobs.history("a")] == [
        ("queued", 0, None),
        ("running", 1, "me"),
        ("interrupted", 1, "me"),
        ("queued", 1, None),
        ("running", 2, "me"),
        ("succeeded", 2, "me"),
    ]


async def test_history_has_the_times_of_the_row(jobs: Jobs, new_job: NewJobs) -> None:
    job = await claimed(jobs, new_job())
    await jobs.finish(job, JobState.SUCCEEDED)
    done = await jobs.get(job.id)
    assert done is not None
    times = [it.at for it in await jobs.history(job.id)]
    assert times == [done.created_at, done.started_at, done.finished_at]


async def test_the_first_request_to_cancel_stays(jobs: Jobs, new_job: NewJobs) -> None:
    await jobs.insert(new_job(id="a"))
    first = await jobs.request_cancel("a", "client left")
    assert first is not None
    assert first.cancel_reason == "client left"
    assert first.cancel_requested_at is not None
    assert await jobs.request_cancel("a", "operator") == first
    assert await jobs.cancel_requests() == [first]


async def test_an_ended_job_cannot_be_asked_to_stop(jobs: Jobs, new_job: NewJobs) -> None:
    job = await claimed(jobs, new_job())
    await jobs.finish(job, JobState.SUCCEEDED)
    answer = await jobs.request_cancel(job.id, "late")
    assert answer is not None
    assert (answer.state, answer.cancel_requested_at) == ("succeeded", None)
    assert await jobs.request_cancel("unknown", "late") is None


async def test_cancel_requests_are_those_still_to_be_acted_on(jobs: Jobs, new_job: NewJobs) -> None:
    running = await claimed(jobs, new_job(id="running"))
    await jobs.insert(new_job(id="queued"))
    await jobs.insert(new_job(id="unasked"))
    for id in ("queued", "running"):
        await jobs.request_cancel(id, "stop")
    assert [job.id for job in await jobs.cancel_requests()] == ["running", "queued"]
    assert await jobs.finish(running, JobState.CANCELLED)
    assert await jobs.cancel_queued("queued")
    assert await jobs.cancel_requests() == []


async def test_a_queued_job_can_end_without_running(jobs: Jobs, new_job: NewJobs) -> None:
    for id in "ac":
        await jobs.insert(new_job(id=id))
    assert await jobs.cancel_queued("a")
    assert await jobs.interrupt_queued("c", "the service stopped")
    found = {job.id: job for job in await jobs.list()}
    assert {id: job.state for id, job in found.items()} == {
        "a": "cancelled",
        "c": "interrupted",
    }
    assert (found["c"].error_type, found["c"].error_message) == (
        "api_error",
        "the service stopped",
    )
    assert all(job.finished_at for job in found.values())


async def test_a_running_job_is_not_ended_as_a_queued_one(jobs: Jobs, new_job: NewJobs) -> None:
    job = await claimed(jobs, new_job())
    assert not await jobs.cancel_queued(job.id)
    assert not await jobs.interrupt_queued(job.id, "no")
    assert await jobs.get(job.id) == job


async def test_orphans_are_jobs_without_owner_or_lease(jobs: Jobs, new_job: NewJobs) -> None:
    for id in ("alive", "dead", "late", "waiting"):
        await jobs.insert(new_job(id=id))
    await jobs.claim("alive", "e1", 30, model="m")
    await jobs.claim("dead", "e2", 30, model="m")
    await jobs.claim("alive", "e3", -1, model="m")
    found = await jobs.orphans(lambda owner: owner == "alive")
    assert [job.id for job in found] == ["dead", "late"]
    assert [job.id for job in await jobs.queued()] == ["waiting"]


async def test_a_listing_is_newest_first_and_can_be_narrowed(
    db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    for number, model in enumerate(["x", "y", "x", "y"]):
        await jobs.insert(new_job(id=f"j{number}", model=model, created_at=float(number)))
    await jobs.cancel_queued("j3")

    async def ids(**narrowed: object) -> list[str]:
        return [job.id for job in await jobs.list(**narrowed)]  # type: ignore[arg-type]

    assert await ids() == ["j3", "j2", "j1", "j0"]
    assert await ids(model="x") == ["j2", "j0"]
    assert await ids(states=[JobState.CANCELLED]) == ["j3"]
    assert await ids(since=1.0, until=3.0) == ["j2", "j1"]
    assert await ids(limit=2) == ["j3", "j2"]
    assert await ids(limit=2, before="j2") == ["j1", "j0"]
    assert await ids(before="unknown") == []


async def test_the_queue_tells_each_job_its_place(jobs: Jobs, new_job: NewJobs) -> None:
    for id in "abc":
        await jobs.insert(new_job(id=id))
    await jobs.claim("me", "engine", 30, model="m")
    assert [await jobs.position(id) for id in ("a", "b", "c", "d")] == [None, 1, 2, None]
    counts = await jobs.counts()
    assert counts == dict.fromkeys(JobState, 0) | {JobState.RUNNING: 1, JobState.QUEUED: 2}


@pytest.mark.parametrize(
    ("where", "index"),
    [
        ("jobs.state = 'queued' AND model = 'm' ORDER BY priority DESC, turn, seq", "jobs_queue"),
        (
            "cancel_requested_at IS NOT NULL AND finished_at IS NULL ORDER BY seq",
            "jobs_cancel_requests",
        ),
        ("jobs.state = 'running' AND engine = 'e'", "jobs_one_running_per_engine"),
        ("created_at >= 1 AND created_at < 2", "jobs_created_at"),
    ],
)
async def test_the_common_questions_have_an_index(db: Database, where: str, index: str) -> None:
    async with db.read() as connection:
        if db.shared:
            # Which for a table with hardly any rows it would prefer.
            for other in ("seqscan", "sort", "incremental_sort"):
                await connection.execute(text(f"SET LOCAL enable_{other} = off"))
        explain = "EXPLAIN" if db.shared else "EXPLAIN QUERY PLAN"
        plan = await connection.execute(text(f"{explain} SELECT * FROM jobs WHERE {where}"))
        assert re.search(rf"(?i)(index|scan) (using |on )?{index}\b", "\n".join(map(str, plan)))


async def test_pruned_jobs_take_their_history_along(
    db: Database, jobs: Jobs, new_job: NewJobs
) -> None:
    job = await claimed(jobs, new_job())
    await jobs.finish(job, JobState.SUCCEEDED, telemetry=MEASURED)
    async with db.write() as connection:
        await connection.execute(table.delete())
    assert await jobs.history(job.id) == []
    assert await telemetry_of(db, job.id) is None


async def test_a_message_with_half_a_character_is_stored(jobs: Jobs, new_job: NewJobs) -> None:
    await jobs.insert(new_job(id="a"))
    assert await jobs.interrupt_queued("a", "cut \ud83d, zero \0")
    job = await jobs.get("a")
    assert job is not None
    assert job.error_message == "cut ?, zero ?"


async def test_a_message_is_continued_by_one_job_at_a_time(jobs: Jobs, new_job: NewJobs) -> None:
    for end in (JobState.FAILED, JobState.CANCELLED, JobState.INTERRUPTED):
        job = await claimed(jobs, new_job(continues="msg"))
        with pytest.raises(DuplicateKey):
            await jobs.insert(new_job(continues="msg", api_key="other"))
        found = await jobs.continuation("msg")
        assert found is not None
        assert found.id == job.id
        await jobs.finish(job, end)
        assert await jobs.continuation("msg") is None
    job = await claimed(jobs, new_job(continues="msg"))
    await jobs.finish(job, JobState.SUCCEEDED)
    with pytest.raises(DuplicateKey):
        await jobs.insert(new_job(continues="msg"))


async def test_of_jobs_that_continue_a_message_at_once_one_is_taken(
    jobs: Jobs, new_job: NewJobs
) -> None:
    taken: list[Job] = []
    refused: list[DuplicateKey] = []

    async def insert() -> None:
        try:
            taken.append(await jobs.insert(new_job(continues="msg")))
        except DuplicateKey as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(insert)
    assert (len(taken), len(refused)) == (1, 7)


async def test_a_continuation_that_is_resumed_is_none_any_more(
    jobs: Jobs, new_job: NewJobs
) -> None:
    """The message may have been continued by another meanwhile."""
    job = await claimed(jobs, new_job(continues="msg"))
    await jobs.finish(job, JobState.INTERRUPTED)
    other = await jobs.insert(new_job(continues="msg"))
    assert await jobs.resume(job.id)
    found = await jobs.continuation("msg")
    assert found is not None
    assert found.id == other.id
