"""A service that is killed while a message is being continued: it is again, or it has been."""

from pathlib import Path
from typing import Any

import pytest

from tests.faults.fragile import LONG, assert_sound, fragile_service
from tests.support.lives import Connection, moves
from tests.support.messages import scripted

# Those of `points.py` at which a run is admitted or ends, and that of the file that threads have.
NOT_YET = (
    "admitting",
    "naming thread.json",
    "recorded",
    "inserted",
    "claimed",
    "tokens",
    "answered",
)
DONE = ("naming response.json", "closed")
SHORT = ("naming thread.json", "inserted", "closed")


@pytest.mark.parametrize("point", [each for each in (*NOT_YET, *DONE) if LONG or each in SHORT])
def test_killed_while_a_message_is_continued(tiny: Path, tmp_path: Path, point: str) -> None:
    passing = 5 if point == "tokens" else 2  # the first answer has three tokens and its end
    with fragile_service(tiny, tmp_path / "data", point=f"{point}:{passing}") as service:
        with service.client() as client:
            request = {**scripted(say="one"), "thread": {"type": "create"}}
            first = client.post("/v1/messages", json=request).raise_for_status().json()
        onto: dict[str, Any] = {"type": "continue", "previous_message_id": first["id"]}
        request = {**scripted(say="two"), "thread": onto}
        with Connection(service.url, request):
            service.dies()
        service.start()
        with service.client() as client:
            answer = client.post("/v1/messages", json=request)
            if point in DONE:
                assert answer.json()["error"]["details"] == {
                    "error_code": "thread_already_continued"
                }
                onto["previous_message_id"] = service.runs()[0]["message_id"]
                answer = client.post("/v1/messages", json=request)
            assert answer.status_code == 200, answer.text
            assert moves(service.run(answer.headers["mererun-run"]))[-1] == "succeeded"
        assert_sound(service)
