"""Reading a run's events while they are written, wherever a reader joins."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from storage import event_log
from storage.database import Database
from storage.errors import StorageError
from storage.event_log import EventLog, LoggedEvent, follow
from storage.jobs import Job, Jobs, JobState, NewJob
from storage.run_records import RunRecord, record_path

EVENTS = [{"event": f"e{number}", "text": "x" * number * 7} for number in range(1, 9)]


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return RunRecord.create(tmp_path, "run_1", 0.0, request={}, prompt={})


def numbers(events: Sequence[LoggedEvent]) -> list[int]:
    return [event.seq for event in events]


def rest_of(log: EventLog) -> list[LoggedEvent]:
    found: list[LoggedEvent] = []
    while events := log.read():
        found += events
    return found


@pytest.mark.parametrize("piece", [1, 7, 50, 64 << 10])
@pytest.mark.parametrize("after", range(len(EVENTS) + 2))
def test_a_reader_that_joins_anywhere_gets_all_that_follows(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch, after: int, piece: int
) -> None:
    monkeypatch.setattr(event_log, "_PIECE_BYTES", piece)
    record.append(EVENTS)
    found = rest_of(EventLog(record.path, after))
    assert numbers(found) == list(range(after + 1, len(EVENTS) + 1))
    assert [event.details() for event in found] == record.events()[after:]
    assert [event.kind for event in found] == [each["event"] for each in EVENTS[after:]]


def test_what_is_written_at_any_split_is_read_when_it_is_whole(record: RunRecord) -> None:
    record.append(EVENTS[:2])
    whole = (record.path / "events.jsonl").read_bytes()
    for split in range(len(whole) + 1):
        (record.path / "events.jsonl").write_bytes(whole[:split])
        log = EventLog(record.path)
        first = rest_of(log)
        assert numbers(first) == [1, 2][: whole[:split].count(b"\n")]
        (record.path / "events.jsonl").write_bytes(whole)
        assert numbers([*first, *rest_of(log)]) == [1, 2]


@pytest.mark.parametrize("torn", [b'{"seq":3,"ev', b'{"seq":3,"event":"x"}', b"\0" * 40, b"\0\n"])
def test_a_torn_line_is_not_read_and_the_resumed_run_goes_on_with_its_number(
    record: RunRecord, torn: bytes
) -> None:
    record.append(EVENTS[:2])
    with (record.path / "events.jsonl").open("ab") as file:
        file.write(torn)
    logs = [EventLog(record.path, after) for after in range(4)]
    assert [numbers(rest_of(log)) for log in logs] == [[1, 2], [2], [], []]
    RunRecord.at(record.path).append(EVENTS[2:4])
    assert [numbers(rest_of(log)) for log in logs] == [[3, 4], [3, 4], [3, 4], [4]]


def test_a_change_is_told_once(record: RunRecord) -> None:
    log = EventLog(record.path)
    assert not log.changed()
    record.append(EVENTS[:1])
    assert log.changed()
    assert not log.changed()


def test_the_events_of_a_record_begun_anew_are_read_from_the_first(
    tmp_path: Path, record: RunRecord
) -> None:
    record.append(EVENTS[:3])
    log = EventLog(record.path, 2)
    assert numbers(rest_of(log)) == [3]
    for file in record.path.iterdir():
        file.unlink()
    record.path.rmdir()
    assert rest_of(log) == []
    anew = RunRecord.create(tmp_path, "run_1", 0.0, request={}, prompt={})
    anew.append(EVENTS[:4])
    assert numbers(rest_of(log)) == [1, 2, 3, 4]
    log.close()


def test_damage_is_told_by_line(record: RunRecord) -> None:
    (record.path / "events.jsonl").write_bytes(b'{"seq":1,"event":"a"}\n{"se\n{"seq":3}\n')
    with pytest.raises(StorageError, match=r"run_1/events\.jsonl is damaged in line 2"):
        rest_of(EventLog(record.path))


class Followed:
    """A run whose events are followed by one reader."""

    def __init__(self, jobs: Jobs, data_dir: Path, new: NewJob) -> None:
        self.jobs, self.data_dir, self._new = jobs, data_dir, new
        self.record = RunRecord.at(record_path(data_dir, "run_1", 0.0))

    async def queue(self) -> Job:
        self.job = await self.jobs.insert(self._new)
        return self.job

    async def claim(self) -> None:
        job = await self.jobs.claim("1:1.00", "engine-0", 60, model="m")
        assert job is not None
        self.job = job

    def begin_record(self) -> None:
        self.record = RunRecord.create(self.data_dir, "run_1", 0.0, request={}, prompt={})

    def follow(
        self, after: int = 0, quiet: float = 60
    ) -> AsyncIterator[Sequence[LoggedEvent] | Job]:
        return follow(self.jobs, self.job, self.data_dir, after=after, quiet_seconds=quiet)


@pytest.fixture
async def run(db: Database, tmp_path: Path, new_job: Callable[..., NewJob]) -> Followed:
    path = record_path(tmp_path, "run_1", 0.0)
    new = new_job(id="run_1", created_at=0.0, record=str(path.relative_to(tmp_path)))
    run = Followed(Jobs(db), tmp_path, new)
    await run.queue()
    return run


async def next_of(news: AsyncIterator[Any]) -> Any:
    with anyio.fail_after(20):
        return await anext(news)


@pytest.mark.anyio
async def test_a_run_is_followed_from_the_queue_to_its_end(run: Followed) -> None:
    news = run.follow(quiet=0)
    assert await next_of(news) == ()  # no record is there yet
    await run.claim()
    run.begin_record()
    run.record.append(EVENTS[:2])
    while not (found := await next_of(news)):
        pass
    assert numbers(found) == [1, 2]
    run.record.append(EVENTS[2:3])
    run.record.close(response={}, telemetry=None)
    await run.jobs.finish(run.job, JobState.SUCCEEDED, stop_reason="end_turn")
    while not (found := await next_of(news)):
        pass
    assert numbers(found) == [3]
    while not (found := await next_of(news)):
        pass
    assert (found.state, found.stop_reason) == (JobState.SUCCEEDED, "end_turn")
    with pytest.raises(StopAsyncIteration):
        await next_of(news)


@pytest.mark.anyio
async def test_a_run_that_ends_without_a_word_is_noticed(run: Followed) -> None:
    news = run.follow()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run.jobs.interrupt_queued, "run_1", "gone")
        assert (await next_of(news)).state is JobState.INTERRUPTED


@pytest.mark.anyio
async def test_an_ended_run_gives_what_is_missing_and_its_end(run: Followed) -> None:
    await run.claim()
    run.begin_record()
    run.record.append(EVENTS)
    run.record.close(response={}, telemetry=None)
    await run.jobs.finish(run.job, JobState.SUCCEEDED)
    for after in range(len(EVENTS) + 2):
        found = [each async for each in run.follow(after)]
        seen = [event.seq for each in found[:-1] for event in each]
        assert seen == list(range(after + 1, len(EVENTS) + 1))
        assert found[-1].state is JobState.SUCCEEDED
