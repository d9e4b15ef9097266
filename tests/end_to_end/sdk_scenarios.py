"""What users of the official SDK do, with whichever version of it is installed.

As a program, `python -m tests.end_to_end.sdk_scenarios PLACE` does all of it and prints a JSON
object: the SDK's version, and for each scenario the traceback of its failure or null.
"""

import asyncio
import json
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import anthropic
import httpx
from anthropic import Anthropic, AsyncAnthropic
from pydantic import BaseModel

_DEADLINE_SECONDS = 30


@dataclass(frozen=True)
class Place:
    """Where a real model is served without keys, and where any is served with them."""

    url: str
    model: str
    keyed_url: str
    keyed_model: str
    key: str

    def client(self, **more: Any) -> Anthropic:
        return Anthropic(**{"base_url": self.url, **_OPTIONS, **more})

    def async_client(self) -> AsyncAnthropic:
        return AsyncAnthropic(base_url=self.url, **_OPTIONS)

    def asking(self, text: str = "What is the capital of France?", **more: Any) -> dict[str, Any]:
        """A short request with a repeatable answer: "The capital of France is", cut short."""
        return {
            "model": self.model,
            "max_tokens": 5,
            "messages": [{"role": "user", "content": text}],
            "extra_body": {"temperature": 0},
            **more,
        }


_OPTIONS: dict[str, Any] = {
    "api_key": "any",
    "max_retries": 0,
    "timeout": 120,
    "_strict_response_validation": True,
}

Scenario = Callable[[Place], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


@scenario
def a_whole_answer(place: Place) -> None:
    message = place.client().messages.create(**place.asking())
    assert (message.type, message.role, message.model) == ("message", "assistant", place.model)
    assert message.id.startswith("msg_")
    assert _text(message) == "The capital of France is"
    assert message.stop_reason == "max_tokens"
    assert message.stop_sequence is None
    assert message.usage.output_tokens == 5
    assert message._request_id.startswith("req_")
    check_count(place, message)


@scenario
def a_streamed_answer_adds_up_to_the_whole_one(place: Place) -> None:
    client = place.client()
    whole = client.messages.create(**place.asking())
    with client.messages.stream(**place.asking()) as stream:
        text = "".join(stream.text_stream)
        message = stream.get_final_message()
        assert stream.response.headers["request-id"].startswith("req_")
    assert text == _text(message) == _text(whole)
    assert message.id != whole.id
    assert message.model_dump(exclude={"id"}) == whole.model_dump(exclude={"id"})
    check_count(place, message)


@scenario
def events_come_one_by_one(place: Place) -> None:
    events = list(place.client().messages.create(**place.asking(), stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert len(kinds) > 6
    check_count(place, events[0].message)


@scenario
def an_async_client(place: Place) -> None:
    async def use() -> None:
        async with place.async_client() as client:

            async def streamed() -> Any:
                async with client.messages.stream(**place.asking()) as stream:
                    return await stream.get_final_message()

            whole, collected, count = await asyncio.gather(
                client.messages.create(**place.asking()),
                streamed(),
                client.messages.count_tokens(**_countable(place.asking())),
            )
        assert _text(whole) == _text(collected)
        assert count.input_tokens == whole.usage.input_tokens == collected.usage.input_tokens

    asyncio.run(use())


@scenario
def a_conversation_of_many_turns(place: Place) -> None:
    client = place.client()
    request = place.asking()
    first = client.messages.create(**request)
    request["messages"] += [
        {"role": first.role, "content": first.content},
        {"role": "user", "content": [{"type": "text", "text": "And of Italy?"}]},
    ]
    second = client.messages.create(**request)
    assert second.usage.input_tokens > first.usage.input_tokens
    check_count(place, second, **request)


@scenario
def system_text_as_string_and_as_blocks(place: Place) -> None:
    client = place.client()
    blocks = [{"type": "text", "text": "Answer in French.", "cache_control": {"type": "ephemeral"}}]
    message = client.messages.create(**place.asking(system=blocks))
    check_count(place, message, system=blocks)
    check_count(place, message, system="Answer in French.")


@scenario
def a_system_turn_among_the_messages(place: Place) -> None:
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "system", "content": "Answer in French."},
        {"role": "user", "content": "What is the capital of France?"},
    ]
    request = place.asking(messages=messages)
    message = place.client().messages.create(**request)
    check_count(place, message, **request)
    without = place.client().messages.count_tokens(
        **_countable({**request, "messages": [messages[0], messages[2]]})
    )
    assert without.input_tokens < message.usage.input_tokens


@scenario
def an_answer_that_is_begun_by_the_client(place: Place) -> None:
    begun = {"role": "assistant", "content": "The capital of France is the city of"}
    request = place.asking()
    request["messages"].append(begun)
    message = place.client().messages.create(**request)
    assert _text(message).startswith(" Paris")
    check_count(place, message, **request)


@scenario
def stop_sequences(place: Place) -> None:
    client = place.client()
    whole = _text(client.messages.create(**place.asking()))
    stop = whole[6:9]  # in the middle of a token
    request = place.asking(stop_sequences=["never to be seen", stop])
    message = client.messages.create(**request)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert _text(message) == whole.partition(stop)[0]
    assert message.usage.output_tokens <= 5
    with client.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    assert streamed.model_dump(exclude={"id"}) == message.model_dump(exclude={"id"})
    check_count(place, message)


class Capital(BaseModel):
    name: Literal["London", "Paris", "Rome"]


@scenario
def an_answer_that_is_parsed(place: Place) -> None:
    client = place.client()
    request = place.asking(max_tokens=30, output_format=Capital)
    message = client.messages.parse(**request)
    assert isinstance(message.parsed_output, Capital)
    assert message.stop_reason == "end_turn"
    with client.messages.stream(**request) as stream:
        assert stream.get_final_message().parsed_output == message.parsed_output
    check_count(place, message, output_format=Capital)


@scenario
def a_history_with_a_tool_that_is_gone(place: Place) -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"country": "Italy"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rome"}
    request = place.asking()
    request["messages"] += [
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    message = place.client().messages.create(**request)
    assert _text(message)
    check_count(place, message, **request)


@scenario
def tools_of_a_model_that_has_none(place: Place) -> None:
    tool = {"name": "look_up", "input_schema": {"type": "object"}}
    create = place.client().messages.create
    error = _raised(anthropic.BadRequestError, create, **place.asking(tools=[tool]))
    assert "tools: tool use is not supported by " in error.message


@scenario
def nothing_is_generated_for_max_tokens_0(place: Place) -> None:
    message = place.client().messages.create(**place.asking(max_tokens=0))
    assert (message.content, message.stop_reason) == ([], "max_tokens")
    assert message.usage.output_tokens == 0
    check_count(place, message)


@scenario
def the_models_are_listed_and_found(place: Place) -> None:
    client = place.client()
    page = client.models.list()
    assert [model.id for model in page] == [place.model]
    assert not page.has_next_page()
    model = client.models.retrieve(place.model)
    assert model == page.data[0]
    assert model.max_input_tokens == model.max_tokens == 8192
    for unknown in ("gpt-none", "org/model", "org/model v2"):
        error = _raised(anthropic.NotFoundError, client.models.retrieve, unknown)
        assert unknown in error.message
        assert error.request_id.startswith("req_")


@scenario
def errors_are_typed(place: Place) -> None:
    client = place.client()
    create, count = client.messages.create, client.messages.count_tokens
    error = _raised(anthropic.BadRequestError, create, **place.asking(max_tokens=-1))
    assert error.status_code == 400
    assert error.body["error"]["type"] == "invalid_request_error"
    assert "max_tokens" in error.message
    assert error.request_id.startswith("req_")
    assert error.body["request_id"] == error.request_id
    error = _raised(anthropic.NotFoundError, create, **place.asking(model="gpt-none"))
    assert "gpt-none" in error.message
    assert error.body["error"]["type"] == "not_found_error"
    error = _raised(anthropic.BadRequestError, create, **place.asking(), extra_headers=_NOT_JSON)
    assert error.request_id.startswith("req_")
    lost = {"type": "continue", "previous_message_id": "msg_none"}
    error = _raised(anthropic.NotFoundError, create, **place.asking(extra_body={"thread": lost}))
    assert error.body["error"]["details"] == {"error_code": "thread_not_found"}
    error = _raised(anthropic.NotFoundError, count, model="gpt-none", messages=_HELLO)
    assert "gpt-none" in error.message


@scenario
def a_prompt_that_is_too_long(place: Place) -> None:
    client = place.client()
    long = place.asking("word " * 9000)
    for send in (client.messages.create, _streamed(client)):
        error = _raised(anthropic.BadRequestError, send, **long)
        message = error.body["error"]["message"]
        assert message.startswith("prompt is too long: ")
        assert message.endswith(" tokens > 8192 maximum")
    error = _raised(anthropic.BadRequestError, _streamed(client), **place.asking(max_tokens=8192))
    assert "input length and `max_tokens` exceed context limit: " in error.message


@scenario
def a_stream_that_is_closed_early_is_cancelled(place: Place) -> None:
    with place.client().messages.stream(**_endless(place)) as stream:
        run = stream.response.headers["mererun-run"]
        next(iter(stream.text_stream))
    assert _ended(place, run)["state"] == "cancelled"
    assert place.client().messages.create(**place.asking()).stop_reason == "max_tokens"


@scenario
def a_whole_answer_that_is_given_up_is_cancelled(place: Place) -> None:
    async def use() -> str:
        async with place.async_client() as client:
            asked = asyncio.create_task(client.messages.create(**_endless(place)))
            deadline = time.monotonic() + _DEADLINE_SECONDS
            while not (running := _get(place, "/v1/runs?state=running")["data"]):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.05)
            asked.cancel()
            await asyncio.wait([asked])
        return running[0]["id"]

    assert _ended(place, asyncio.run(use()))["state"] == "cancelled"


@scenario
def a_beta_client(place: Place) -> None:
    client = place.client()
    betas = ["context-1m-2025-08-07", "made-up-2099-01-01"]
    request = place.asking(betas=betas, extra_query={"beta": "true"})
    whole = client.beta.messages.create(**request)
    with client.beta.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    assert _text(streamed) == _text(whole)
    count = client.beta.messages.count_tokens(**_countable(request))
    assert count.input_tokens == whole.usage.input_tokens == streamed.usage.input_tokens
    assert [model.id for model in client.beta.models.list()] == [place.model]


@scenario
def keys_are_asked_for(place: Place) -> None:
    def use(**credentials: Any) -> None:
        client = place.client(base_url=place.keyed_url, **credentials)
        request = place.asking(model=place.keyed_model, max_tokens=2)
        message = client.messages.create(**request)
        count = client.messages.count_tokens(**_countable(request))
        assert count.input_tokens == message.usage.input_tokens
        assert client.models.list().data[0].id == place.keyed_model

    use(api_key=place.key)
    use(api_key=None, auth_token=place.key)
    use(api_key="another service's", default_headers={"X-Api-Key": place.key})
    for credentials in ({"api_key": "wrong"}, {"api_key": None, "auth_token": "wrong"}):
        error = _raised(anthropic.AuthenticationError, use, **credentials)
        assert error.body["error"]["type"] == "authentication_error"
        assert error.request_id.startswith("req_")


@scenario
def files_come_and_go(place: Place) -> None:
    for files in (place.client().files, place.client().beta.files):
        uploaded = [
            files.upload(file=(f"{number}.txt", f"number {number}".encode(), "text/plain"))
            for number in range(3)
        ]
        assert files.upload(file=b"short-lived", expires_in_seconds=3600).expires_at is not None
        file = uploaded[1]
        assert file == files.retrieve_metadata(file.id)
        assert (file.filename, file.mime_type, file.size_bytes) == ("1.txt", "text/plain", 8)
        assert files.download(file.id).read() == b"number 1"
        with files.with_streaming_response.download(file.id) as response:
            assert b"".join(response.iter_bytes()) == b"number 1"
        listed = list(files.list(ids=[each.id for each in uploaded]))
        assert listed == uploaded[::-1]
        for listed_file in files.list(limit=1):  # a page each
            assert files.delete(listed_file.id).id == listed_file.id
        error = _raised(anthropic.NotFoundError, files.download, file.id)
        assert error.body["error"]["type"] == "not_found_error"
        assert list(files.list()) == []


@scenario
def files_of_an_async_client(place: Place) -> None:
    async def use() -> None:
        async with place.async_client() as client:
            for files in (client.files, client.beta.files):
                sent = [files.upload(file=(f"{number}.pdf", b"%PDF")) for number in range(8)]
                uploaded = await asyncio.gather(*sent)
                content = await files.download(uploaded[0].id)
                assert await content.read() == b"%PDF"
                listed = [file.id async for file in files.list(limit=3)]
                assert sorted(listed) == sorted(file.id for file in uploaded)
                await asyncio.gather(*(files.delete(file.id) for file in uploaded))

    asyncio.run(use())


def check_count(place: Place, message: Any, **more: Any) -> None:
    """`count_tokens` says of the request what the answer's usage says."""
    count = place.client().messages.count_tokens(**_countable(place.asking(**more)))
    usage = message.usage
    cached = usage.cache_creation_input_tokens + usage.cache_read_input_tokens
    assert count.input_tokens == usage.input_tokens + cached > 0


_HELLO = [{"role": "user", "content": "Hello"}]
_NOT_JSON = {"Content-Type": "text/plain"}


def _countable(request: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in request.items()
        if key not in ("max_tokens", "stop_sequences", "extra_body")
    }


def _endless(place: Place) -> dict[str, Any]:
    """Long enough that nobody waits for its end."""
    return place.asking("Tell me a very long story.", max_tokens=4000)


def _streamed(client: Anthropic) -> Callable[..., None]:
    def send(**request: Any) -> None:
        with client.messages.stream(**request) as stream:
            stream.until_done()

    return send


def _text(message: Any) -> str:
    (block,) = message.content
    assert block.type == "text"
    return block.text


def _raised(kind: type[Any], function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    try:
        function(*args, **more)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def _get(place: Place, path: str) -> dict[str, Any]:
    return httpx.get(place.url + path, timeout=_DEADLINE_SECONDS).raise_for_status().json()


def _ended(place: Place, run: str) -> dict[str, Any]:
    deadline = time.monotonic() + _DEADLINE_SECONDS
    while (found := _get(place, f"/v1/runs/{run}"))["state"] in ("queued", "running"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def main() -> None:
    place = Place(**json.loads(sys.argv[1]))
    failures: dict[str, str | None] = {"version": anthropic.__version__}
    for name, function in SCENARIOS.items():
        try:
            function(place)
            failures[name] = None
        except Exception:
            failures[name] = traceback.format_exc()
    print(json.dumps(failures))


def as_argument(place: Place) -> str:
    return json.dumps(asdict(place))


if __name__ == "__main__":
    main()
