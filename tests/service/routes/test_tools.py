"""Conversations with tools and thinking, over and over: what was answered can be sent again."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.fake_language import write_fake_checkpoint
from tests.support.messages import body
from tests.support.refusals import refused
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen

TOOLS = [
    {"name": "run", "input_schema": {"type": "object", "properties": {"cmd": {"type": "string"}}}},
    {"name": "late", "input_schema": {"type": "object"}, "defer_loading": True},
]
SAY = '<think>Hm.</think>See.<call>run:{"cmd":"ls"}</call>'


@pytest.fixture(scope="module")
def able(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = write_fake_checkpoint(tmp_path_factory.mktemp("models") / "tiny")
    with scripted_service(model, tmp_path_factory.mktemp("able")) as running:
        yield running


@pytest.fixture(scope="module")
def able_client(able: Running) -> Iterator[httpx.Client]:
    with able.client() as client:
        yield client


def asking(**more: Any) -> dict[str, Any]:
    request = body(json.dumps({"say": SAY}), tools=TOOLS, thinking={"type": "adaptive"})
    return {**request, "max_tokens": 200, **more}


def answered(client: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    """The message; counting and answering see the same prompt."""
    response = client.post("/v1/messages", json=request)
    assert response.status_code == 200, response.text
    message = response.json()
    counted = client.post("/v1/messages/count_tokens", json=request).json()["input_tokens"]
    assert message["usage"]["input_tokens"] == counted
    return message


def next_turn(request: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "a.txt"}
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    more = [
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]},
    ]
    return {**request, "messages": [*request["messages"], *more]}


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_an_answer_with_thinking_and_calls_can_be_sent_again(
    able_client: httpx.Client, display: str
) -> None:
    request = asking(thinking={"type": "adaptive", "display": display})
    message = answered(able_client, request)
    kinds = [block["type"] for block in message["content"]]
    assert kinds == ["thinking", "text", "tool_use"]
    again = next_turn(request, message)
    response = able_client.post("/v1/messages", json=again)
    assert response.status_code == 200, response.text
    assert "mererun-ignored" not in response.headers
    answered(able_client, again)


def test_altered_thinking_is_refused_by_both_endpoints(able_client: httpx.Client) -> None:
    request = asking()
    message = answered(able_client, request)
    message["content"][0]["thinking"] = "Hm, no."
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        response = able_client.post(path, json=next_turn(request, message))
        assert refused(response).startswith("messages.1.content.0: this thinking is not as ")


def test_thinking_of_another_server_is_dropped_and_named(able_client: httpx.Client) -> None:
    request = asking()
    message = answered(able_client, request)
    for signature in ("", "EqQBCgIYAhIM", None):
        message["content"][0]["signature"] = signature
        response = able_client.post("/v1/messages", json=next_turn(request, message))
        assert response.status_code == 200, response.text
        assert response.headers["mererun-ignored"] == "messages.thinking"


def test_the_record_says_how_the_answer_is_to_be_read(
    able: Running, able_client: httpx.Client
) -> None:
    request = asking(tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    response = able_client.post("/v1/messages", json={**request, "stop_sequences": ["x"]})
    (file,) = able.data_dir.glob(f"runs/*/*/*/{response.headers['mererun-run']}/prompt.json")
    kept = json.loads(file.read_text())
    assert [each["name"] for each in kept["form"]["tools"]] == ["run"]
    assert kept["form"]["choice"] == {"kind": "auto", "name": None, "parallel": False}
    assert kept["form"]["thinking"]["kind"] == "adaptive"
    assert (kept["opens"], kept["display"], kept["unguided"]) == ("text", "summarized", [])
    assert kept["stop_sequences"] == ["x"]
    assert "guide" in kept


@pytest.mark.parametrize(
    ("more", "start"),
    [
        ({"tool_choice": {"type": "tool", "name": "nope"}}, "tool_choice.name: "),
        ({"tools": [{"name": "a b", "input_schema": {}}]}, "tools.0.name: "),
        (
            {"tools": [{"name": "a", "input_schema": {"type": "array"}}]},
            "tools.0.input_schema.type: ",
        ),
        (
            {"tools": [*TOOLS, {"type": "web_fetch_20250910", "name": "web_fetch"}]},
            "tools.2.type: ",
        ),
    ],
)
def test_tools_and_choices_that_cannot_be_are_refused_by_both_endpoints(
    able_client: httpx.Client, more: dict[str, Any], start: str
) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        assert refused(able_client.post(path, json=asking(**more))).startswith(start)


@pytest.fixture(scope="module")
def qwen_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a service whose grammar is real."""
    model = write_tiny_qwen(tmp_path_factory.mktemp("models") / "tiny", "qwen3")
    with (
        scripted_service(model, tmp_path_factory.mktemp("qwen")) as running,
        running.client() as client,
    ):
        yield client


BEYOND = {"type": "object", "properties": {"p": {"type": "string", "not": {"const": "x"}}}}


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_tool_beyond_any_grammar_is_named(qwen_client: httpx.Client, path: str) -> None:
    plain = {"name": "plain", "input_schema": {"type": "object"}}
    tools = [plain, {"name": "beyond", "input_schema": BEYOND}]
    response = qwen_client.post(path, json=body(tools=tools, max_tokens=8))
    assert response.status_code == 200, response.text
    assert response.headers["mererun-unguided"] == "tools.1"
    assert "mererun-unguided" not in qwen_client.post(path, json=body(tools=[plain])).headers
    tools[1]["strict"] = True
    message = refused(qwen_client.post(path, json=body(tools=tools)))
    assert message.startswith("tools.1.strict: its schema ")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    ("schema", "why"),
    [(BEYOND, "it cannot be made a grammar"), ({"type": "strng"}, "the schema is no JSON Schema")],
)
def test_a_format_beyond_any_grammar_is_refused(
    qwen_client: httpx.Client, path: str, schema: dict[str, Any], why: str
) -> None:
    request = body(output_config={"format": {"type": "json_schema", "schema": schema}})
    message = refused(qwen_client.post(path, json=request))
    assert message.startswith(f"output_config.format.schema: {why}")


def test_hostile_schemas_are_answered_or_refused_by_name(qwen_client: httpx.Client) -> None:
    deep = b'{"type":"object","properties":{"x":' * 150 + b"{}" + b"}}" * 150
    tools = b'[{"name":"a","input_schema":' + deep + b"}]"
    data = json.dumps(body(tools=None)).encode().replace(b'"tools": null', b'"tools": ' + tools)
    response = qwen_client.post(
        "/v1/messages", content=data, headers={"content-type": "application/json"}
    )
    assert refused(response) == "tools.0.input_schema: the schema is nested more than 60 deep"
    recursive = {
        "type": "object",
        "$defs": {"Loop": {"$ref": "#/$defs/Loop"}, "N": {"items": {"$ref": "#/$defs/N"}}},
        "properties": {
            "bad": {"$ref": "#/$defs/Loop"},
            "tree": {"$ref": "#/$defs/N"},
            "ext": {"$ref": "https://example.org/x.json"},
            "slow": {"type": "string", "pattern": "^(a+)+$"},
        },
    }
    many = [{"name": f"t{number}", "input_schema": recursive} for number in range(150)]
    many_tools = body(tools=many, max_tokens=8)
    response = qwen_client.post("/v1/messages/count_tokens", json=many_tools)
    assert response.status_code == 200, response.text
