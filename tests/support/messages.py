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


def check_order(events: list[dict[str, Any]]) -> None:
    """message_start, blocks strictly one after the other from index 0, message_delta with the
    stop reason, message_stop; pings anywhere; nothing else."""
    shown = [event for event in events if event["type"] != "ping"]
    assert shown[0]["type"] == "message_start"
    assert shown[0]["message"]["usage"]["input_tokens"] > 0
    assert shown[-1]["type"] == "message_stop"
    delta = shown[-2]
    assert delta["type"] == "message_delta"
    assert delta["delta"]["stop_reason"] is not None
    assert isinstance(delta["usage"]["output_tokens"], int)
    index, opened = 0, False
    for event in shown[1:-2]:
        assert event["index"] == index
        match event["type"]:
            case "content_block_start":
                assert not opened
                opened = True
            case "content_block_delta":
                assert opened
            case "content_block_stop":
                assert opened
                opened, index = False, index + 1
            case other:
                raise AssertionError(other)
    assert not opened


def text_of(events: Iterable[dict[str, Any]]) -> str:
    return "".join(
        event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"
    )
