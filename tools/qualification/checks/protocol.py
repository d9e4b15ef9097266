"""Answers, streams, calls and errors, by both versions of the API."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tools.qualification.check import (
    Check,
    Failed,
    Trial,
    refusal,
    require,
    require_count,
    skip,
    text_of,
)
from tools.qualification.sdk import anthropic
from tools.qualification.server import VERSIONS

QUESTION = "What is the capital of France? Answer in one word."
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tells the weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
_DELTAS = {
    "text": {"text_delta", "citations_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
    "server_tool_use": {"input_json_delta"},
}


def whole_answer(trial: Trial, version: str) -> None:
    first, second = (trial.ask(QUESTION, version=version) for _ in range(2))
    require(first.id != second.id, f"two messages have the same id, {first.id}")
    for message in (first, second):
        _check_message(message)
    require_count(trial.count(QUESTION, version=version), first)
    trial.model("Paris", text_of(first), "paris" in text_of(first).lower())


def streamed_answer(trial: Trial, version: str) -> None:
    events = trial.events(QUESTION, version=version)
    _check_order(events)
    message = trial.ask(QUESTION, streams=True, version=version)
    _check_message(message)
    start = next(data["message"] for name, data in events if name == "message_start")
    require(start["id"] != message.id, f"two messages have the same id, {message.id}")
    require_count(trial.count(QUESTION, version=version), message)
    trial.model("Paris", text_of(message), "paris" in text_of(message).lower())


def call(trial: Trial, streams: bool) -> None:
    """A forced call, and the answer to its result."""
    try:
        trial.count("Hello", tools=[WEATHER])
    except anthropic.BadRequestError as error:
        skip(f"the model has no tools: {refusal(error, 400)['message']}")
    question = "How is the weather in Oslo?"
    forced = {"type": "tool", "name": WEATHER["name"]}
    message = trial.ask(question, streams=streams, tools=[WEATHER], tool_choice=forced)
    if message.stop_reason == "max_tokens":
        skip("the model did not end its call within --max-tokens")
    calls = [each for each in message.content if each.type == "tool_use"]
    require(calls, "a call was forced, and there is none")
    require(message.stop_reason == "tool_use", f"a call ended with {message.stop_reason}")
    require(len({each.id for each in calls}) == len(calls), "two calls have the same id")
    for each in calls:
        require(each.name == WEATHER["name"], f"{each.name} was called, which is no tool")
        require(isinstance(each.input, dict), "the arguments of a call are no object")
    city = str(calls[0].input.get("city"))
    trial.model("a call about Oslo", str(calls[0].input), "oslo" in city.lower())
    rain = [{"type": "tool_result", "tool_use_id": each.id, "content": "Rain."} for each in calls]
    turn = {"role": "assistant", "content": message.content}
    history = (turn, {"role": "user", "content": rain})
    answer = trial.ask(question, *history, streams=streams, tools=[WEATHER])
    require_count(trial.count(question, *history, tools=[WEATHER]), answer)
    trial.model("that it rains", text_of(answer), "rain" in text_of(answer).lower())


def errors(trial: Trial, version: str) -> None:
    bad: tuple[tuple[int, str, dict[str, Any]], ...] = (
        (400, "invalid_request_error", {"max_tokens": -1}),
        (400, "invalid_request_error", {"messages": [{"role": "nobody", "content": "Hello"}]}),
        (404, "not_found_error", {"model": "no-model-of-this-name"}),
    )
    for status, kind, wrong in bad:
        for stream in (None, True):
            inner = trial.refused(status, QUESTION, version=version, stream=stream, **wrong)
            require(inner["type"] == kind, f"the error is a {inner['type']}, not a {kind}")


def keys(trial: Trial) -> None:
    if trial.server.key is None:
        skip("no key was given: run with --api-key-file")
    request = trial.server.request(QUESTION)
    for wrong in ({"api_key": "wrong"}, {"api_key": None, "auth_token": "wrong"}):
        try:
            with trial.noted("/v1/messages", request):
                trial.server.client().copy(**wrong).messages.create(**request)
        except anthropic.APIStatusError as error:
            kind = refusal(error, 401)["type"]
            require(kind == "authentication_error", f"the error is a {kind}")
        else:
            raise Failed("a wrong key was accepted")


def _check_order(events: Sequence[tuple[str, dict[str, Any]]]) -> None:
    """message_start, blocks one after the other from index 0 with deltas of their kind,
    message_delta with the reason, message_stop; pings anywhere, nothing else. Raises Failed."""
    for _, data in events:
        if data["type"] == "error":
            raise Failed(f"the stream has an error: {data['error']}")
    shown = [data for name, data in events if name != "ping"]
    kinds = [data["type"] for data in shown]
    require(kinds[:1] == ["message_start"], "the first event is not message_start")
    require(kinds[-2:] == ["message_delta", "message_stop"], f"the stream ends with {kinds[-2:]}")
    start = shown[0]["message"]
    require(start.get("content") == [], "message_start does not begin with empty content")
    require(start.get("stop_reason") is None, "message_start has a stop_reason already")
    require("input_tokens" in (start.get("usage") or {}), "message_start has no usage")
    _check_blocks(shown[1:-2])
    end = shown[-2]
    require(end["delta"].get("stop_reason"), "message_delta has no stop_reason")
    require("output_tokens" in (end.get("usage") or {}), "message_delta has no output_tokens")


def _check_blocks(events: Sequence[dict[str, Any]]) -> None:
    index, kind = -1, None  # of the block that is open; no kind when none is
    for event in events:
        match event["type"]:
            case "content_block_start":
                require(kind is None, "a block begins before the last has ended")
                index, kind = index + 1, event["content_block"]["type"]
            case "content_block_delta":
                require(kind is not None, "a delta belongs to no block")
                delta = event["delta"]["type"]
                require(delta in _DELTAS.get(str(kind), {delta}), f"{kind} has a {delta}")
            case "content_block_stop":
                require(kind is not None, "a block ends that had not begun")
                kind = None
            case "message_delta":
                require(kind is None, "message_delta stands within a block")
                continue
            case other:
                raise Failed(f"the stream has an event {other} in its middle")
        found = event.get("index")
        require(found == index, f"an event of block {index} has index {found}")
    require(kind is None, "the last block does not end")


def _check_message(message: Any) -> None:
    require(message.role == "assistant", f"the message is of the role {message.role}")
    require(message.model, "the message does not name its model")
    require(message.usage.output_tokens > 0, "the answer has no output tokens")
    require(
        (message.stop_sequence is not None) == (message.stop_reason == "stop_sequence"),
        f"stop_sequence {message.stop_sequence!r} with stop_reason {message.stop_reason}",
    )


CHECKS = [
    *(
        Check("protocol", f"{what}, {version}", partial(run, version=version))
        for version in VERSIONS
        for what, run in (
            ("whole answer", whole_answer),
            ("streamed answer", streamed_answer),
            ("errors", errors),
        )
    ),
    Check("calls", "whole", partial(call, streams=False)),
    Check("calls", "streamed", partial(call, streams=True)),
    Check("keys", "wrong keys", keys),
]
