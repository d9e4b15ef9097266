"""The helpers of the official SDK for calls and formats, with a real model that can call."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, beta_tool
from pydantic import BaseModel

from tests.support.lives import recorded_events
from tests.support.running import Running

ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}
SUM = "What is 21 + 4?"


class City(BaseModel):
    name: str
    capital: bool


@dataclass
class Qwen:
    client: Anthropic
    model: str
    service: Running
    sent: list[tuple[dict[str, Any], int]] = field(default_factory=list[Any])  # body, status

    def asking(self, text: str, **more: Any) -> dict[str, Any]:
        """A request with a repeatable answer."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "extra_body": {"temperature": 0},
            **more,
        }

    def check_count(self, message: Any, request: dict[str, Any]) -> None:
        counted = self.client.messages.count_tokens(**countable(request))
        assert counted.input_tokens == message.usage.input_tokens


def countable(request: dict[str, Any]) -> dict[str, Any]:
    no_bearing = ("extra_body", "stop_sequences")
    return {key: value for key, value in request.items() if key not in no_bearing}


@pytest.fixture(scope="module")
def qwen_served(qwen: Path, qwen_service: Running) -> Iterator[Qwen]:
    client = Anthropic(
        base_url=qwen_service.url,
        api_key="any",
        max_retries=0,
        timeout=300,
        http_client=anthropic.DefaultHttpxClient(
            verify=False, event_hooks={"response": [lambda response: keep(response)]}
        ),
        _strict_response_validation=True,
    )
    served = Qwen(client, qwen.name, qwen_service)

    def keep(response: Any) -> None:
        served.sent.append((json.loads(response.request.content), response.status_code))

    with client:
        yield served


def test_a_forced_call_streams_as_what_it_is_whole(qwen_served: Qwen) -> None:
    client = qwen_served.client
    request = qwen_served.asking(
        SUM, tools=[ADD], tool_choice={"type": "any", "disable_parallel_tool_use": True}
    )
    whole = client.messages.create(**request, max_tokens=40)
    (call,) = whole.content
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("add", {"a": 21, "b": 4})
    assert whole.stop_reason == "tool_use"
    qwen_served.check_count(whole, request)

    pieces: list[str] = []
    with client.messages.stream(**request, max_tokens=40) as stream:
        for event in stream:
            if event.type == "input_json":
                pieces.append(event.partial_json)
        message = stream.get_final_message()
    assert json.loads("".join(pieces)) == call.input
    own = {"id": True, "content": {"__all__": {"id"}}}
    assert message.model_dump(exclude=own) == whole.model_dump(exclude=own)


def test_an_answer_is_parsed_into_a_model_of_the_client(qwen_served: Qwen) -> None:
    client = qwen_served.client
    request = qwen_served.asking("Tell me about Paris.")
    whole = client.messages.parse(**request, max_tokens=40, output_format=City)
    assert isinstance(whole.parsed_output, City)
    assert whole.parsed_output.name == "Paris"
    assert whole.stop_reason == "end_turn"
    with client.messages.stream(**request, max_tokens=40, output_format=City) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
    assert message.parsed_output == whole.parsed_output
    assert [each.text for each in message.content] == [text]
    counted = client.messages.count_tokens(**countable(request), output_format=City)
    assert counted.input_tokens == message.usage.input_tokens == whole.usage.input_tokens


def test_the_tool_runner_continues_its_thread(qwen_served: Qwen) -> None:
    added: list[tuple[int, int]] = []

    @beta_tool
    def add(a: int, b: int) -> str:
        """Adds two numbers."""
        added.append((a, b))
        return str(a + b)

    qwen_served.sent.clear()
    runner = qwen_served.client.beta.messages.tool_runner(
        **qwen_served.asking(SUM, tools=[add]),
        cache_control={"type": "ephemeral"},
        max_tokens=30,
        max_iterations=2,
    )
    first, second = runner
    assert first.stop_reason == "tool_use"
    assert added[0] == (21, 4)
    (created, answered), (continued, answered_again) = qwen_served.sent
    assert (answered, answered_again) == (200, 200)
    assert created["thread"] == {"type": "create"}
    assert continued["thread"] == {"type": "continue", "previous_message_id": first.id}
    (message,) = continued["messages"]
    (given,) = message["content"]
    (call,) = [each for each in first.content if each.type == "tool_use"]
    assert (given["type"], given["tool_use_id"]) == ("tool_result", call.id)
    assert "25" in json.dumps(given["content"])
    created_tokens = first.usage.cache_creation_input_tokens
    assert second.usage.cache_read_input_tokens == created_tokens > 0
    answer = {"role": "assistant", "content": first.content}
    counted = qwen_served.client.messages.count_tokens(
        model=qwen_served.model,
        tools=created["tools"],
        messages=[*created["messages"], answer, message],
    )
    usage = second.usage
    created_now = usage.cache_creation_input_tokens
    assert counted.input_tokens == usage.input_tokens + created_tokens + created_now


def test_where_no_call_is_allowed_one_is_text_in_which_sequences_stop(qwen_served: Qwen) -> None:
    request = qwen_served.asking(
        SUM, tools=[ADD], tool_choice={"type": "none"}, stop_sequences=["never", "a"]
    )
    message = qwen_served.client.messages.create(**request, max_tokens=20)
    assert {each.type for each in message.content} <= {"text"}
    assert "a" not in "".join(each.text for each in message.content)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "a")
    qwen_served.check_count(message, request)


def test_at_temperature_1_each_prompt_begins_with_the_last_and_its_answer(
    qwen_served: Qwen,
) -> None:
    client, service = qwen_served.client, qwen_served.service
    messages: list[Any] = [{"role": "user", "content": SUM}]
    computed: list[int] = []
    for seed, (choice, max_tokens) in enumerate((("any", 100), ("any", 100), ("none", 1))):
        response = client.messages.with_raw_response.create(
            model=qwen_served.model,
            max_tokens=max_tokens,
            messages=messages,
            tools=[ADD],
            tool_choice={"type": choice},
            extra_body={"temperature": 1, "seed": seed},
        )
        run, message = service.run(response.headers["mererun-run"]), response.parse()
        prompt = json.loads((service.data_dir / run["record"] / "prompt.json").read_text())["ids"]
        assert prompt[: len(computed)] == computed
        generated = [id for each in recorded_events(service, run, "tokens") for id in each["ids"]]
        computed = prompt + generated[:-1]  # its end may be another than the family's
        given = [
            {"type": "tool_result", "tool_use_id": each.id, "content": "25"}
            for each in message.content
            if each.type == "tool_use"
        ]
        messages += [
            {"role": "assistant", "content": message.content},
            {"role": "user", "content": given},
        ]
