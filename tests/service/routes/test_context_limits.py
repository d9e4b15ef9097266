"""What does not fit the context: refused in the words that clients look for, never cut."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.messages import body
from tests.support.refusals import refused
from tests.support.running import Running, scripted_service

LIMIT = 512  # tokens; below the model's own


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data, context_tokens=LIMIT, max_output_tokens=300) as running:
        yield running


def counted(client: httpx.Client, request: dict[str, Any]) -> int:
    return client.post("/v1/messages/count_tokens", json=request).json()["input_tokens"]


def filling(client: httpx.Client, tokens: int, **more: Any) -> dict[str, Any]:
    """A request whose prompt has that many tokens: the tiny model has one for each byte."""
    text = "x" * (tokens - counted(client, body("x")) + 1)
    request = body(text, **more)
    assert counted(client, request) == tokens
    return request


@pytest.mark.parametrize("streaming", [False, True])
def test_a_prompt_beyond_the_context_is_too_long(client: httpx.Client, streaming: bool) -> None:
    request = filling(client, LIMIT + 100, max_tokens=10, stream=streaming)
    message = refused(client.post("/v1/messages", json=request))
    assert message == f"prompt is too long: {LIMIT + 100} tokens > {LIMIT} maximum"


@pytest.mark.parametrize("streaming", [False, True])
def test_an_answer_beyond_the_context_is_refused_with_the_sum(
    client: httpx.Client, streaming: bool
) -> None:
    request = filling(client, LIMIT - 50, max_tokens=20000, stream=streaming)
    message = refused(client.post("/v1/messages", json=request))
    assert message.startswith(
        f"input length and `max_tokens` exceed context limit: {LIMIT - 50} + 20000 > {LIMIT},"
    )


def test_an_answer_beyond_the_most_allowed_is_refused_with_the_most(client: httpx.Client) -> None:
    message = refused(client.post("/v1/messages", json=filling(client, 100, max_tokens=301)))
    assert message.startswith("max_tokens: 301 > 300, which is the maximum allowed")


def test_a_prompt_and_answer_that_fill_the_context_are_answered(client: httpx.Client) -> None:
    response = client.post("/v1/messages", json=filling(client, LIMIT - 10, max_tokens=10))
    assert response.status_code == 200
    assert response.json()["usage"]["input_tokens"] == LIMIT - 10


def test_a_prompt_that_fills_the_context_leaves_room_for_no_token(client: httpx.Client) -> None:
    message = refused(client.post("/v1/messages", json=filling(client, LIMIT, max_tokens=1)))
    assert f"{LIMIT} + 1 > {LIMIT}," in message


def test_the_model_tells_its_limits(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert (model["max_input_tokens"], model["max_tokens"]) == (LIMIT, 300)
