"""Requests to the Messages API, and what an event stream must look like."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import httpx


def body(text: str = "hi", **more: Any) -> dict[str, Any]:
    """A request with one user turn."""
    message = {"role": "user", "content": text}
    return {"model": "claude-test", "max_tokens": 64, "messages": [message], **more}


def scripted(**script: Any) -> dict[str, Any]:
    """A request that tells the scripted engine what to do."""
    return body(json.dumps(script))


def parse_events(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The data of each event; asserts that `event:` names its type."""
    name = None
    for line in lines:
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            data = json.loads(line.removeprefix("data: "))
            assert data["type"] == name
            yield data
        else:
            assert line == ""


def events_of(client: httpx.Client, request: dict[str, Any]) -> list[dict[str, Any]]:
    """All events of a streamed answer."""
    with client.stream("POST", "/v1/messages", json={**request, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        return list(parse_events(response.iter_lines()))


_DELTAS = {
    "text": {"text_delta"},
    "thinking": {"thinking_delta", "signature_delta"},
    "tool_use": {"input_json_delta"},
    "server_tool_use": {"input_json_delta"},
}


def check_order(events: list[dict[str, Any]]) -> None:
    """message_start, blocks strictly one after the other from index 0 with deltas of their kind,
    message_delta with the stop reason, message_stop; pings anywhere; nothing else."""
    shown = [event for event in events if event["type"] != "ping"]
    assert shown[0]["type"] == "message_start"
    assert shown[0]["message"]["usage"]["input_tokens"] > 0
    assert shown[-1]["type"] == "message_stop"
    kinds: list[str] = []
    opened = False
    for event in shown[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert not opened
                opened = True
                assert event["index"] == len(kinds)
                kinds.append(event["content_block"]["type"])
            case "content_block_delta":
                assert opened
                assert event["index"] == len(kinds) - 1
                assert event["delta"]["type"] in _DELTAS[kinds[-1]]
            case "content_block_stop":
                assert opened
                assert event["index"] == len(kinds) - 1
                opened = False
            case other:
                raise AssertionError(other)
    assert not opened
    _check_ending(shown[-2], kinds)


def _check_ending(event: dict[str, Any], kinds: list[str]) -> None:
    """A turn with a call is one to be run, unless a call was cut short."""
    assert event["type"] == "message_delta"
    assert isinstance(event["usage"]["output_tokens"], int)
    reason, sequence = event["delta"]["stop_reason"], event["delta"]["stop_sequence"]
    assert (sequence is not None) == (reason == "stop_sequence")
    if "tool_use" in kinds:
        assert reason in ("tool_use", "max_tokens")
    else:
        assert reason in ("end_turn", "max_tokens", "stop_sequence")


def text_of(events: Iterable[dict[str, Any]]) -> str:
    return "".join(
        event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"
    )


def message_of(events: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream; in order, or it is none."""
    events = [event for event in events if event["type"] != "ping"]
    check_order(events)
    message = events[0]["message"]
    blocks: list[dict[str, Any]] = message["content"]
    arguments = ""
    for event in events:
        match event:
            case {"type": "content_block_start", "content_block": block}:
                blocks.append(dict(block))
                arguments = ""
            case {"type": "content_block_delta", "delta": {"partial_json": json_text}}:
                arguments += json_text
            case {"type": "content_block_delta", "delta": delta}:
                [(key, text)] = [(key, each) for key, each in delta.items() if key != "type"]
                blocks[-1][key] += text
            case {"type": "content_block_stop"} if arguments:
                blocks[-1]["input"], arguments = json.loads(arguments), ""
            case {"type": "message_delta", "delta": delta, "usage": usage}:
                message |= delta
                message["usage"] |= usage
            case _:
                pass
    return message
