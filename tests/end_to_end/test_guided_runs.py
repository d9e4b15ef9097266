"""Guided runs of a real engine: cut anywhere, cancelled, next to others, and made to wait."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.lives import assert_stops_well
from tests.support.random_weights import write_random_weights
from tests.support.running import Running, real_service
from tests.support.tiny_gemma import write_tiny_gemma4

BRIEF = {"enum": ["a", "b"]}
LONG = {"type": "string", "minLength": 300}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("guided")
    model = write_random_weights(write_tiny_gemma4(folder / "tiny"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        with real_service(model, folder / "data") as running:
            yield running
            assert_stops_well(running)


@pytest.fixture
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def asking(value: dict[str, Any], **more: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"k": value}, "required": ["k"]}
    return {
        "model": "claude-tiny",
        "messages": [{"role": "user", "content": "Go."}],
        "max_tokens": 1000,
        "temperature": 1,
        "seed": 1,
        "tools": [{"name": "one", "input_schema": schema}],
        "tool_choice": {"type": "tool", "name": "one", "disable_parallel_tool_use": True},
        **more,
    }


def answered(client: httpx.Client, request: dict[str, Any]) -> tuple[Any, str, int]:
    """The blocks without the calls' ids, why it stopped, and its tokens."""
    message = client.post("/v1/messages", json=request).raise_for_status().json()
    blocks = [{**block, "id": None} for block in message["content"]]
    return blocks, message["stop_reason"], message["usage"]["output_tokens"]


def test_a_forced_call_is_there_whole_or_not_at_all_wherever_tokens_run_out(
    client: httpx.Client,
) -> None:
    blocks, _, tokens = answered(client, asking(BRIEF))
    for most in range(1, tokens):
        cut = answered(client, asking(BRIEF, max_tokens=most))
        assert cut[0] in ([], blocks)
        assert cut[1] == ("tool_use" if cut[0] else "max_tokens")
        assert cut[2] == most
    assert answered(client, asking(BRIEF, max_tokens=tokens)) == (blocks, "tool_use", tokens)


def test_a_call_that_others_interrupt_is_the_one_it_would_have_been(client: httpx.Client) -> None:
    brief, long = answered(client, asking(BRIEF)), answered(client, asking(LONG))
    with ThreadPoolExecutor() as threads:
        disturbed = threads.submit(answered, client, asking(LONG))
        others = [threads.submit(answered, client, asking(BRIEF)) for _ in range(3)]
        assert [each.result() for each in others] == [brief] * 3
        assert disturbed.result() == long


def test_a_client_that_leaves_within_a_call_costs_the_next_nothing(client: httpx.Client) -> None:
    expected = answered(client, asking(BRIEF))
    request = asking({**LONG, "minLength": 900}, stream=True)
    with client.stream("POST", "/v1/messages", json=request) as stream:
        assert any("input_json_delta" in line for line in stream.iter_lines())
    assert answered(client, asking(BRIEF)) == expected
