"""A real model searches for a tool, as the official SDK shows it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic

from tests.support.lives import assert_stops_well
from tests.support.running import real_service

SEARCH = "tool_search_tool_bm25"
TOOLS: list[Any] = [
    {"type": f"{SEARCH}_20251119", "name": SEARCH},
    {
        "name": "get_weather",
        "description": "Tells the weather in a city.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "defer_loading": True,
    },
]


@pytest.fixture(scope="module")
def client(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Anthropic]:
    with real_service(qwen, tmp_path_factory.mktemp("data")) as service:
        with Anthropic(
            base_url=service.url,
            api_key="any",
            max_retries=0,
            timeout=300,
            http_client=anthropic.DefaultHttpxClient(verify=False),
            _strict_response_validation=True,
        ) as client:
            yield client
        assert_stops_well(service)


def test_a_search_is_executed_and_the_answer_goes_on(client: Anthropic) -> None:
    asked: list[Any] = [{"role": "user", "content": "How is the weather in Oslo?"}]
    request: dict[str, Any] = {
        "model": "claude-test",
        "max_tokens": 50,
        "messages": asked,
        "tools": TOOLS,
        "tool_choice": {"type": "tool", "name": SEARCH},
        "extra_body": {"temperature": 0},
    }
    whole = client.messages.create(**request)
    called, found, *_ = whole.content
    assert called.type == "server_tool_use"
    assert called.name == SEARCH
    assert found.type == "tool_search_tool_result"
    assert found.tool_use_id == called.id
    assert found.content.type == "tool_search_tool_search_result"
    assert [each.tool_name for each in found.content.tool_references] == ["get_weather"]
    earlier = {"anthropic-version": "2023-06-01"}
    with client.messages.stream(**request, extra_headers=earlier) as stream:
        streamed = stream.get_final_message()
    assert [each.type for each in streamed.content] == [each.type for each in whole.content]
    assert streamed.usage.output_tokens == whole.usage.output_tokens

    # The history is read again, and what was found can be called.
    results: list[Any] = [
        {"type": "tool_result", "tool_use_id": each.id, "content": "Rain."}
        for each in whole.content
        if each.type == "tool_use"
    ]
    request["messages"] = [
        *asked,
        {"role": "assistant", "content": whole.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "And in Bergen?"}]},
    ]
    request["tool_choice"] = {"type": "tool", "name": "get_weather"}
    call = client.messages.create(**{**request, "max_tokens": 40}).content[-1]
    assert call.type == "tool_use"
    assert call.name == "get_weather"
    assert isinstance(call.input, dict)
    assert "city" in call.input
