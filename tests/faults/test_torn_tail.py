"""What a crash tore off the end of a run's events is generated again."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.fragile import LONG, Fragile, assert_whole, fragile_service, post, texts
from tests.support.lives import Connection, ended
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


@pytest.mark.parametrize("tail", TAILS if LONG else ["half a line"])
def test_runs_with_a_torn_tail_go_on(tiny: Path, tmp_path: Path, tail: str) -> None:
    """An answer whose reader is gone, once it is resumed; and a batch's request by itself."""
    with fragile_service(tiny, tmp_path / "data", point="flushed:3") as service:
        with Connection(service.url, {**ASKED, "stream": True}) as connection:
            run_id = connection.run_id()
            service.dies()
        tear(service, tail)
        service.start()
        assert service.moves(run_id) == "queued running interrupted"
        post(service, f"/v1/runs/{run_id}/resume")
        assert ended(service, run_id)["state"] == "succeeded"
        with service.client() as client:
            assert client.get(f"/v1/runs/{run_id}").json()["output_tokens"] == len(ANSWER) + 1
        assert service.stop() == 0

        service.start_at("flushed:3")
        with suppress(httpx.TransportError):
            service.create_batch({"only": ASKED})
        service.dies()
        tear(service, tail)
        service.start()
        assert texts(service.results(service.batches()[0]["id"])) == {"only": ANSWER}
        assert_whole(service)


def tear(service: Fragile, tail: str) -> None:
    """Of the run that is going on."""
    records = (service.data_dir / "runs").glob("*/*/*/*")
    [record] = [each for each in records if not (each / "response.json").exists()]
    events = record / "events.jsonl"
    events.write_bytes(TAILS[tail](events.read_bytes()))
