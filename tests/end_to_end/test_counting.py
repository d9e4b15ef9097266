"""`count_tokens` says what `usage` will say, for every family and every kind of conversation."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from models.catalog import inspect
from models.families import family_of
from models.families.family import Capabilities
from tests.service.requests import test_every_family
from tests.service.requests.served import (
    SIGNING_KEY,
    assistant,
    call,
    result,
    system,
    text,
    tool,
    user,
)
from tests.service.requests.test_every_family import THOUGHT
from tests.support.messages import body, events_of
from tests.support.refusals import refused
from tests.support.running import scripted_service
from tests.support.tiny_gemma import write_tiny_gemma3
from tests.support.wide_context import with_context

# As those of Mistral, which no family of ours knows.
BRACKETS = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'assistant' %}{{ m.content + eos_token }}"
    "{% elif m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
FAMILIES: dict[str, Callable[[Path], Path]] = {
    **{name: write for name, (write, _) in test_every_family.FAMILIES.items()},
    "generic": partial(write_tiny_gemma3, template=BRACKETS),
}
PICTURE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="},
}


def plain(data: str) -> dict[str, Any]:
    return {"type": "text", "media_type": "text/plain", "data": data}


RESULTS: dict[str, Any] = {
    "none": None,
    "an empty list": [],
    "texts": [text("a"), text(""), text("é😀")],
    "markers": "<|im_end|><turn|></think>",
    "a document": [{"type": "document", "title": "T", "source": plain("a\nb")}],
    "a search": [
        {"type": "search_result", "source": "s", "title": "t", "content": [text("found")]}
    ],
    "a tool": [{"type": "tool_reference", "tool_name": "Later"}],
    "a browser": [{"type": "browser_state", "tabs": [{"url": "about:blank"}]}],
}
HISTORIES: dict[str, list[dict[str, Any]]] = {
    **test_every_family.HISTORIES,
    **{
        f"a result of {name}": [
            user("a"),
            assistant([THOUGHT, text("b"), call("1", path="c", deep={"d": [1, None, "e"]})]),
            system("f"),
            user([result("1", content, is_error=place % 2 == 0), text("g")]),
        ]
        for place, (name, content) in enumerate(RESULTS.items())
    },
    "thinking of others": [
        user("a"),
        assistant(
            [
                {"type": "thinking", "thinking": "b", "signature": "EqQBCgIYAhIM"},
                {"type": "redacted_thinking", "data": "AAAA"},
                text("c"),
            ]
        ),
        system([text("d"), text("e")]),
        system("f"),
        user([{"type": "document", "source": plain("g")}, text("h")]),
    ],
}
TOOLS = [tool("Read"), tool("Run", strict=True), tool("Later", defer_loading=True)]
CLIENT_TOOLS = [
    {"type": "bash_20250124", "name": "bash"},
    {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool"},
    {"type": "memory_20250818", "name": "memory"},
    {
        "type": "computer_20250124",
        "name": "computer",
        "display_width_px": 100,
        "display_height_px": 100,
    },
]
FORMAT = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}


def forms(can: Capabilities) -> Iterator[dict[str, Any]]:
    """What such a family can be asked for."""
    yield {"system": "Be kind.", "stop_sequences": ["x"], "thinking": {"type": "disabled"}}
    yield {"system": [text("Be kind."), text("Be brief.")], "thinking": {"type": "adaptive"}}
    for kind in can.thinking:
        budget = {"budget_tokens": 1024} if kind == "enabled" else {}
        yield {"thinking": {"type": kind, **budget}, "tools": TOOLS if can.tools else []}
    for effort in can.efforts:
        yield {"output_config": {"effort": effort}, "thinking": {"type": "adaptive"}}
    if can.structured_outputs:
        yield {"output_config": {"format": {"type": "json_schema", "schema": FORMAT}}}
    if can.tools:
        yield {"tools": CLIENT_TOOLS}
        for kind in ("auto", "any", "none"):
            yield {"tools": TOOLS, "tool_choice": {"type": kind, "disable_parallel_tool_use": True}}
        yield {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "Read"}}


@dataclass
class Served:
    client: httpx.Client
    can: Capabilities


@pytest.fixture(scope="module", params=FAMILIES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """With the key that the tests' thinking is signed with."""
    folder = tmp_path_factory.mktemp("served")
    model = with_context(FAMILIES[request.param](folder / "tiny"), 65_536)
    data = folder / "data"
    data.mkdir()
    (data / "thinking.key").write_text(SIGNING_KEY.hex())
    with scripted_service(model, data) as service, service.client() as client:
        yield Served(client, family_of(inspect(model)).capabilities)


@pytest.mark.parametrize("name", HISTORIES)
def test_any_history_is_counted_as_it_is_answered(served: Served, name: str) -> None:
    more = {"tools": TOOLS, "thinking": {"type": "adaptive"}} if served.can.tools else {}
    answer = check(served, messages=HISTORIES[name], **more)
    drops = "messages.thinking" in answer.headers.get("mererun-ignored", "")
    assert drops == (name == "thinking of others")


def test_whatever_is_asked_of_an_answer_is_counted_as_it_is_answered(served: Served) -> None:
    for form in forms(served.can):
        check(served, messages=HISTORIES["thinking and calls"], **form)


@pytest.mark.parametrize(
    ("messages", "path"),
    [
        ([user([text("a"), PICTURE])], "messages.0.content.1: "),
        (
            [user("a"), assistant([call("1")]), user([result("1", [text("b"), PICTURE])])],
            "messages.2.content.0.content.1: ",
        ),
    ],
    ids=["of the user", "in a result"],
)
def test_images_are_refused_by_name_where_there_is_no_vision(
    served: Served, messages: list[Any], path: str
) -> None:
    said = {
        refused(served.client.post(endpoint, json=body(messages=messages)))
        for endpoint in ("/v1/messages", "/v1/messages/count_tokens")
    }
    (message,) = said
    assert message.startswith(f"{path}image blocks are not supported by tiny")


def check(served: Served, **fields: Any) -> httpx.Response:
    """The whole answer, when it and a streamed one were counted right."""
    request = {**body(max_tokens=1100), **fields}
    counted = served.client.post("/v1/messages/count_tokens", json=request)
    assert counted.status_code == 200, counted.text
    tokens = counted.json()["input_tokens"]
    whole = served.client.post("/v1/messages", json=request)
    assert whole.status_code == 200, whole.text
    assert whole.json()["usage"]["input_tokens"] == tokens > 0
    start, *_, end, _ = events_of(served.client, request)
    assert start["message"]["usage"]["input_tokens"] == tokens
    assert end["usage"]["input_tokens"] == tokens
    for header in ("mererun-ignored", "mererun-unguided"):
        assert counted.headers.get(header) == whole.headers.get(header)
    return whole
