"""A summary and the answer to it are two rounds of one job, whatever comes between."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.batches import create_batch, results, runs_of
from tests.support.lives import (
    Connection,
    assert_answers,
    assert_one_at_a_time,
    assert_stops_well,
    end,
    ended,
    newest_run,
    open_runs,
    recorded_events,
    until,
)
from tests.support.messages import body
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen

TALK: list[Any] = [
    {"role": "user", "content": "Read it."},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "And now?"},
]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = write_tiny_qwen(tmp_path_factory.mktemp("model") / "tiny", "qwen3")
    data = tmp_path_factory.mktemp("data")
    with scripted_service(model, data, drain_seconds=0.1) as running:
        yield running
        assert open_runs(running) == []
        assert_one_at_a_time(data)
        assert_stops_well(running)


def compacting(answer: dict[str, Any], **summary: Any) -> dict[str, Any]:
    """What the summary says has the scripted engine give that answer."""
    script = json.dumps({"say": json.dumps(answer), **summary})
    trigger = {"type": "input_tokens", "value": 0}
    edit = {"type": "compact_20260112", "trigger": trigger, "instructions": script}
    return body(messages=TALK, context_management={"edits": [edit]})


@pytest.mark.parametrize("how", ["kill", "stop", "engine", "preempted"])
@pytest.mark.parametrize("held", ["summary", "answer"])
def test_a_batchs_request_goes_on_in_the_round_it_was_at(
    service: Running, tmp_path: Path, held: str, how: str
) -> None:
    go = tmp_path / "go"
    hold = {"hold_file": str(go), "hold_at": 4}
    answer = {"say": "Now go on.", **(hold if held == "answer" else {})}
    request = compacting(answer, **(hold if held == "summary" else {}))
    batch = create_batch(service, request)
    run = until(lambda: runs_of(service, batch))[0]
    until(lambda: _tokens(service, run, held) == 4)
    if how == "preempted":
        assert_answers(service)
    else:
        end(service, how)
    go.touch()
    (result,) = results(service, batch)
    summary, text = result["message"]["content"]
    assert summary["content"] == json.dumps(answer)
    assert text["text"] == "Now go on."
    told = result["message"]["usage"]
    assert [each["type"] for each in told["iterations"]] == ["compaction", "message"]
    uninterrupted = results(service, create_batch(service, request))[0]["message"]
    assert told == uninterrupted["usage"]
    assert uninterrupted["content"] == result["message"]["content"]
    assert len(recorded_events(service, run, "round")) == 1


@pytest.mark.parametrize("held", ["summary", "answer"])
def test_a_client_that_goes_in_either_round_frees_the_engine(service: Running, held: str) -> None:
    wait = {"say": "a", "then": "wait"}
    request = compacting(wait) if held == "answer" else compacting({}, then="wait")
    with Connection(service.url, {**request, "stream": True}) as connection:
        run = until(lambda: newest_run(service) if open_runs(service) else None)
        assert run is not None
        until(lambda: _tokens(service, run, held) > 0)
        connection.close()
        assert ended(service, run["id"])["state"] == "cancelled"
    assert_answers(service)


def _tokens(service: Running, run: dict[str, Any], held: str) -> int:
    """Of that round, as far as the record has them."""
    rounds = recorded_events(service, run, "round")
    after = rounds[0]["at"] if rounds else None
    if held == "answer" and after is None:
        return 0
    return sum(
        len(each["ids"])
        for each in recorded_events(service, run, "tokens")
        if held == "summary" or (after is not None and each["at"] > after)
    )
