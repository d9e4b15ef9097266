"""`GET /v1/runtime`: what the service is doing, what is on, and why."""

import httpx
import pytest

from models.engine.host import EngineStatus
from service.routes.runtime import optional_paths
from tests.support.messages import body
from tests.support.running import Running


def test_the_queue_the_engine_and_the_memory_are_told(
    service: Running, client: httpx.Client
) -> None:
    assert client.post("/v1/messages", json=body()).status_code == 200
    runtime = client.get("/v1/runtime").json()
    assert runtime["admission"] == {"open": True, "queued": 0, "running": 0, "limit": 1000}
    assert runtime["model"]["id"] == "tiny"
    assert runtime["model"]["family"] == "llama"
    assert runtime["engine"]["condition"] == "ready"
    assert all(count > 1_000_000 for count in runtime["memory"].values())
    assert runtime["runs"]["succeeded"] > 0


@pytest.mark.parametrize(
    ("facts", "blas", "dense"),
    [
        (None, (False, "the engine has not loaded the model yet"), False),
        ({"device": "gpu", "blas": None}, (False, "the device is a GPU"), False),
        ({"device": "cpu", "blas": None}, (False, "no OpenBLAS was found"), True),
        ({"device": "cpu", "blas": "OpenBLAS 0.3"}, (True, "OpenBLAS 0.3"), True),
    ],
)
def test_what_is_on_is_told_with_the_reason(
    facts: dict[str, str | None] | None, blas: tuple[bool, str], dense: bool
) -> None:
    paths = optional_paths(EngineStatus("ready", facts=facts))
    assert (paths["fast_blas"]["on"], paths["fast_blas"]["why"]) == blas
    assert paths["dense_float32"]["on"] is dense
    assert all(path["why"] for path in paths.values())
