import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from storage.database import Database
from storage.jobs import Jobs, JobState, NewJob, Transition
from storage.redaction import shapes
from storage.run_records import RunRecord, record_path
from storage.telemetry import Telemetry, telemetry_of
from storage.verification import StoredRun, disagreements, record_folders

pytestmark = pytest.mark.anyio

TELEMETRY = Telemetry(0.1, 0.2, 0.3, 0.4, 0.7, 5, 3, 5, None, 0.5, 0.01)
PROMPT = {"model": "m", "tokens": 5, "ids": [1, 2, 3, 4, 5], "max_tokens": 16}
EVENTS: list[dict[str, Any]] = [
    {"event": "admitted"},
    {"event": "claimed", "attempt": 1},
    {"event": "tokens", "ids": [7, 8], "text": "héllo "},
    {"event": "tokens", "ids": [9], "text": "you"},
]
FOLDER = Path("runs/2026/03/09/run_1")


class Shelf:
    """A data folder with the run `run_1`, its row and record written in the service's order."""

    def __init__(self, db: Database, data_dir: Path, new_job: Callable[..., NewJob]) -> None:
        self._db, self.jobs, self.data_dir = db, Jobs(db), data_dir
        created_at = datetime(2026, 3, 9, 12, tzinfo=UTC).timestamp()
        path = record_path(data_dir, "run_1", created_at)
        self.record = RunRecord.create(
            data_dir, "run_1", created_at, request={"messages": []}, prompt=PROMPT
        )
        self._new = new_job(
            id="run_1", record=str(path.relative_to(data_dir)), created_at=created_at
        )

    async def queue(self) -> None:
        await self.jobs.insert(self._new)

    async def claim(self) -> None:
        self.job = await self.jobs.claim("1:1.00", "engine-0", 30, model="m")

    async def finish(self, state: JobState = JobState.SUCCEEDED, **more: Any) -> None:
        assert self.job
        values = {"stop_reason": "end_turn", "output_tokens": 3, "telemetry": TELEMETRY, **more}
        assert await self.jobs.finish(self.job, state, **values)

    async def cancel_queued(self) -> None:
        await self.jobs.cancel_queued("run_1")

    async def stored(self) -> StoredRun:
        job = await self.jobs.get("run_1")
        assert job
        history = await self.jobs.history("run_1")
        return StoredRun(job, history, await telemetry_of(self._db, "run_1"))

    async def disagreements(self) -> list[str]:
        return disagreements(await self.stored(), self.data_dir)


def response(text: Any = "héllo you", state: str = "succeeded", **more: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
        "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
        "output_tokens": 3,
    }
    message = {"id": "msg_1", "model": "m", "stop_reason": "end_turn", "usage": usage}
    content = [{"type": "text", "text": text}] if text else []
    return {"state": state, "message": {**message, "content": content, **more}, "error": None}


@pytest.fixture
def shelf(db: Database, tmp_path: Path, new_job: Callable[..., NewJob]) -> Shelf:
    return Shelf(db, tmp_path, new_job)


@pytest.fixture
async def finished(shelf: Shelf) -> Shelf:
    """A run that succeeded, and all of whose books agree."""
    await shelf.queue()
    await shelf.claim()
    shelf.record.append(EVENTS)
    shelf.record.close(response=response(), telemetry=asdict(TELEMETRY))
    await shelf.finish()
    return shelf


async def test_what_was_written_in_order_agrees(finished: Shelf) -> None:
    assert await finished.disagreements() == []


async def test_a_run_agrees_at_each_moment_of_its_life(shelf: Shelf) -> None:
    await shelf.queue()
    assert await shelf.disagreements() == []
    await shelf.claim()
    assert await shelf.disagreements() == []
    shelf.record.append(EVENTS)
    assert await shelf.disagreements() == []
    shelf.record.close(response=response(), telemetry=asdict(TELEMETRY))
    assert await shelf.disagreements() == []
    await shelf.finish()
    assert await shelf.disagreements() == []


async def test_an_interrupted_run_may_have_an_open_record(shelf: Shelf) -> None:
    await shelf.queue()
    await shelf.claim()
    shelf.record.append(EVENTS)
    await shelf.finish(JobState.INTERRUPTED, stop_reason=None, error_message="gone")
    assert await shelf.disagreements() == []


async def test_an_error_that_quotes_what_no_column_takes_agrees(shelf: Shelf) -> None:
    said = "model: a\0b is not served here"
    await shelf.queue()
    await shelf.claim()
    shelf.record.append(EVENTS)
    error = {"type": "not_found_error", "message": said}
    failed = {**response(state="failed", stop_reason=None), "error": error}
    shelf.record.close(response=failed, telemetry=asdict(TELEMETRY))
    await shelf.finish(
        JobState.FAILED, stop_reason=None, error_type="not_found_error", error_message=said
    )
    assert await shelf.disagreements() == []


async def test_a_run_cancelled_in_the_queue_agrees(shelf: Shelf) -> None:
    await shelf.queue()
    cancelled = response("", "cancelled", stop_reason=None)
    cancelled["message"]["usage"]["output_tokens"] = 0
    cancelled["error"] = {"type": "api_error", "message": "the run was cancelled: why"}
    shelf.record.close(response=cancelled, telemetry=None)
    await shelf.cancel_queued()
    assert await shelf.disagreements() == []


async def test_counts_alone_are_compared_where_no_content_is_kept(shelf: Shelf) -> None:
    await shelf.queue()
    await shelf.claim()
    counted = [{"event": "tokens", "count": 3, "chars": 9}]
    shelf.record.append([*EVENTS[:2], *counted])
    shape = {"chars": 9, "sha256": "0"}
    shelf.record.close(response=response(shape), telemetry=asdict(TELEMETRY))
    await shelf.finish()
    assert await shelf.disagreements() == []
    rewrite(shelf, "response.json", response({"chars": 8, "sha256": "0"}))
    assert await shelf.disagreements() == [
        "the content of its events is not that of its response.json"
    ]


THOUGHT = [
    {"event": "tokens", "ids": [7, 8], "shown": [{"thinking": "h"}, {"thinking": "m"}]},
    {
        "event": "tokens",
        "ids": [9],
        "shown": [
            {"signature": "s"},
            {"text": "a"},
            {"tool_use": {"id": "toolu_1", "name": "run"}},
            {"input_json": '{"cmd":"ls"}'},
            {"tool_use_end": True},
            {"tool_use": {"id": "toolu_2", "name": "run"}},
            {"input_json": '{"cmd":"l'},
        ],
    },
]
BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    {"type": "text", "text": "a"},
    {"type": "tool_use", "id": "toolu_1", "name": "run", "input": {"cmd": "ls"}},
]


@pytest.mark.parametrize(
    ("events", "kept", "other"),
    [
        (THOUGHT, BLOCKS, BLOCKS[:2]),
        (THOUGHT, BLOCKS, [*BLOCKS[:2], {**BLOCKS[2], "input": {"cmd": "rm"}}]),
        (
            [{"event": "tokens", "count": 3, "chars": 3}],
            shapes(BLOCKS),
            shapes([{**BLOCKS[0], "thinking": "hum"}, *BLOCKS[1:]]),
        ),
    ],
    ids=["a call less", "another call", "without content"],
)
async def test_thinking_and_calls_are_compared_as_text_is(
    shelf: Shelf, events: list[dict[str, Any]], kept: Any, other: Any
) -> None:
    await shelf.queue()
    await shelf.claim()
    shelf.record.append([*EVENTS[:2], *events])
    shelf.record.close(response=response(content=kept), telemetry=asdict(TELEMETRY))
    await shelf.finish()
    assert await shelf.disagreements() == []
    rewrite(shelf, "response.json", response(content=other))
    assert await shelf.disagreements() == [
        "the content of its events is not that of its response.json"
    ]


def resumed(text: str) -> list[dict[str, Any]]:
    tokens = {"event": "tokens", "ids": [4, 2], "text": text}
    return [{"event": "claimed", "attempt": 2}, {"event": "resumed", "tokens": 3}, tokens]


@pytest.fixture
async def cancelled(shelf: Shelf) -> Shelf:
    """A run that was cancelled on the engine."""
    await shelf.queue()
    await shelf.claim()
    shelf.record.append(EVENTS)
    error = {"type": "api_error", "message": "cancelled"}
    closed = {**response("héllo you", "cancelled", stop_reason=None), "error": error}
    shelf.record.close(response=closed, telemetry=asdict(TELEMETRY))
    await shelf.finish(
        JobState.CANCELLED,
        stop_reason=None,
        error_type="api_error",
        error_message="cancelled",
    )
    assert await shelf.disagreements() == []
    return shelf


async def test_a_resumed_run_agrees_at_each_moment_of_its_second_life(cancelled: Shelf) -> None:
    shelf = cancelled
    assert await shelf.jobs.resume("run_1")
    assert await shelf.disagreements() == []
    await shelf.claim()
    assert await shelf.disagreements() == []
    record = RunRecord.at(shelf.record.path)
    record.reopen()
    assert await shelf.disagreements() == []
    record.append(resumed(" two"))
    again = replace(TELEMETRY, output_tokens=5)
    ended = response("héllo you two")
    ended["message"]["usage"]["output_tokens"] = 5
    record.close(response=ended, telemetry=asdict(again))
    assert await shelf.disagreements() == []
    await shelf.finish(output_tokens=5, telemetry=again)
    assert await shelf.disagreements() == []


async def test_a_resumed_run_may_end_unmeasured(cancelled: Shelf) -> None:
    shelf = cancelled
    assert await shelf.jobs.resume("run_1")
    await shelf.claim()
    record = RunRecord.at(shelf.record.path)
    record.reopen()
    record.append(resumed(""))
    lost = {"stop_reason": None, "output_tokens": None, "telemetry": None}
    await shelf.finish(JobState.INTERRUPTED, **lost)
    assert await shelf.disagreements() == []


async def test_a_resumed_run_may_be_cancelled_in_the_queue(cancelled: Shelf) -> None:
    shelf = cancelled
    assert await shelf.jobs.resume("run_1")
    await shelf.jobs.request_cancel("run_1", "again")
    stored = await shelf.stored()
    await shelf.jobs.cancel_queued("run_1", output_tokens=3)
    assert stored.telemetry == TELEMETRY
    assert await shelf.disagreements() == []


def rewrite(shelf: Shelf, name: str, value: Any) -> None:
    (shelf.record.path / name).write_text(json.dumps(value))


def rewrite_events(shelf: Shelf, events: list[dict[str, Any]]) -> None:
    lines = [json.dumps({"seq": seq, **event}) + "\n" for seq, event in enumerate(events, 1)]
    (shelf.record.path / "events.jsonl").write_text("".join(lines))


def other_state(shelf: Shelf) -> None:
    rewrite(shelf, "response.json", response(state="failed"))


def other_text(shelf: Shelf) -> None:
    rewrite(shelf, "response.json", response("héllo"))


def other_stop_reason(shelf: Shelf) -> None:
    rewrite(shelf, "response.json", response(stop_reason="max_tokens"))


def an_error(shelf: Shelf) -> None:
    error = {"type": "api_error", "message": "no"}
    rewrite(shelf, "response.json", {**response(), "error": error})


def open_record(shelf: Shelf) -> None:
    (shelf.record.path / "response.json").unlink()


def fewer_tokens(shelf: Shelf) -> None:
    rewrite_events(shelf, [*EVENTS[:2], {**EVENTS[2], "ids": [7]}, EVENTS[3]])


def no_claim(shelf: Shelf) -> None:
    rewrite_events(shelf, [EVENTS[0], *EVENTS[2:]])


def gap(shelf: Shelf) -> None:
    lines = (shelf.record.path / "events.jsonl").read_text().splitlines(keepends=True)
    (shelf.record.path / "events.jsonl").write_text("".join(lines[1:]))


def other_prompt(shelf: Shelf) -> None:
    rewrite(shelf, "prompt.json", {**PROMPT, "ids": [1, 2], "tokens": 4})


def other_telemetry(shelf: Shelf) -> None:
    rewrite(shelf, "telemetry.json", {**asdict(TELEMETRY), "decode_seconds": 0.5})


def no_telemetry(shelf: Shelf) -> None:
    (shelf.record.path / "telemetry.json").unlink()


def telemetry_of_an_earlier_version(shelf: Shelf) -> None:
    known = asdict(TELEMETRY)
    del known["cache_read_tokens"], known["cache_creation_tokens"]
    rewrite(shelf, "telemetry.json", known)


def told_of_a_cache(shelf: Shelf) -> None:
    cache = {"event": "cache", "read": 2, "created_5m": 1, "created_1h": 0}
    rewrite_events(shelf, [*EVENTS[:2], cache, *EVENTS[2:]])


def other_usage(shelf: Shelf) -> None:
    closed = response()
    closed["message"]["usage"] |= {"input_tokens": 3, "cache_read_input_tokens": 2}
    rewrite(shelf, "response.json", closed)


def readable_by_all(shelf: Shelf) -> None:
    (shelf.record.path / "request.json").chmod(0o644)
    shelf.record.path.chmod(0o755)


def no_record(shelf: Shelf) -> None:
    os.rename(shelf.record.path, shelf.record.path.with_name("moved"))


def damaged_events(shelf: Shelf) -> None:
    (shelf.record.path / "events.jsonl").write_bytes(b'{"seq":1}\n{"se\n{"seq":3}\n')


def odd_response(shelf: Shelf) -> None:
    rewrite(shelf, "response.json", {"state": "succeeded"})


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (other_state, ["state: 'succeeded' in its row, 'failed' in its response.json"]),
        (other_text, ["the content of its events is not that of its response.json"]),
        (
            other_stop_reason,
            ["stop reason: 'end_turn' in its row, 'max_tokens' in its response.json"],
        ),
        (
            an_error,
            [
                "error: None in its row, 'api_error' in its response.json",
                "error message: None in its row, 'no' in its response.json",
            ],
        ),
        (open_record, ["it has succeeded, but its record has no readable response.json"]),
        (fewer_tokens, ["output tokens: 2 in its events, 3 in its response.json"]),
        (no_claim, ["attempt: 1 in its row, 0 in its events"]),
        (gap, ["its events are not numbered from 1 without a gap"]),
        (
            other_prompt,
            [
                "input tokens: 5 in its row, 4 in its prompt.json",
                "its prompt.json has 2 ids, and says 4",
            ],
        ),
        (other_telemetry, ["decode_seconds: 0.4 in its telemetry row, 0.5 in its telemetry.json"]),
        (telemetry_of_an_earlier_version, []),
        (
            told_of_a_cache,
            [
                "cache read tokens: 2 in its events, 0 in its response.json",
                "5m cache tokens: 1 in its events, 0 in its response.json",
                "cache creation tokens: 1 in its events, 0 in its response.json",
            ],
        ),
        (
            other_usage,
            [
                "cache read tokens: 0 in its events, 2 in its response.json",
                "cache read tokens: 0 in its telemetry row, 2 in its response.json",
            ],
        ),
        (no_record, [f"its record {FOLDER} is missing"]),
        (
            damaged_events,
            [
                f"the run record {FOLDER} is damaged in line 2 of events.jsonl; "
                "restore it from a copy or remove the record"
            ],
        ),
        (odd_response, ["its record has not the shape of one: KeyError('message')"]),
    ],
)
async def test_each_disagreement_is_told(
    finished: Shelf, damage: Callable[[Shelf], None], expected: list[str]
) -> None:
    damage(finished)
    assert await finished.disagreements() == expected


async def test_missing_telemetry_is_told(finished: Shelf) -> None:
    no_telemetry(finished)
    told = await finished.disagreements()
    assert "queue_seconds: 0.1 in its telemetry row, None in its telemetry.json" in told


async def test_what_others_can_read_is_told(finished: Shelf) -> None:
    readable_by_all(finished)
    path = finished.record.path
    assert await finished.disagreements() == [
        f"{path} has mode 0755, not 0700",
        f"{path / 'request.json'} has mode 0644, not 0600",
    ]


async def test_a_history_that_no_run_can_have_is_told(finished: Shelf) -> None:
    stored = await finished.stored()
    queued, running, succeeded = stored.history
    failed = Transition(succeeded.at, JobState.SUCCEEDED, JobState.FAILED, 1, None)

    def told(*history: Transition) -> list[str]:
        return disagreements(replace(stored, history=history), finished.data_dir)

    assert told() == ["it has no history"]
    assert "its history begins with queued → running" in told(running, succeeded)
    assert "its history goes on with running → succeeded after nothing → queued" in told(
        queued, succeeded
    )
    assert "its history has the move succeeded → failed, which no run can make" in told(
        queued, running, succeeded, failed
    )
    assert "its history counts attempt 2 after 0" in told(
        queued, replace(running, attempt=2), replace(succeeded, attempt=2)
    )
    assert "state: 'succeeded' in its row, 'running' in its history" in told(queued, running)


async def test_every_record_is_found(finished: Shelf) -> None:
    RunRecord.create(finished.data_dir, "run_2", 0.0, request={}, prompt={})
    found = {path.relative_to(finished.data_dir) for path in record_folders(finished.data_dir)}
    assert found == {FOLDER, Path("runs/1970/01/01/run_2")}
