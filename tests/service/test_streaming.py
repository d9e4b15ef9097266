"""One answer streamed and whole: the official client makes the same message of both."""

import json
from collections.abc import Callable
from typing import Any

import anthropic
import anyio
import httpx2
import pytest

from service.errors import ApiError
from service.scheduling.answer import Answer
from service.scheduling.live_job import Reading
from service.scheduling.relay import Answered, Broken, Relay
from service.streaming import stream, whole
from service.wire.responses import Message
from tests.support.fake_language import END, answer, ids_of, said
from tests.support.messages import check_order, parse_events

LS = '<call>run:{"cmd":"ls é😀","args":["\\ud83d\\ude00",{}]}</call>'
NOW = "<call>now:{}</call>"
ANSWERS = {
    "nothing": said(END),
    "text": said(f"é 😀 hello{END}"),
    "all kinds": said(f"<think>a é</think>Text one.{LS}{NOW}Text two.{END}"),
    "thinking and a call": said(f"<think>a</think>\n\n{LS}{END}"),
    "hidden thinking": said(f"<think>secret</think>a{END}", display="omitted"),
    "thinking that was cut": said("<think>abcdef", max_tokens=4),
    "one call": said(f"a{LS}{NOW}b{END}", parallel=False),
    "a stop sequence": said("<think>STOP</think>ab STOP", stop_sequences=("STOP",)),
}


def reading(made: Answer, *, ended: bool = True) -> Reading:
    relay = Relay()
    for piece in made.pieces:
        relay.publish(piece)
    if ended:
        assert made.stop_reason is not None
        relay.publish(
            Answered(made.stop_reason, made.stop_sequence, len(made.ids), made.thinking_tokens)
        )
    return Reading("run_1", "msg_1", "m", 7, relay)


async def streamed(of: Reading) -> bytes:
    return b"".join([part async for part in stream(of, "req_1", 60)])


async def streamed_slowly(made: Answer) -> bytes:
    """To a reader that gets every piece as soon as it is there."""
    relay, parts = Relay(), list[bytes]()
    of = Reading("run_1", "msg_1", "m", 7, relay)

    async def read() -> None:
        parts.extend([part async for part in stream(of, "req_1", 60)])

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        for event in await reading(made).relay.after(0):
            await anyio.wait_all_tasks_blocked()
            relay.publish(event)
    return b"".join(parts)


def client_of(body: bytes, content_type: str) -> anthropic.Anthropic:
    def answered(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=body, headers={"content-type": content_type})

    http = httpx2.Client(transport=httpx2.MockTransport(answered))
    return anthropic.Anthropic(
        api_key="k", base_url="http://test", http_client=http, _strict_response_validation=True
    )


ASKED: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "?"}],
}


def accumulated(body: bytes) -> dict[str, Any]:
    with client_of(body, "text/event-stream").messages.stream(**ASKED) as events:
        return events.get_final_message().model_dump(mode="json", exclude_unset=True)


def created(message: Message) -> dict[str, Any]:
    body = json.dumps(message.as_json()).encode()
    made = client_of(body, "application/json").messages.create(**ASKED)
    return made.model_dump(mode="json", exclude_unset=True)


def events_in(body: bytes) -> list[dict[str, Any]]:
    return list(parse_events(body.decode().split("\n")))


@pytest.mark.anyio
@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("read", [lambda made: streamed(reading(made)), streamed_slowly])
async def test_the_client_makes_of_a_stream_what_it_gets_whole(
    name: str, read: Callable[[Answer], Any]
) -> None:
    made = ANSWERS[name]
    body = await read(made)
    events = events_in(body)
    check_order(events)
    message = await whole(reading(made))
    assert accumulated(body) == created(message)
    thinking_tokens = {"thinking_tokens": made.thinking_tokens}
    assert message.as_json()["usage"]["output_tokens_details"] == thinking_tokens
    assert events[-2]["usage"]["output_tokens_details"] == thinking_tokens


@pytest.mark.anyio
async def test_whoever_fell_behind_gets_each_block_in_one_delta() -> None:
    events = events_in(await streamed(reading(ANSWERS["all kinds"])))
    deltas = [each["delta"]["type"] for each in events if "delta" in each and "index" in each]
    text, call = ["text_delta"], ["input_json_delta"]
    assert deltas == ["thinking_delta", "signature_delta", *text, *call, *call, *text]


@pytest.mark.anyio
async def test_a_call_that_was_cut_is_unfinished_in_the_stream_and_missing_in_the_whole() -> None:
    """A client that takes the unfinished call for one is told by `max_tokens` not to run it."""
    made = said(f"a{LS}", max_tokens=len(ids_of('a<call>run:{"cmd":"l')))
    body = await streamed(reading(made))
    check_order(events_in(body))
    message = (await whole(reading(made))).as_json()
    assert (message["content"], message["stop_reason"]) == (
        [{"type": "text", "text": "a"}],
        "max_tokens",
    )
    seen = accumulated(body)
    assert seen["stop_reason"] == "max_tokens"
    assert [each["type"] for each in seen["content"]] == ["text", "tool_use"]
    assert seen["content"][1]["input"] == {}


@pytest.mark.anyio
async def test_a_call_that_must_not_be_published_ends_the_stream_with_an_error() -> None:
    made = answer(streams=False)
    made.take(ids_of('a<call>run:{"bad":1}</call>'))
    of = reading(made, ended=False)
    assert made.fault is not None
    of.relay.publish(Broken(made.fault))
    *events, last = events_in(await streamed(of))
    assert "tool_use" not in json.dumps(events)
    assert (last["type"], last["error"]["type"]) == ("error", "api_error")
    with pytest.raises(ApiError, match="run"):
        await whole(of)
