"""Context edits over HTTP and with the official client: what is told of them."""

from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest

from service.signatures import Signer
from tests.support.batches import create_batch, results
from tests.support.cached import counted, total
from tests.support.messages import body, events_of
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen

BETA = "context-management-2025-06-27"
LONG = "a long line of a file\n" * 10
TOOLS: list[Any] = [{"name": "read", "input_schema": {"type": "object"}}]
USES: dict[str, Any] = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "tool_uses", "value": 2},
    "keep": {"type": "tool_uses", "value": 1},
}
THOUGHTS: dict[str, Any] = {"type": "clear_thinking_20251015"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = write_tiny_qwen(tmp_path_factory.mktemp("model") / "tiny", "qwen3")
    with scripted_service(model, tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture(scope="module")
def sdk(service: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=service.url, api_key="none", max_retries=0, _strict_response_validation=True
    ) as sdk:
        yield sdk


@pytest.fixture(scope="module")
def messages(service: Running) -> list[Any]:
    """Two questions with thinking, and three calls with results."""
    signer = Signer.open(service.data_dir)

    def thought(number: int) -> dict[str, Any]:
        signature = signer.sign(LONG, "tiny", f"msg_{number}", 0)
        return {"type": "thinking", "thinking": LONG, "signature": signature}

    def used(number: int) -> list[dict[str, Any]]:
        call = {"type": "tool_use", "id": f"toolu_{number}", "name": "read", "input": {"n": number}}
        result = {"type": "tool_result", "tool_use_id": f"toolu_{number}", "content": LONG}
        return [
            {"role": "assistant", "content": [thought(number), call]},
            {"role": "user", "content": [result]},
        ]

    return [
        {"role": "user", "content": "Read it."},
        *used(1),
        *used(2),
        {"role": "assistant", "content": "Done."},
        {"role": "user", "content": "Again."},
        *used(3),
    ]


@pytest.fixture(scope="module")
def request_of(messages: list[Any]) -> dict[str, Any]:
    return body(messages=messages, tools=TOOLS, thinking={"type": "adaptive"})


def edits(*them: dict[str, Any]) -> dict[str, Any]:
    return {"context_management": {"edits": list(them)}}


BOTH = edits(THOUGHTS, USES)


def test_the_answer_tells_what_was_cleared_and_counting_what_there_was(
    client: httpx.Client, request_of: dict[str, Any]
) -> None:
    plain = counted(client, request_of)
    request = {**request_of, **BOTH}
    answer = client.post("/v1/messages", json=request)
    assert "mererun-ignored" not in answer.headers
    thoughts, uses = answer.json()["context_management"]["applied_edits"]
    assert thoughts.keys() == {"type", "cleared_thinking_turns", "cleared_input_tokens"}
    assert uses.keys() == {"type", "cleared_tool_uses", "cleared_input_tokens"}
    assert (thoughts["cleared_thinking_turns"], uses["cleared_tool_uses"]) == (1, 2)
    count = client.post("/v1/messages/count_tokens", json=request).json()
    assert count["context_management"] == {"original_input_tokens": plain}
    assert count["input_tokens"] == total(answer.json()["usage"])
    fewer = thoughts["cleared_input_tokens"] + uses["cleared_input_tokens"]
    assert count["input_tokens"] == plain - fewer


def test_a_stream_tells_it_once_at_its_end(
    client: httpx.Client, request_of: dict[str, Any]
) -> None:
    request = {**request_of, **BOTH}
    whole = client.post("/v1/messages", json=request).json()
    events = events_of(client, request)
    telling = [each for each in events if "context_management" in str(each)]
    assert [each["type"] for each in telling] == ["message_delta"]
    assert telling[0]["context_management"] == whole["context_management"]
    assert total(events[0]["message"]["usage"]) == total(whole["usage"])


def test_without_edits_nothing_is_told_of_them(
    client: httpx.Client, request_of: dict[str, Any]
) -> None:
    assert "context_management" not in client.post("/v1/messages", json=request_of).json()
    assert "context_management" not in str(events_of(client, request_of))
    count = client.post("/v1/messages/count_tokens", json=request_of).json()
    assert count.keys() == {"input_tokens"}


@pytest.mark.parametrize(
    "asked",
    [
        {"context_management": {}},
        edits(),
        edits({"type": "clear_thinking_20251015", "keep": "all"}),
        edits({"type": "clear_tool_uses_20250919"}),
    ],
)
def test_edits_without_effect_are_told_as_none(
    client: httpx.Client, request_of: dict[str, Any], asked: dict[str, Any]
) -> None:
    request = {**request_of, **asked}
    answer = client.post("/v1/messages", json=request).json()
    assert answer["context_management"] == {"applied_edits": []}
    plain = counted(client, request_of)
    assert total(answer["usage"]) == plain
    count = client.post("/v1/messages/count_tokens", json=request).json()
    assert count == {
        "input_tokens": plain,
        "context_management": {"original_input_tokens": plain},
    }


@pytest.mark.parametrize("betas", [[], [BETA]])
def test_the_official_client_reads_what_was_cleared(
    sdk: anthropic.Anthropic, request_of: dict[str, Any], betas: list[str]
) -> None:
    request: dict[str, Any] = {**request_of, **BOTH, "betas": betas}
    whole = sdk.beta.messages.create(**request)
    with sdk.beta.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    counting = {key: each for key, each in request.items() if key != "max_tokens"}
    count = sdk.beta.messages.count_tokens(**counting)
    assert count.context_management is not None
    fewer = 0
    for message in (whole, streamed):
        assert message.context_management is not None
        first, second = message.context_management.applied_edits
        assert first.type == "clear_thinking_20251015"
        assert second.type == "clear_tool_uses_20250919"
        assert (first.cleared_thinking_turns, second.cleared_tool_uses) == (1, 2)
        assert message.usage.input_tokens == count.input_tokens
        fewer = first.cleared_input_tokens + second.cleared_input_tokens
    assert count.context_management.original_input_tokens - fewer == count.input_tokens


def test_the_stable_surface_has_edits_too(
    sdk: anthropic.Anthropic, request_of: dict[str, Any]
) -> None:
    message = sdk.messages.create(**request_of, extra_body=BOTH)
    assert message.model_extra
    assert len(message.model_extra["context_management"]["applied_edits"]) == 2


def test_an_answer_that_is_given_again_tells_it_again(
    client: httpx.Client, request_of: dict[str, Any]
) -> None:
    headers = {"idempotency-key": "edited"}
    first, again = (
        client.post("/v1/messages", json={**request_of, **BOTH}, headers=headers).json()
        for _ in range(2)
    )
    assert again == first
    assert len(first["context_management"]["applied_edits"]) == 2


def test_a_batch_tells_it_in_its_results(
    service: Running, client: httpx.Client, request_of: dict[str, Any]
) -> None:
    whole = client.post("/v1/messages", json={**request_of, **BOTH}).json()
    (result,) = results(service, create_batch(service, {**request_of, **BOTH}))
    message = result["message"]
    assert message["context_management"] == whole["context_management"]
    assert total(message["usage"]) == total(whole["usage"])


def test_the_served_model_says_that_it_can(sdk: anthropic.Anthropic) -> None:
    (model,) = sdk.models.list()
    assert model.capabilities is not None
    can = model.capabilities.context_management
    assert can.supported
    assert can.clear_tool_uses_20250919 is not None
    assert can.clear_tool_uses_20250919.supported
    assert can.clear_thinking_20251015 is not None
    assert can.clear_thinking_20251015.supported


def test_a_history_that_only_fits_when_it_is_edited_is_answered(
    client: httpx.Client, messages: list[Any]
) -> None:
    """It has more characters, too, than are encoded at once without edits."""
    many: list[Any] = [messages[0]]
    for number in range(120):
        call = {"type": "tool_use", "id": f"t{number}", "name": "read", "input": {}}
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "abcdefgh " * 1000}
        many += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    request = body(messages=many, tools=TOOLS)
    refused = client.post("/v1/messages", json=request)
    assert refused.status_code == 400
    assert "prompt is too long" in refused.text
    due = {**USES, "keep": {"type": "tool_uses", "value": 0}, "clear_tool_inputs": True}
    request |= {**edits(due), "tools": None}
    answer = client.post("/v1/messages/count_tokens", json=request).raise_for_status().json()
    assert (
        answer["context_management"]["original_input_tokens"] > 1_000_000 > answer["input_tokens"]
    )
