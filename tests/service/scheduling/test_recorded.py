"""Answers read again from their records."""

from pathlib import Path
from typing import Any

import pytest

from service.errors import ApiError
from service.scheduling.recorded import close_unfinished, reading_of
from service.streaming import whole
from storage.database import Database
from storage.jobs import Job, Jobs, JobState, NewJob
from storage.redaction import shapes
from storage.run_records import RunRecord, record_path

pytestmark = pytest.mark.anyio

TEXT = {"type": "text", "text": "hello"}
BLOCKS = [
    {"type": "thinking", "thinking": "hm", "signature": "s"},
    TEXT,
    {"type": "tool_use", "id": "toolu_1", "name": "run", "input": {"cmd": "ls", "n": [1.5, None]}},
]
PROMPT = {
    "input_tokens": 1,
    "cache_read_input_tokens": 2,
    "cache_creation_input_tokens": 0,
    "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
}
EVENTS: list[dict[str, Any]] = [
    {"event": "claimed", "attempt": 1},
    {"event": "tokens", "ids": [1], "text": "hel"},
    {"event": "tokens", "ids": [2], "text": "lo"},
]


def response(content: Any, **usage: Any) -> dict[str, Any]:
    message = {
        "content": content,
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {**PROMPT, "output_tokens": 5, **usage},
    }
    return {"state": "succeeded", "message": message, "error": None}


@pytest.fixture
async def job(tmp_path: Path) -> Job:
    async with Database.open(tmp_path / "mererun.db") as db:
        jobs = Jobs(db)
        await jobs.insert(
            NewJob(
                id="run_1",
                message_id="msg_1",
                request_id="req_1",
                model="tiny",
                streaming=False,
                api_key=None,
                record="r",
                created_at=0.0,
                input_tokens=3,
                max_tokens=9,
                home="h",
            )
        )
        found = await jobs.get("run_1")
    assert found is not None
    return found


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    RunRecord.create(tmp_path, "run_1", 0.0, request={}, prompt={})
    return RunRecord.at(record_path(tmp_path, "run_1", 0.0))


async def test_an_answer_is_read_with_all_its_blocks(job: Job, record: RunRecord) -> None:
    details = {"thinking_tokens": 2}
    kept = response(BLOCKS, output_tokens_details=details)
    record.close(response=kept, telemetry=None)
    message = (await whole(reading_of(job, record))).as_json()
    assert message["content"] == BLOCKS
    assert message["usage"]["output_tokens_details"] == details


async def test_an_answer_that_an_earlier_version_kept_is_read(job: Job, record: RunRecord) -> None:
    record.close(response=response([TEXT]), telemetry=None)
    message = (await whole(reading_of(job, record))).as_json()
    assert (message["id"], message["content"]) == ("msg_1", [TEXT])
    assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 0}


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block["type"])
async def test_shapes_are_no_answer(job: Job, record: RunRecord, block: dict[str, Any]) -> None:
    record.close(response=shapes(response([block])), telemetry=None)
    with pytest.raises(ApiError, match="records no content"):
        reading_of(job, record)


async def test_a_record_that_is_closed_for_somebody_else_has_what_was_shown(
    job: Job, record: RunRecord
) -> None:
    shown = [{"tool_use": {"id": "toolu_1", "name": "run"}}, {"input_json": '{"cm'}]
    thought = {"event": "tokens", "ids": [0, 0], "thinking": 2, "text": ""}
    record.append([thought, *EVENTS, {"event": "tokens", "ids": [3, 4], "shown": shown}])
    error = ApiError.cancelled("gone")
    kept = close_unfinished(job, record, JobState.CANCELLED, error)
    assert kept == record.response()
    assert kept["message"]["content"] == [TEXT]
    usage = kept["message"]["usage"]
    assert usage["output_tokens"] == 6
    assert usage["output_tokens_details"] == {"thinking_tokens": 2}
