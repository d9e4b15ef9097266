"""Sampling and limits: out of range is refused with the path, and the extremes still answer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.catalog import inspect
from tests.support.messages import body
from tests.support.refusals import refused
from tests.support.running import Running, real_service

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"temperature": 2}, "temperature: Input should be less than or equal to 1"),
    ({"temperature": 1.0001}, "temperature: Input should be less than or equal to 1"),
    ({"temperature": -1}, "temperature: Input should be greater than or equal to 0"),
    ({"temperature": "0.5"}, "temperature: Input should be a valid number"),
    ({"temperature": True}, "temperature: Input should be a valid number"),
    ({"top_p": 1.0001}, "top_p: Input should be less than or equal to 1"),
    ({"top_p": -0.1}, "top_p: Input should be greater than or equal to 0"),
    ({"top_k": -1}, "top_k: Input should be greater than or equal to 0"),
    ({"top_k": 1e12}, "top_k: Input should be a valid integer"),
    ({"top_k": 1.5}, "top_k: Input should be a valid integer"),
    ({"max_tokens": -5}, "max_tokens: Input should be greater than or equal to 0"),
    ({"max_tokens": 1.5}, "max_tokens: Input should be a valid integer"),
    ({"max_tokens": True}, "max_tokens: Input should be a valid integer"),
    ({"max_tokens": 2**63}, "input length and `max_tokens` exceed context limit: "),
    ({"max_tokens": 10**30}, "input length and `max_tokens` exceed context limit: "),
    ({"seed": -1}, "seed: Input should be greater than or equal to 0"),
    ({"seed": 2**63}, "seed: Input should be less than or equal to "),
    ({"stop_sequences": ["x"] * 10_000}, "stop_sequences: List should have at most 64 items"),
    ({"stop_sequences": [""]}, "stop_sequences.0: String should have at least 1 character"),
    ({"stop_sequences": ["x", " \n"]}, "stop_sequences.1: String should hold more than whitespace"),
    ({"stop_sequences": ["x" * 10_240]}, "stop_sequences.0: String should have at most 1024"),
    ({"stop_sequences": "x"}, "stop_sequences: Input should be a valid list"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1}}, "thinking.budget_tokens: "),
    ({"thinking": {"type": "enabled", "budget_tokens": 2048}}, "thinking.budget_tokens: "),
    ({"service_tier": "x"}, "service_tier: Input should be 'auto' or 'standard_only'"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_what_is_out_of_range_is_refused_with_its_path(
    client: httpx.Client, fields: dict[str, Any], message: str
) -> None:
    for streaming in (False, True):
        response = client.post("/v1/messages", json=body(**{"stream": streaming, **fields}))
        assert refused(response).startswith(message)


@pytest.mark.parametrize("version", ["2026-10-21", "2023-06-01", None])
def test_sampling_is_the_models_own_unless_it_is_given(
    tiny: Path, service: Running, client: httpx.Client, version: str | None
) -> None:
    headers = {"anthropic-version": version} if version else {}

    def used(**fields: Any) -> tuple[Any, ...]:
        response = client.post("/v1/messages", json=body(**fields), headers=headers)
        (file,) = service.data_dir.glob(f"runs/*/*/*/{response.headers['mererun-run']}/prompt.json")
        kept = json.loads(file.read_text())
        return kept["temperature"], kept["top_p"], kept["top_k"]

    own = inspect(tiny).sampling
    assert used() == (own.temperature, own.top_p, own.top_k)
    assert used(temperature=0.25, top_p=0.5, top_k=7) == (0.25, 0.5, 7)


def test_max_tokens_must_be_given(client: httpx.Client) -> None:
    request = body()
    del request["max_tokens"]
    assert refused(client.post("/v1/messages", json=request)) == "max_tokens: Field required"


@pytest.fixture(scope="module")
def real(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a service over a real model and engine."""
    with real_service(tiny, tmp_path_factory.mktemp("data")) as running, running.client() as client:
        yield client


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 1e-9},
        {"temperature": 1e-308},
        {"temperature": 5e-324},
        {"temperature": 1},
        {"temperature": -0.0},
        {"top_p": 0},
        {"top_p": 1e-12},
        {"top_p": 1},
        {"top_k": 0},
        {"top_k": 1},
        {"top_k": 10**12},
        {"top_k": 10**30},
        {"temperature": 1e-9, "top_p": 0, "top_k": 10**12},
        {"temperature": 1, "top_p": 1e-9, "top_k": 1},
        {"seed": 0},
        {"seed": 2**63 - 1},
        {"max_tokens": 0},
        {"max_tokens": 1},
        {"stop_sequences": ["x" * 1024] * 64},
    ],
)
def test_extremes_are_answered(real: httpx.Client, fields: dict[str, Any]) -> None:
    request = body(**{"max_tokens": 8, **fields})
    response = real.post("/v1/messages", json=request)
    assert response.status_code == 200, response.text
    message = response.json()
    assert message["usage"]["output_tokens"] <= request["max_tokens"]
    assert message["stop_reason"] in ("end_turn", "max_tokens")


def test_temperature_zero_and_what_comes_close_to_it_are_greedy(real: httpx.Client) -> None:
    greedy = answer(real, temperature=0)
    assert greedy == answer(real, temperature=0)
    assert greedy == answer(real, temperature=0, seed=7, top_p=0.5, top_k=40)
    for fields in ({"temperature": 1e-9}, {"temperature": 1, "top_k": 1}, {"top_p": 0}):
        assert greedy == answer(real, **fields), fields


def test_a_seed_makes_an_answer_repeatable(real: httpx.Client) -> None:
    answers = {answer(real, temperature=1, seed=seed) for seed in (1, 1, 2, 3)}
    assert len(answers) == 3


def answer(client: httpx.Client, **fields: Any) -> str:
    request = body("Tell me a story.", max_tokens=24, **fields)
    message = client.post("/v1/messages", json=request).json()
    return "".join(block["text"] for block in message["content"])
