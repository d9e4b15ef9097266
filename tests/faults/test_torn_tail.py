"""What a crash tore off the end of a run's events is generated again."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.fragile import (
    Fragile,
    assert_whole,
    fragile_service,
    long_only,
    post,
    texts,
)
from tests.support.lives import Connection, ended, recorded_events
from tests.support.messages import scripted

ANSWER = "abcdefghijkl"
ASKED = scripted(say=ANSWER, step_ms=25)

TAILS: dict[str, Any] = {
    "half a line": lambda data: data[:-9],
    "no end of the line": lambda data: data[:-1],
    "the beginning of another": lambda data: data + b'{"seq":9',
    "zeros": lambda data: data + bytes(4096),
    "zeros for half a line": lambda data: data[:-9] + bytes(9),
    "zeros and an end": lambda data: data + bytes(30) + b"\n",
    "a line without meaning": lambda data: data + b'{"se\n',
    "half a character": lambda data: data + b'{"text":"\xc3',
    "nothing left": lambda data: b"",
}


@long_only
@pytest.mark.parametrize("tail", TAILS)
def test_an_answer_with_a_torn_tail_is_resumed(tiny: Path, tmp_path: Path, tail: str) -> None:
    with fragile_service(tiny, tmp_path / "data", point="flushed:3") as service:
        with Connection(service.url, {**ASKED, "stream": True}) as connection:
            run_id = connection.run_id()
            service.dies()
        tear(service, tail)
        service.start()
        assert service.moves(run_id) == "queued running interrupted"
        post(service, f"/v1/runs/{run_id}/resume")
        run = ended(service, run_id)
        assert (run["state"], run["output_tokens"]) == ("succeeded", len(ANSWER) + 1)
        events = recorded_events(service, run, "tokens")
        assert "".join(event["text"] for event in events) == ANSWER
        assert_whole(service)


@long_only
@pytest.mark.parametrize("tail", TAILS)
def test_a_batchs_request_with_a_torn_tail_goes_on(tiny: Path, tmp_path: Path, tail: str) -> None:
    with fragile_service(tiny, tmp_path / "data", point="flushed:3") as service:
        with suppress(httpx.TransportError):
            service.create_batch({"only": ASKED})
        service.dies()
        tear(service, tail)
        service.start()
        assert texts(service.results(service.batches()[0]["id"])) == {"only": ANSWER}
        assert_whole(service)


def tear(service: Fragile, tail: str) -> None:
    """Of the one run."""
    [events] = (service.data_dir / "runs").glob("*/*/*/*/events.jsonl")
    events.write_bytes(TAILS[tail](events.read_bytes()))
