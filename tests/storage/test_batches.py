import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from storage.batch_progress import LATE_NUMBERS, ROWS_AT_ONCE, BatchProgress, Move
from storage.batches import (
    EXPIRED,
    RESULTS_AT_ONCE,
    Batch,
    Batches,
    DuplicateKey,
    NewBatch,
    NewRequest,
    Outcome,
    Result,
)
from storage.batches import (
    ROWS_AT_ONCE as INSERTED_AT_ONCE,
)
from storage.database import Database
from storage.jobs import Job, Jobs, JobState, Priority
from storage.retention import discarded
from storage.run_records import record_path
from storage.tables import jobs as table
from storage.telemetry import telemetry_of
from storage.verification import StoredRun, disagreements

pytestmark = pytest.mark.anyio

_numbers = itertools.count()


@pytest.fixture
def batches(db: Database) -> Batches:
    return Batches(db)


def requests(names: str | list[str]) -> Iterator[NewRequest]:
    for name in names:
        suffix = f"{name}{next(_numbers)}"
        params = json.dumps({"custom": name}).encode()
        yield NewRequest(f"run_{suffix}", f"msg_{suffix}", name, 8, params)


def new_batch(id: str, total: int, **known: Any) -> NewBatch:
    now = time.time()
    values: dict[str, Any] = {"api_key": None, "created_at": now, "expires_at": now + 60, **known}
    return NewBatch(id=id, request_id=f"req_{id}", model="m", total=total, **values)


async def create(batches: Batches, names: str | list[str], id: str = "b", **known: Any) -> Batch:
    return await batches.create(new_batch(id, len(names), **known), requests(names))


async def claim(jobs: Jobs, engine: str = "e") -> Job:
    job = await jobs.claim("me", engine, 30, model="m")
    assert job is not None
    return job


async def finish(jobs: Jobs, state: JobState = JobState.SUCCEEDED, **more: Any) -> Job:
    job = await claim(jobs)
    assert await jobs.finish(job, state, **more)
    return job


async def now(batches: Batches, batch: Batch) -> Batch:
    found = await batches.get(batch.id, batch.api_key)
    assert found is not None
    return found


async def results(batches: Batches, batch: Batch) -> list[Result]:
    return [each async for page in batches.results(batch) for each in page]


async def outcomes(batches: Batches, batch: Batch) -> dict[str, str]:
    return {each.custom_id: each.outcome.value for each in await results(batches, batch)}


async def counts(batches: Batches, batch: Batch) -> dict[Outcome, int]:
    found = (await batches.counts([batch.id]))[batch.id]
    return {outcome: count for outcome, count in found.items() if count}


async def test_a_created_batch_is_queued_background_work(batches: Batches, jobs: Jobs) -> None:
    batch = await create(batches, "xyz", api_key="k")
    assert (batch.total, batch.ended_at, batch.cancel_requested_at) == (3, None, None)
    assert await batches.get("b", "k") == batch
    queued = await jobs.queued()
    assert [(await batches.params(job.id)) for job in queued] == [
        b'{"custom": "x"}', b'{"custom": "y"}', b'{"custom": "z"}',
    ]  # fmt: skip
    first = queued[0]
    assert (first.priority, first.home, first.batch_id) == (Priority.BACKGROUND, None, "b")
    assert (first.api_key, first.request_id, first.streaming) == ("k", "req_b", False)
    assert (first.input_tokens, first.max_tokens, first.attempt) == (0, 8, 0)
    assert first.record == str(record_path(Path(), first.id, batch.created_at))
    assert await counts(batches, batch) == {Outcome.PROCESSING: 3}


async def test_a_batch_is_there_as_a_whole_or_not_at_all(batches: Batches, jobs: Jobs) -> None:
    names = [f"n{number}" for number in range(INSERTED_AT_ONCE + 1)]

    def broken() -> Iterator[NewRequest]:
        yield from requests(names)
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        await batches.create(new_batch("b", len(names) + 1), broken())
    assert await batches.get("b", None) is None
    assert await jobs.queued() == []
    batch = await create(batches, names)
    assert len(await jobs.queued()) == len(names)
    assert [each.custom_id for each in await results(batches, batch)] == names


async def test_one_who_creates_and_goes_leaves_nothing(batches: Batches, jobs: Jobs) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> Iterator[NewRequest]:
        for request in requests([f"n{number}" for number in range(4 * INSERTED_AT_ONCE)]):
            loop.call_soon_threadsafe(begun.set)
            yield request

    task = asyncio.create_task(batches.create(new_batch("b", 4 * INSERTED_AT_ONCE), slow()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await batches.get("b", None) is None
    await create(batches, "x")
    assert len(await jobs.queued()) == 1


async def test_keys_take_turns_with_their_batches(batches: Batches, jobs: Jobs) -> None:
    await create(batches, ["a1", "a2", "a3"], "a", api_key="a")
    await create(batches, ["b1", "b2"], "b", api_key="b")
    order = [(await finish(jobs)).id[4:6] for _ in range(5)]
    assert order == ["a1", "b1", "a2", "b2", "a3"]


async def test_a_batch_of_another_key_does_not_exist(batches: Batches) -> None:
    await create(batches, "x", "a", api_key="a", idempotency_key="i")
    await create(batches, "x", "none", idempotency_key="i")
    assert await batches.get("a", "b") is None
    assert await batches.get("a", None) is None
    assert await batches.get("none", "a") is None
    assert await batches.with_key("b", "i") is None
    assert [each.id for each in (await batches.page("a", limit=9)).batches] == ["a"]
    assert [each.id for each in (await batches.page(None, limit=9)).batches] == ["none"]
    assert (await batches.page(None, limit=9, before="a")).batches == []


async def test_an_idempotency_key_makes_one_batch(batches: Batches, jobs: Jobs) -> None:
    batch = await create(batches, "x", "a", idempotency_key="i", request_sha256="s")
    with pytest.raises(DuplicateKey):
        await create(batches, "y", "b", idempotency_key="i")
    assert await batches.with_key(None, "i") == batch
    assert len(await jobs.queued()) == 1
    await create(batches, "z", "c", api_key="other", idempotency_key="i")


async def test_pages_go_from_the_newest_to_the_oldest_and_back(batches: Batches) -> None:
    for id in "abcde":
        # The clock stands still, or goes back.
        await create(batches, "x", id, created_at=100.0 - ord(id), expires_at=999.0)

    async def page(**cursor: str) -> tuple[str, bool]:
        found = await batches.page(None, limit=2, **cursor)
        return "".join(each.id for each in found.batches), found.has_more

    assert await page() == ("ed", True)
    assert await page(after="d") == ("cb", True)
    await create(batches, "x", "f")
    assert await page(after="d") == ("cb", True)
    assert await page(after="b") == ("a", False)
    assert await page(before="a") == ("cb", True)
    assert await page(before="c") == ("ed", True)
    assert await page(before="d") == ("fe", False)
    assert await page(after="unknown") == ("", False)


async def test_a_batch_ends_with_its_last_request(batches: Batches, jobs: Jobs) -> None:
    batch = await create(batches, "xyz")
    first = await finish(jobs, result=b'{"text": "one"}')
    await finish(jobs, JobState.FAILED, error_type="invalid_request_error", error_message="why")
    assert (await now(batches, batch)).ended_at is None
    assert await batches.params(first.id) is None
    last = await finish(jobs, result=b'{"text": "three"}')
    batch, done = await now(batches, batch), await jobs.get(last.id)
    assert done is not None
    assert batch.ended_at == done.finished_at
    assert await counts(batches, batch) == {Outcome.SUCCEEDED: 2, Outcome.ERRORED: 1}
    assert await results(batches, batch) == [
        Result("x", "req_b", Outcome.SUCCEEDED, None, None, b'{"text": "one"}'),
        Result("y", "req_b", Outcome.ERRORED, "invalid_request_error", "why", None),
        Result("z", "req_b", Outcome.SUCCEEDED, None, None, b'{"text": "three"}'),
    ]


async def test_results_come_in_the_order_of_the_requests(batches: Batches) -> None:
    names = [f"n{number}" for number in range(2 * RESULTS_AT_ONCE + 1)]
    batch = await create(batches, names)
    await batches.cancel(batch, "why")
    pages = [page async for page in batches.results(batch)]
    assert [len(page) for page in pages] == [RESULTS_AT_ONCE, RESULTS_AT_ONCE, 1]
    assert [each.custom_id for page in pages for each in page] == names


async def test_cancellation_spares_what_is_done_and_asks_what_runs_to_stop(
    batches: Batches, jobs: Jobs
) -> None:
    batch = await create(batches, "abcdefghij")
    for _ in range(3):
        await finish(jobs)
    running = [await claim(jobs, "e1"), await claim(jobs, "e2")]
    await batches.cancel(batch, "why")
    batch = await now(batches, batch)
    assert batch.cancel_requested_at is not None
    assert batch.ended_at is None
    expected = {Outcome.SUCCEEDED: 3, Outcome.PROCESSING: 2, Outcome.CANCELED: 5}
    assert await counts(batches, batch) == expected
    assert {(job.id, job.cancel_reason) for job in await jobs.cancel_requests()} == {
        (job.id, "why") for job in running
    }
    await batches.cancel(batch, "again")
    assert await now(batches, batch) == batch
    # One of them was done before it saw the request.
    assert await jobs.finish(running[0], JobState.SUCCEEDED)
    assert await jobs.finish(running[1], JobState.CANCELLED)
    assert await counts(batches, batch) == {Outcome.SUCCEEDED: 4, Outcome.CANCELED: 6}
    ended = await now(batches, batch)
    assert ended.ended_at is not None
    await batches.cancel(ended, "late")
    assert await now(batches, batch) == ended


async def test_a_request_that_had_begun_is_left_to_whoever_closes_its_record(
    batches: Batches, jobs: Jobs
) -> None:
    batch = await create(batches, "xy")
    assert await jobs.requeue(await claim(jobs))
    await batches.cancel(batch, "why")
    assert await counts(batches, batch) == {Outcome.PROCESSING: 1, Outcome.CANCELED: 1}
    (waiting,) = await jobs.cancel_requests()
    assert waiting.state is JobState.QUEUED
    assert await jobs.claim("me", "e", 30, model="m") is None
    assert await jobs.cancel_queued(waiting.id)
    assert (await now(batches, batch)).ended_at is not None


async def test_a_batch_expires_when_its_time_is_over(batches: Batches, jobs: Jobs) -> None:
    batch = await create(batches, "xyz", expires_at=1000.0)
    await create(batches, "w", "later", expires_at=2000.0)
    await finish(jobs)
    running = await claim(jobs)
    assert await batches.expire(999.0) == 0
    assert await batches.expire(1000.0) == 2
    assert await batches.expire(1001.0) == 0
    assert await counts(batches, batch) == {
        Outcome.SUCCEEDED: 1, Outcome.PROCESSING: 1, Outcome.EXPIRED: 1,
    }  # fmt: skip
    assert [job.cancel_reason for job in await jobs.cancel_requests()] == [EXPIRED]
    await batches.cancel(batch, "too late to count")
    assert await jobs.finish(running, JobState.CANCELLED)
    assert await outcomes(batches, batch) == {"x": "succeeded", "y": "expired", "z": "expired"}
    assert len(await jobs.queued()) == 1


async def test_a_deleted_batch_leaves_only_the_notes_of_its_records(
    db: Database, batches: Batches, jobs: Jobs
) -> None:
    batch = await create(batches, "xyz")
    other = await create(batches, "x", "other")
    done = await finish(jobs, result=b"{}")
    assert not await batches.delete(batch)
    await batches.cancel(batch, "why")
    assert await batches.delete(batch)
    assert not await batches.delete(batch)
    assert await batches.get(batch.id, None) is None
    assert await results(batches, batch) == []
    assert [job.batch_id for job in await jobs.list()] == ["other"]
    assert await discarded(db) == {done.record}
    assert await now(batches, other) == other


async def test_a_request_needs_no_record_before_it_is_claimed(
    db: Database, batches: Batches, jobs: Jobs, tmp_path: Path
) -> None:
    batch = await create(batches, "xy")

    async def faults() -> list[str]:
        found: list[str] = []
        for job in await jobs.list():
            stored = StoredRun(job, await jobs.history(job.id), await telemetry_of(db, job.id))
            found += disagreements(stored, tmp_path)
        return found

    assert await faults() == []
    done = await finish(jobs)
    await batches.cancel(batch, "why")
    assert await faults() == [f"its record {done.record} is missing"]


async def moves(progress: BatchProgress) -> AsyncIterator[Move]:
    while (news := await progress.news()) and news.moves:
        for move in news.moves:
            yield move


async def told(progress: BatchProgress) -> list[str]:
    return [f"{move.custom_id} {move.state}" async for move in moves(progress)]


async def test_progress_is_told_from_the_beginning_and_then_as_it_comes(
    db: Database, batches: Batches, jobs: Jobs
) -> None:
    await create(batches, "w", "before")
    await finish(jobs)
    batch = await create(batches, "xy")
    await create(batches, "z", "after")
    progress = BatchProgress(db, batch, 0)
    assert await told(progress) == ["x queued", "y queued"]
    await finish(jobs)
    assert await told(progress) == ["x running", "x succeeded"]
    await batches.cancel(batch, "why")
    news = await progress.news()
    assert news is not None
    assert [move.state for move in news.moves] == ["cancelled"]
    while news.ended_at is None:  # in a shared store, all is gone through once more first
        news = await progress.news()
        assert news is not None
    assert news.ended_at == (await now(batches, batch)).ended_at
    assert {each: count for each, count in news.counts.items() if count} == {
        Outcome.SUCCEEDED: 1, Outcome.CANCELED: 1,
    }  # fmt: skip
    assert await batches.delete(await now(batches, batch))
    assert await progress.news() is None


async def test_progress_goes_on_after_any_move(db: Database, batches: Batches, jobs: Jobs) -> None:
    batch = await create(batches, [f"n{number}" for number in range(ROWS_AT_ONCE + 9)])
    await finish(jobs)
    await batches.cancel(batch, "why")
    every = [move async for move in moves(BatchProgress(db, batch, 0))]
    assert len(every) == 2 * (ROWS_AT_ONCE + 9) + 1
    assert [move.seq for move in every] == sorted({move.seq for move in every})
    for place in (0, 7, ROWS_AT_ONCE, len(every) - 1):
        later = BatchProgress(db, batch, every[place].seq)
        assert [move async for move in moves(later)] == every[place + 1 :]
    news = await BatchProgress(db, batch, 10**18 - 1).news()
    assert news is not None
    assert (news.moves, news.ended_at is None) == ([], False)


async def test_progress_tells_a_move_that_was_committed_late(
    db: Database, batches: Batches, jobs: Jobs
) -> None:
    if not db.shared:
        pytest.skip("SQLite writes one after the other")
    batch = await create(batches, "xy")
    x, _ = await jobs.queued()
    progress = BatchProgress(db, batch, 0)
    assert await told(progress) == ["x queued", "y queued"]
    async with db.write() as connection:
        move = update(table).where(table.c.id == x.id)
        await connection.execute(move.values(state="cancelled", finished_at=9.0))
        await claim(jobs)
        assert await told(progress) == ["y running"]
    assert await told(progress) == ["x cancelled"]
    assert await told(progress) == []


async def test_progress_tells_all_before_the_end_however_late_it_was_committed(
    db: Database, batches: Batches, jobs: Jobs
) -> None:
    if not db.shared:
        pytest.skip("SQLite writes one after the other")
    batch = await create(batches, "xy")
    x, _ = await jobs.queued()
    progress = BatchProgress(db, batch, 0)
    assert await told(progress) == ["x queued", "y queued"]
    async with db.write() as connection:
        move = update(table).where(table.c.id == x.id)
        await connection.execute(move.values(state="cancelled", finished_at=9.0))
        await create(batches, [f"n{number}" for number in range(2 * LATE_NUMBERS)], "other")
        assert await told(progress) == []
    await batches.cancel(batch, "why")
    assert await told(progress) == ["y cancelled", "x cancelled"]
