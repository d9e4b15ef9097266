"""Streams: usage in the first event, whole characters, and nothing of a stop sequence."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.messages import body, check_order, events_of, parse_events, text_of
from tests.support.tiny_checkpoint import byte_tokenizer

TOKENIZER = byte_tokenizer()  # one token a byte


def ids_of(text: str | bytes) -> list[int]:
    text = text.decode("latin-1") if isinstance(text, bytes) else text
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def scripted(*, more: dict[str, Any] | None = None, **script: Any) -> dict[str, Any]:
    return body(json.dumps(script), **(more or {}))


def both(client: httpx.Client, request: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Text and ending of an answer, which must be the same streamed and whole."""
    events = events_of(client, request)
    check_order(events)
    message = client.post("/v1/messages", json=request).json()
    text = "".join(block["text"] for block in message["content"])
    assert text_of(events) == text
    ending = events[-2]["delta"]
    assert ending == {key: message[key] for key in ending}
    assert events[-2]["usage"].items() <= message["usage"].items()
    return text, {**ending, "output_tokens": message["usage"]["output_tokens"]}


@pytest.mark.parametrize("script", [{"say": "ok"}, {"say": ""}, {"ids": []}])
def test_the_first_event_has_the_usage_that_the_last_repeats(
    client: httpx.Client, script: dict[str, Any]
) -> None:
    request = scripted(**script)
    counted = client.post("/v1/messages/count_tokens", json=request).json()["input_tokens"]
    events = events_of(client, request)
    check_order(events)
    usage = events[0]["message"]["usage"]
    assert usage["input_tokens"] == counted > 0
    for name in ("output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"):
        assert isinstance(usage[name], int)
    last = events[-2]["usage"]
    assert {**last, "output_tokens": 0} == {key: usage[key] for key in last}
    assert last["output_tokens"] >= 1
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None


def test_a_run_cancelled_before_its_first_token_ends_its_stream(client: httpx.Client) -> None:
    request = scripted(prefill_steps=1000, step_ms=20, more={"stream": True})
    with client.stream("POST", "/v1/messages", json=request) as response:
        lines = response.iter_lines()
        events = _until_the_start(lines)
        run_id = response.headers["mererun-run"]
        assert client.post(f"/v1/runs/{run_id}/cancel").status_code == 200
        events += parse_events(lines)
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert kinds == ["message_start", "error"]
    assert events[0]["message"]["usage"]["input_tokens"] > 0
    assert events[-1]["request_id"] == response.headers["request-id"]
    assert client.get(f"/v1/runs/{run_id}").json()["state"] == "cancelled"


def test_a_stream_is_not_to_be_buffered_or_cached(client: httpx.Client) -> None:
    headers = client.post("/v1/messages", json=body(stream=True)).headers
    assert headers["content-type"] == "text/event-stream; charset=utf-8"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["transfer-encoding"] == "chunked"


@pytest.mark.parametrize(
    ("text", "stops", "shown", "matched"),
    [
        ("alpha beta gamma delta", ["beta gamma"], "alpha ", "beta gamma"),
        ("ABCDEFGHIJ", ["DEFGHIJ"], "ABC", "DEFGHIJ"),
        ("ABCDEFGX", ["DEFGHIJ"], "ABCDEFGX", None),
        ("aaab", ["aab"], "a", "aab"),
        ("x\nUser: hi", ["\nUser:", "\nU"], "x", "\nU"),
        ("please", ["assistant"], "please", None),
        ("pleas", ["assistant"], "pleas", None),
        ("cafe\u0301", ["é"], "cafe\u0301", None),
        ("café!", ["é"], "caf", "é"),
        ("a👨\u200d👩b", ["\u200d👩"], "a👨", "\u200d👩"),
    ],
)
def test_nothing_of_a_stop_sequence_is_sent(
    client: httpx.Client, text: str, stops: list[str], shown: str, matched: str | None
) -> None:
    answer, ending = both(client, scripted(say=text, more={"stop_sequences": stops}))
    assert answer == shown
    assert ending["stop_sequence"] == matched
    assert ending["stop_reason"] == ("stop_sequence" if matched else "end_turn")
    said = shown + matched if matched else text
    # The tokens of the stop sequence count, those decoded after it do not.
    assert ending["output_tokens"] == len(said.encode()) + (0 if matched else 1)


def test_the_last_token_allowed_may_complete_a_stop_sequence(client: httpx.Client) -> None:
    request = scripted(say="abcdef", more={"stop_sequences": ["cd"], "max_tokens": 4})
    assert both(client, request) == (
        "ab",
        {
            "stop_reason": "stop_sequence",
            "stop_sequence": "cd",
            "stop_details": None,
            "output_tokens": 4,
        },
    )


def test_what_was_held_back_comes_out_when_tokens_run_out(client: httpx.Client) -> None:
    request = scripted(say="abcdef", more={"stop_sequences": ["cdx"], "max_tokens": 4})
    text, ending = both(client, request)
    assert (text, ending["stop_reason"]) == ("abcd", "max_tokens")


@pytest.mark.parametrize(
    "text",
    [
        "😀",
        "🤣🤣",
        "👨\u200d👩\u200d👧\u200d👦",
        "⚠\ufe0f",
        "깰",
        "ปั้น",
        "क्षि",
        " Hi",
        "\n Hi",
        "e\u0301",
    ],
)
def test_characters_of_many_tokens_are_never_cut(client: httpx.Client, text: str) -> None:
    answer, _ = both(client, scripted(say=text, more={"max_tokens": 100}))
    assert answer == text
    events = events_of(client, scripted(say=text))
    assert "\ufffd" not in json.dumps(events, ensure_ascii=False)


def test_an_answer_cut_inside_a_character_ends_with_one_replacement(client: httpx.Client) -> None:
    for tokens in (1, 2, 3):
        text, ending = both(client, scripted(say="😀", more={"max_tokens": tokens}))
        assert (text, ending["stop_reason"]) == ("\ufffd", "max_tokens")
    cut = ids_of("a😀")[:-1]
    text, ending = both(client, scripted(ids=cut))
    assert (text, ending["stop_reason"]) == ("a\ufffd", "end_turn")


def test_tokens_that_are_no_text_are_replaced(client: httpx.Client) -> None:
    lone = ids_of("é")[1]
    text, _ = both(client, scripted(ids=[*ids_of("a"), lone, lone, *ids_of("b")]))
    assert text == "a\ufffd\ufffdb"


def test_special_tokens_in_an_answer_are_no_text(client: httpx.Client) -> None:
    marker = TOKENIZER.token_to_id("<|endoftext|>")
    text, _ = both(client, scripted(ids=[*ids_of("a"), marker, *ids_of("b")]))
    assert text == "ab"


def _until_the_start(lines: Iterator[str]) -> list[dict[str, Any]]:
    taken: list[str] = []
    for line in lines:
        taken.append(line)
        if not line:
            return list(parse_events(taken))
    raise AssertionError(taken)
