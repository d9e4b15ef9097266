"""`GET /v1/runtime`: what the service is doing, what is on, and why."""

from typing import Any

import httpx
import pytest

from models.engine.host import EngineStatus
from service.routes.runtime import cache_paths, optional_paths
from service.settings import Settings
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
    all_facts = facts and {"speculates": True, "drafter": None, **facts}
    paths = optional_paths(Settings(), EngineStatus("ready", facts=all_facts))
    assert (paths["fast_blas"]["on"], paths["fast_blas"]["why"]) == blas
    assert paths["dense_float32"]["on"] is dense
    assert all(path["why"] for path in paths.values())


@pytest.mark.parametrize(
    ("settings", "facts", "is_on", "why"),
    [
        ({"speculation": False}, None, False, "--speculation off"),
        ({}, None, False, "has not loaded"),
        ({}, {"speculates": False, "drafter": None}, False, "cannot be taken back"),
        ({}, {"speculates": True, "drafter": None}, True, "the text itself"),
        (
            {"draft_model": "small"},
            {"speculates": True, "drafter": {"kind": "draft model", "name": "small"}},
            True,
            "the draft model small",
        ),
    ],
)
def test_where_drafts_come_from_is_told(
    settings: dict[str, Any], facts: dict[str, Any] | None, is_on: bool, why: str
) -> None:
    engine = EngineStatus("ready", facts=facts and {"device": "gpu", **facts})
    told = optional_paths(Settings(**settings), engine)["speculation"]
    assert told["on"] is is_on
    assert why in told["why"]


ON, BROKEN = {"disk": {"on": True, "why": None}}, {"disk": {"on": False, "why": "it is not yours"}}


@pytest.mark.parametrize(
    ("settings", "facts", "memory", "disk"),
    [
        ({}, None, "", "without --cache-disk-gib"),
        ({"cache_memory_gib": 0.0}, ON, "--cache-memory-gib 0", "--cache-memory-gib 0"),
        ({"cache_disk_gib": 1.0}, None, "", "has not said"),
        ({"cache_disk_gib": 1.0}, ON, "", ""),
        ({"cache_disk_gib": 1.0}, BROKEN, "", "it is not yours"),
    ],
)
def test_where_prompts_are_kept_is_told_with_the_reason(
    settings: dict[str, float], facts: dict[str, Any] | None, memory: str, disk: str
) -> None:
    """`memory` and `disk` are why not; empty where they are on."""
    paths = cache_paths(Settings(**settings), EngineStatus("ready", cache=facts))
    for name, why in (("prompt_cache", memory), ("prompt_cache_disk", disk)):
        assert paths[name]["on"] is not bool(why)
        assert why in paths[name]["why"]
