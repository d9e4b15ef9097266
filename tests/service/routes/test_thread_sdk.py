"""The official client's threads and tool runner, with their defaults."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import beta_async_tool, beta_tool

from tests.support.fake_language import write_fake_checkpoint
from tests.support.lives import assert_stops_well
from tests.support.running import Running, scripted_service

pytestmark = pytest.mark.anyio

CALL = '<call>add:{"a":21,"b":4}</call>'
VERSIONS = ["2023-06-01", "2026-10-21"]


class Sent:
    """The bodies of requests, and the statuses they were answered with."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.statuses: list[int] = []

    def note(self, response: Any) -> None:
        self.bodies.append(json.loads(response.request.content))
        self.statuses.append(response.status_code)

    async def note_async(self, response: Any) -> None:
        self.note(response)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_fake_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with scripted_service(model, tmp_path_factory.mktemp("data")) as running:
        yield running
        assert_stops_well(running)


@pytest.fixture
def sent() -> Sent:
    return Sent()


def sdk(service: Running, sent: Sent, version: str = VERSIONS[-1]) -> anthropic.Anthropic:
    hooks: Any = {"response": [sent.note]}
    return anthropic.Anthropic(
        **options(service, version),
        http_client=anthropic.DefaultHttpxClient(verify=False, event_hooks=hooks),
    )


def options(service: Running, version: str) -> dict[str, Any]:
    return {
        "base_url": service.url,
        "api_key": "none",
        "max_retries": 0,
        "default_headers": {"anthropic-version": version},
        "_strict_response_validation": True,
    }


def asking(**script: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": json.dumps(script)}]
    return {"model": "tiny", "max_tokens": 200, "system": "be brief", "messages": messages}


@beta_tool
def add(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


@beta_async_tool(name="add")
async def add_async(a: int, b: int) -> str:
    """Adds two numbers."""
    return str(a + b)


def check_threaded(sent: Sent, first: Any, second: Any) -> None:
    """The second request brought the result, and nothing of what the service holds."""
    assert [each.type for each in first.content] == ["tool_use"]
    assert second.content[0].text == "ok"
    create, onto = sent.bodies
    assert create["thread"] == {"type": "create"}
    assert onto["thread"] == {"type": "continue", "previous_message_id": first.id}
    assert {"system", "tools"}.isdisjoint(onto)
    (message,) = onto["messages"]
    assert message["content"][0]["tool_use_id"] == first.content[0].id
    assert sent.statuses == [200, 200]
    assert second.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tool_runner_runs_with_its_defaults(service: Running, sent: Sent, version: str) -> None:
    with sdk(service, sent, version) as client:
        runner = client.beta.messages.tool_runner(**asking(say=CALL), tools=[add])
        first, second = runner
    check_threaded(sent, first, second)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_streaming_tool_runner_does_too(service: Running, sent: Sent, version: str) -> None:
    with sdk(service, sent, version) as client:
        runner = client.beta.messages.tool_runner(**asking(say=CALL), tools=[add], stream=True)
        first, second = [stream.get_final_message() for stream in runner]
    check_threaded(sent, first, second)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_async_tool_runner_does_too(service: Running, sent: Sent, stream: bool) -> None:
    hooks: Any = {"response": [sent.note_async]}
    http_client = anthropic.DefaultAsyncHttpxClient(verify=False, event_hooks=hooks)
    async with anthropic.AsyncAnthropic(
        **options(service, VERSIONS[-1]), http_client=http_client
    ) as client:
        runner: Any = client.beta.messages.tool_runner(
            **asking(say=CALL), tools=[add_async], stream=stream
        )
        got = [await each.get_final_message() if stream else each async for each in runner]
    check_threaded(sent, *got)


def test_the_tool_runner_goes_on_where_there_are_no_threads(
    model: Path, tmp_path: Path, sent: Sent
) -> None:
    with (
        scripted_service(model, tmp_path / "data", record_content=False) as service,
        sdk(service, sent) as client,
    ):
        _, second = client.beta.messages.tool_runner(**asking(say=CALL), tools=[add])
    assert second.content[0].text == "ok"
    assert sent.statuses == [400, 200, 200]
    assert ["thread" in each for each in sent.bodies] == [True, False, False]
    assert len(sent.bodies[-1]["messages"]) == 3


def test_a_thread_sends_what_is_new(service: Running, sent: Sent) -> None:
    with sdk(service, sent) as client:
        thread = client.beta.messages.thread(**asking(say="one"))
        assert thread.send().content[0].text == "one"
        with thread.stream({"role": "user", "content": '{"say":"two"}'}) as stream:
            assert "".join(stream.text_stream) == "two"
        assert thread.send({"role": "user", "content": "three?"}).content[0].text == "ok"
    assert sent.statuses == [200, 200, 200]
    assert [len(each["messages"]) for each in sent.bodies] == [1, 1, 1]
    assert len(thread.messages) == 6


def test_a_thread_that_was_continued_elsewhere_is_replayed(service: Running, sent: Sent) -> None:
    with sdk(service, sent) as client:
        thread = client.beta.messages.thread(**asking(say="one"))
        first = thread.send()
        client.beta.messages.create(
            model="tiny",
            max_tokens=20,
            messages=[{"role": "user", "content": "elsewhere"}],
            thread={"type": "continue", "previous_message_id": first.id},
        )
        thread.send({"role": "user", "content": "here"})
        thread.send({"role": "user", "content": "and on"})
    assert sent.statuses == [200, 200, 400, 200, 200]
    *_, replayed, last = sent.bodies
    assert replayed["thread"] == {"type": "create"}
    assert len(replayed["messages"]) == 3
    assert len(last["messages"]) == 1


def test_a_stream_that_was_left_is_asked_for_again(service: Running, sent: Sent) -> None:
    with sdk(service, sent) as client:
        thread = client.beta.messages.thread(**asking(say="one"))
        thread.send()
        script = json.dumps({"say": "two", "step_ms": 20})
        with thread.stream({"role": "user", "content": script}) as stream:
            next(iter(stream.text_stream))
        assert thread.send({"role": "user", "content": "more?"}).content[0].text == "ok"
    assert sent.statuses == [200, 200, 200]
    assert sent.bodies[-1]["thread"] == {"type": "create"}
