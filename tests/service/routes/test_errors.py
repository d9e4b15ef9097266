"""Refusals: one envelope, the right status, and a sentence a person can act on."""

import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support import raw_http
from tests.support.messages import body, check_order, parse_events
from tests.support.refusals import refused
from tests.support.running import Running

PATHS = ["/v1/messages", "/v1/messages/count_tokens"]
VALID = json.dumps(body()).encode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"model":', "the request body is not valid JSON: "),
        (b"", "the request body is empty"),
        (b"[]", "the request body must be a JSON object"),
        (b"null", "the request body must be a JSON object"),
        (b'"x"', "the request body must be a JSON object"),
        (b'{"temperature": NaN}', "the request body holds NaN"),
        (b'{"temperature": -Infinity}', "the request body holds -Infinity"),
        (b'{"temperature": 1e999}', "the request body holds 1e999"),
        (b'{"model": "a", "model": "b"}', "the request body holds the key 'model' twice"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "the request body holds an integer"),
        (VALID + VALID, "the request body is not valid JSON: "),
    ],
)
def test_a_body_that_is_no_request_is_refused(
    client: httpx.Client, path: str, data: bytes, message: str
) -> None:
    headers = {"content-type": "application/json"}
    assert refused(client.post(path, content=data, headers=headers)).startswith(message)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_tokens": "10"}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 1e99}, "max_tokens: Input should be a valid integer"),
        ({"max_tokens": 2**63}, "input length and `max_tokens` exceed context limit"),
        ({"max_tokens": None}, "max_tokens: Input should be a valid integer"),
        ({"messages": []}, "messages: Input should not be empty"),
        ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
        ({"system": [{"type": "image"}]}, "system.0.type: Input should be 'text'"),
    ],
)
def test_a_bad_field_is_refused_before_any_event(
    client: httpx.Client, fields: dict[str, Any], message: str, streaming: bool
) -> None:
    response = client.post("/v1/messages", json=body(**fields, stream=streaming))
    assert refused(response).startswith(message)


def test_another_content_type_is_refused(client: httpx.Client) -> None:
    for path in PATHS:
        for headers in ({}, {"content-type": "text/plain"}):
            response = client.post(path, content=VALID, headers=headers)
            assert refused(response).startswith("content-type: send the body as JSON")


def test_an_unknown_model_is_not_found(client: httpx.Client) -> None:
    for path in PATHS:
        response = client.post(path, json=body(model="gpt-x"))
        message = refused(response, 404, "not_found_error")
        assert message == "model: gpt-x is not served here; the model is tiny"
    refused(client.get("/v1/models/gpt-x"), 404, "not_found_error")
    refused(client.get("/v1/runs/run_x"), 404, "not_found_error")


def test_a_base_url_with_v1_twice_is_explained(client: httpx.Client) -> None:
    message = refused(client.post("/v1/v1/messages", json=body()), 404, "not_found_error")
    assert "must not end in /v1" in message


@pytest.mark.parametrize(
    "path", ["/nothing", "/v1", "/v1/messages/", "/v1/complete", "/v1/models/", "/v1/%ff%00"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_another_path_is_not_found(client: httpx.Client, method: str, path: str) -> None:
    message = refused(client.request(method, path), 404, "not_found_error")
    assert message.endswith(": there is no such path")


@pytest.mark.parametrize(
    ("path", "method", "allowed"),
    [
        ("/v1/messages", "GET", "POST"),
        ("/v1/messages", "PUT", "POST"),
        ("/v1/messages", "BREW", "POST"),
        ("/v1/messages/count_tokens", "GET", "POST"),
        ("/v1/models", "POST", "GET"),
        ("/v1/models/tiny", "DELETE", "GET"),
        ("/v1/runs", "POST", "GET"),
        ("/v1/runs/run_x/cancel", "GET", "POST"),
        ("/healthz", "POST", "GET"),
    ],
)
def test_another_method_is_not_allowed(
    client: httpx.Client, path: str, method: str, allowed: str
) -> None:
    response = client.request(method, path)
    assert refused(response, 405) == f"{path}: {method} is not allowed here"
    assert allowed in response.headers["allow"].split(", ")


@pytest.mark.parametrize(
    ("path", "status"),
    [("/", 200), ("/healthz", 200), ("/v1/models", 200), ("/v1/messages", 405), ("/nothing", 404)],
)
def test_head_is_answered_without_a_body(client: httpx.Client, path: str, status: int) -> None:
    response = client.head(path)
    assert response.status_code == status
    assert response.content == b""
    assert response.headers["request-id"].startswith("req_")
    assert response.headers["content-type"] == "application/json"


def test_every_answer_has_an_id_of_its_own(client: httpx.Client) -> None:
    responses = [
        client.get("/v1/models"),
        client.options("/v1/messages"),
        client.post("/v1/messages", json=body()),
        client.post("/v1/messages", json=body(stream=True)),
        client.post("/v1/messages", json={}),
        client.get("/nothing"),
    ]
    ids = {response.headers["request-id"] for response in responses}
    assert len(ids) == len(responses)
    assert all(id.startswith("req_") for id in ids)


def test_a_body_over_the_limit_is_refused_unread(service: Running) -> None:
    headers = [
        (b"Host", b"localhost"),
        (b"Content-Type", b"application/json"),
        (b"Content-Length", str((32 << 20) + 1).encode()),
    ]
    answer = raw_http.request(service.url, "POST", "/v1/messages", headers, b"{")
    assert "32 MiB" in refused(answer, 413, "request_too_large")


def test_a_web_socket_is_refused(service: Running) -> None:
    headers = [
        (b"Host", b"localhost"),
        (b"Connection", b"Upgrade"),
        (b"Upgrade", b"websocket"),
        (b"Sec-WebSocket-Key", b"dGhlIHNhbXBsZSBub25jZQ=="),
        (b"Sec-WebSocket-Version", b"13"),
    ]
    for path in ("/v1/messages", "/v1/models", "/nothing"):
        answer = raw_http.request(service.url, "GET", path, headers)
        assert refused(answer).startswith("upgrade: WebSockets are not spoken here")


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"limit": "0"}, "limit: Input should be an integer from 1 to 100"),
        ({"limit": "101"}, "limit: Input should be an integer from 1 to 100"),
        ({"limit": "-1"}, "limit: Input should be an integer from 1 to 100"),
        ({"limit": "\u0661"}, "limit: Input should be an integer from 1 to 100"),
        ({"limit": "9" * 5000}, "limit: Input should be an integer from 1 to 100"),
        ({"state": "lost"}, "state: Input should be one of queued, "),
    ],
)
def test_a_bad_query_is_refused_by_name(
    client: httpx.Client, query: dict[str, str], message: str
) -> None:
    assert refused(client.get("/v1/runs", params=query)).startswith(message)


def test_a_page_after_no_run_is_refused(client: httpx.Client) -> None:
    for before in ("run_x", "", "\x00", "\ufffd", "'; DROP TABLE jobs; --"):
        answer = client.get("/v1/runs", params={"before_id": before})
        assert refused(answer, 404, "not_found_error").startswith("before_id: the run ")


def test_a_path_with_an_empty_part_is_refused_in_the_envelope(client: httpx.Client) -> None:
    for path in ("/v1/messages/batches//results", "/v1//runs", "/v1/runs//events"):
        answer = client.get(path)
        assert refused(answer, 404, "not_found_error") == f"{path}: there is no such path"


FULL: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 2,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "x", "signature": "y"},
                {"type": "text", "text": "a", "citations": None},
                {"type": "tool_use", "id": "t", "name": "n", "input": {"a": [1]}},
            ],
        },
        {
            "role": "system",
            "content": [{"type": "text", "text": "late"}],
            "clear_at": "never",
            "output_config": {"effort": "low"},
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]},
                {"type": "document", "source": {"type": "text", "data": "x"}, "title": "t"},
            ],
        },
    ],
    "stop_sequences": ["zz"],
    "stream": False,
    "temperature": 0.5,
    "top_p": 0.5,
    "top_k": 3,
    "seed": 1,
    "tools": [],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
    "thinking": {"type": "adaptive", "display": "omitted"},
    "output_config": {"effort": "high", "task_budget": {"a": 1}},
    "cache_control": {"type": "ephemeral"},
    "metadata": {"user_id": "u"},
    "service_tier": "auto",
    "speed": "fast",
    "inference_geo": "eu",
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "mcp_servers": [],
    "container": None,
    "thread": None,
    "diagnostics": {"x": 1},
}


def places_in(value: Any) -> list[tuple[Any, ...]]:
    items = enumerate(value) if isinstance(value, list) else ()
    items = value.items() if isinstance(value, dict) else items
    return [(), *((key, *rest) for key, child in items for rest in places_in(child))]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from(
        [2**63, 10**400, 1e308, "text", "user", "auto", "ephemeral", "\x00", "x" * 9]
    ),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "text", ""]), inner, max_size=3
        )
    ),
    max_leaves=6,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_value_at_any_place_of_a_request_is_answered_or_refused(
    client: httpx.Client, data: st.DataObject
) -> None:
    request = json.loads(json.dumps(FULL))
    if data.draw(st.booleans()):
        request["messages"] = request["messages"][:1]  # without what is refused in any case
    *steps, last = data.draw(st.sampled_from(places_in(request)[1:]))
    node = request
    for step in steps:
        node = node[step]
    node[last] = data.draw(VALUES)
    for path in PATHS:
        response = client.post(path, json=request)
        assert response.headers["request-id"].startswith("req_")
        if response.status_code == 404:
            assert refused(response, 404, "not_found_error").startswith("model: ")
        elif response.status_code != 200:
            refused(response)
        elif response.headers["content-type"].startswith("text/event-stream"):
            check_order(list(parse_events(response.text.splitlines())))
        else:
            assert response.json()
