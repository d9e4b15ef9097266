"""Bodies made to break a server: deep nesting, broken characters, other encodings."""

import gzip
import json
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx
import pytest

from service.json_body import MAX_SEPARATORS
from tests.support.messages import body, check_order, parse_events, text_of
from tests.support.refusals import refused
from tests.support.running import Running

PromptOf = Callable[[httpx.Response], str]
PATHS = ["/v1/messages", "/v1/messages/count_tokens"]
HEADERS = {"content-type": "application/json"}
START = b'{"model": "claude-x", "max_tokens": 8, "messages": '
HELLO = b'[{"role": "user", "content": "hi"}]'

# Each has one place for a value, marked with @.
PLACES = {
    "unknown field": START + HELLO + b', "x": @}',
    "metadata": START + HELLO + b', "metadata": {"x": @}}',
    "tool schema": START
    + HELLO
    + b', "tools": [{"name": "t", "input_schema": {"type": "object", "properties": @}}]}',
    "tool input": START
    + b'[{"role": "user", "content": "hi"}, {"role": "assistant", "content":'
    + b' [{"type": "tool_use", "id": "t", "name": "n", "input": {"a": @}}]}]}',
    "tool result": START
    + b'[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t",'
    + b' "content": @}]}]}',
    "content": START + b'[{"role": "user", "content": @}]}',
    "system": START + HELLO + b', "system": @}',
}


@pytest.mark.parametrize("depth", [500, 1_000, 10_000, 100_000, 1_000_000])
@pytest.mark.parametrize("place", PLACES)
def test_deep_nesting_is_refused_and_the_server_lives(
    client: httpx.Client, place: str, depth: int
) -> None:
    for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
        data = PLACES[place].replace(b"@", opening * depth + b"0" + closing * depth)
        message = refused(client.post("/v1/messages", content=data, headers=HEADERS))
        assert message == "nesting too deep: the limit is 500 levels"
    assert client.get("/healthz").status_code == 200


def test_nesting_without_an_end_is_refused(client: httpx.Client) -> None:
    for data in (b"[" * 1_000_000, b'{"a":' * 1_000_000, START + b"[" * 1_000_000):
        refused(client.post("/v1/messages", content=data, headers=HEADERS))


def test_nesting_below_the_limit_is_harmless(client: httpx.Client) -> None:
    nested = b"[" * 480 + b"0" + b"]" * 480
    for place in ("unknown field", "metadata"):
        data = PLACES[place].replace(b"@", nested)
        assert client.post("/v1/messages", content=data, headers=HEADERS).status_code == 200
    for place in ("tool schema", "tool input", "tool result", "content", "system"):
        data = PLACES[place].replace(b"@", nested)
        refused(client.post("/v1/messages", content=data, headers=HEADERS))


@pytest.mark.parametrize("item", [b"0", b'""', b"[]", b"{}", b'{"type": "text", "text": "a"}'])
def test_millions_of_values_are_refused_unread(client: httpx.Client, item: bytes) -> None:
    items = b"[" + b", ".join([item] * MAX_SEPARATORS) + b", 0]"
    for place in ("unknown field", "content"):
        data = PLACES[place].replace(b"@", items[: 30 << 20])
        response = client.post("/v1/messages", content=data, headers=HEADERS)
        message = refused(response, 413, "request_too_large")
        assert message.startswith("the request body holds too many values: more than 2000000 of ")


def test_many_values_are_harmless(client: httpx.Client) -> None:
    data = PLACES["unknown field"].replace(b"@", b"[" + b"0," * 200_000 + b"0]")
    assert client.post("/v1/messages", content=data, headers=HEADERS).status_code == 200


def test_more_messages_than_the_api_knows_are_refused(client: httpx.Client) -> None:
    request = {**body(), "messages": [{"role": "user", "content": "a"}] * 100_001}
    message = refused(client.post("/v1/messages", json=request))
    assert message.startswith("messages: List should have at most 100000 items")


@pytest.mark.parametrize(
    ("escaped", "shown"),
    [
        (rb"cut \ud83d", "cut \ufffd"),
        (rb"\ude00 x", "\ufffd x"),
        (rb"\ud83d\u0041", "\ufffdA"),
        (rb"\ud83d\ude00", "😀"),
        (rb"\uD83D\uDE00", "😀"),
        (rb"\ude00\ud83d", "\ufffd\ufffd"),
        (rb"\\ud83d", r"\ud83d"),
        (rb"nul \u0000 and \ufffe", "nul \x00 and \ufffe"),
    ],
)
def test_the_model_sees_whole_characters(
    client: httpx.Client, prompt_of: PromptOf, escaped: bytes, shown: str
) -> None:
    data = START + b'[{"role": "user", "content": "' + escaped + b'"}], "system": "'
    data += escaped + b'"}'
    response = client.post("/v1/messages", content=data, headers=HEADERS)
    assert prompt_of(response) == (
        f"<|im_start|>system\n{shown}<|im_end|>\n<|im_start|>user\n{shown}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "more",
    [
        rb'"metadata": {"user_id": "\ud83d", "\ud83d": 1}',
        rb'"stop_sequences": ["\ud83d", "x\ude00"]',
        rb'"x\ud83d\u0000\r\n": {"\ud83d": "\ud83d"}',
        rb'"diagnostics": {"previous_message_id": "\ud83d"}',
    ],
)
@pytest.mark.parametrize("streaming", [b"true", b"false"])
def test_half_a_character_anywhere_keeps_the_session_alive(
    client: httpx.Client, more: bytes, streaming: bytes
) -> None:
    data = START + HELLO + b', "stream": ' + streaming + b", " + more + b"}"
    for path in PATHS:
        response = client.post(path, content=data, headers=HEADERS)
        assert response.status_code == 200, response.text


def test_half_a_character_in_a_tools_name_is_refused_like_any_tool(client: httpx.Client) -> None:
    data = START + HELLO + rb', "tools": [{"name": "\ud83d", "input_schema": {}}]}'
    response = client.post("/v1/messages", content=data, headers=HEADERS)
    assert refused(response).startswith("tools.0.name: ")
    data = rb'{"model": "\ud83d", "max_tokens": 8, "messages": ' + HELLO + b"}"
    response = client.post("/v1/messages", content=data, headers=HEADERS)
    assert refused(response, 404, "not_found_error").startswith("model: \ufffd is not served")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (START + b'[{"role": "user", "content": "\xed\xa0\xbd"}]}', "is not valid UTF-8 at byte"),
        (START + b'[{"role": "user", "content": "\xc0\xaf"}]}', "is not valid UTF-8 at byte"),
        (START + b'[{"role": "user", "content": "\xff"}]}', "is not valid UTF-8 at byte"),
        ((START + HELLO + b"}").decode().encode("utf-16"), "is not UTF-8"),
        ((START + HELLO + b"}").decode().encode("utf-16-le"), "is not UTF-8"),
        ((START + HELLO + b"}").decode().encode("utf-32"), "is not UTF-8"),
        (START + b'[{"role": "user", "content": "a\x00b"}]}', "is not valid JSON: "),
        (b"\x1f\x8b\x08\x00" + b"\x00" * 20, "the request body is not "),
        (b"\x00" * 100, "the request body is not "),
    ],
)
def test_other_encodings_are_refused(
    client: httpx.Client, path: str, data: bytes, message: str
) -> None:
    assert message in refused(client.post(path, content=data, headers=HEADERS))


def test_a_byte_order_mark_is_skipped(client: httpx.Client) -> None:
    data = b"\xef\xbb\xbf" + START + HELLO + b"}"
    assert client.post("/v1/messages", content=data, headers=HEADERS).status_code == 200


def test_odd_characters_in_an_answer_arrive_as_they_are(client: httpx.Client) -> None:
    odd = 'a\x00b\u2028c\ufffe\ufeff"\\\r\n\nevent: x\n\ndata: y\n\n😀'
    request = body(json.dumps({"say": odd}), max_tokens=200)
    assert client.post("/v1/messages", json=request).json()["content"][0]["text"] == odd
    response = client.post("/v1/messages", json={**request, "stream": True})
    events = list(parse_events(response.content.decode().split("\n")))
    check_order(events)
    assert text_of(events) == odd


@pytest.mark.parametrize("chunks", [b"0\r\n\r\n", b"2\r\n{}\r\n0\r\n\r\n", b""])
def test_a_length_beside_chunks_is_refused_and_nothing_after_it_is_a_request(
    service: Running, chunks: bytes
) -> None:
    headers = [b"Content-Length: 4", b"Transfer-Encoding: chunked"]
    address = urlsplit(service.url)
    for order in (headers, headers[::-1]):
        lines = [b"POST /v1/messages HTTP/1.1", b"Host: localhost", *order]
        hidden = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with socket.create_connection((address.hostname, address.port), 20) as connection:
            connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + chunks + hidden)
            answers = connection.makefile("rb").read()
        assert answers.startswith(b"HTTP/1.1 400 ")
        assert answers.count(b"HTTP/1.1 ") == 1


def test_a_compressed_body_is_refused_by_name(client: httpx.Client) -> None:
    data = json.dumps(body()).encode()
    for encoding, sent in (("gzip", gzip.compress(data)), ("br", data), ("identity, gzip", data)):
        headers = {**HEADERS, "content-encoding": encoding}
        message = refused(client.post("/v1/messages", content=sent, headers=headers))
        assert message == "content-encoding: send the body as it is, not compressed"
    headers = {**HEADERS, "content-encoding": "identity"}
    assert client.post("/v1/messages", content=data, headers=headers).status_code == 200
