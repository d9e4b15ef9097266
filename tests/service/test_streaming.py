"""One answer streamed and whole: the official client makes the same message of both."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import anyio
import httpx2
import pytest
from tokenizers import Tokenizer

from models.catalog import resolve
from models.conversation import AnswerForm, ThinkingMode, Tool
from models.families import family_of
from models.families.family import Family
from service.errors import ApiError
from service.requests.answer_plan import AnswerPlan
from service.scheduling.answer import Answer
from service.scheduling.live_job import Reading
from service.scheduling.relay import Answered, Broken, Relay
from service.streaming import stream, whole
from service.wire.responses import Message, PromptUsage, Usage
from storage.answer_pieces import content_of
from tests.support.fake_language import END, answer, ids_of, said
from tests.support.messages import check_order, parse_events
from tests.support.tiny_gemma import write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer
from tests.support.tiny_qwen import write_tiny_qwen

LS = '<call>run:{"cmd":"ls é😀","args":["\\ud83d\\ude00",{}]}</call>'
NOW = "<call>now:{}</call>"
PROMPT = PromptUsage(7, cache_read=11, cache_creation_5m=5, cache_creation_1h=2)
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
    relay.publish(PROMPT)
    for piece in made.pieces:
        relay.publish(piece)
    if ended:
        assert made.stop_reason is not None
        usage = Usage(PROMPT, len(made.ids), made.thinking_tokens)
        relay.publish(Answered(made.stop_reason, made.stop_sequence, usage))
    return Reading("run_1", "msg_1", "m", relay)


async def streamed(of: Reading) -> bytes:
    return b"".join([part async for part in stream(of, "req_1", 60)])


async def streamed_slowly(made: Answer) -> bytes:
    """To a reader that gets every piece as soon as it is there."""
    relay, parts = Relay(), list[bytes]()
    of = Reading("run_1", "msg_1", "m", relay)

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


QWEN_JSON = """<think>
a
</think>

Text one.
<tool_call>
{"name": "run", "arguments": {"cmd": "ls é"}}
</tool_call>
<tool_call>
{"name": "now", "arguments": {}}
</tool_call>
Text two.<|im_end|>"""
QWEN_XML = """a
</think>

Text one.

<tool_call>
<function=run>
<parameter=cmd>
ls é
</parameter>
</function>
</tool_call>
<tool_call>
<function=now>
</function>
</tool_call>
Text two.<|im_end|>"""
GEMMA = (
    "<|channel>thought\na<channel|>Text one."
    '<|tool_call>call:run{cmd:<|"|>ls é<|"|>}<tool_call|><|tool_call>call:now{}<tool_call|>'
    "Text two.<turn|>"
)
GLIMMER = """ to=self<|message|>a<|eom|><|start|>assistant to=user<|message|>Text one.<|eom|>\
<|start|>assistant to=run<|message|><atem:function_calls>
<atem:invoke name="run">
<atem:parameter name="cmd">ls é</atem:parameter>
</atem:invoke>
</atem:function_calls><|eom|><|start|>assistant to=now<|message|><atem:function_calls>
<atem:invoke name="now">
</atem:invoke>
</atem:function_calls><|eom|><|start|>assistant to=user<|message|>Text two.<|eot|>"""
STRING = {"type": "object", "properties": {"cmd": {"type": "string"}}}
TOOLS = (Tool("run", "", STRING), Tool("now", "", {"type": "object"}))
FAMILIES: dict[str, tuple[Callable[[Path], Path], str, str]] = {
    "qwen3": (lambda folder: write_tiny_qwen(folder, "qwen3"), QWEN_JSON, "text"),
    "qwen3.5": (lambda folder: write_tiny_qwen(folder, "qwen3.5"), QWEN_XML, "thinking"),
    "gemma4": (write_tiny_gemma4, GEMMA, "text"),
    "glimmer": (write_tiny_glimmer, GLIMMER, "header"),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Family, list[int], str]:
    """A family, an answer in its tokens, and where its prompt left off."""
    write, written, opens = FAMILIES[request.param]
    folder = write(tmp_path_factory.mktemp("family") / "tiny")
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = tokenizer.encode(written, add_special_tokens=False).ids
    return family_of(resolve(str(folder), folder.parent)), ids, opens


@pytest.mark.anyio
@pytest.mark.parametrize("guided", [True, False])
async def test_every_family_says_the_same_and_the_client_understands(
    family: tuple[Family, list[int], str], guided: bool
) -> None:
    made, ids, opens = family
    form = AnswerForm(TOOLS, thinking=ThinkingMode("adaptive"), guided=guided)

    def said() -> Answer:
        return Answer(
            made.parser(form, opens),
            tuple(made.stop_ids),
            1000,
            plan=AnswerPlan(form, opens),
            message_id="msg_1",
            sign=lambda text, place: f"signed {place} {text}",
        )

    answer = said()
    for token in ids:
        answer.take([token])
    content = content_of(answer.pieces)
    (thought, *others) = content
    assert (thought["type"], thought["thinking"].strip()) == ("thinking", "a")
    assert [(each["type"], each.get("text") or each.get("input")) for each in others] == [
        ("text", "Text one."),
        ("tool_use", {"cmd": "ls é"}),
        ("tool_use", {}),
        ("text", "Text two."),
    ]
    assert (answer.stop_reason, answer.fault) == ("tool_use", None)
    for cut in range(0, len(ids), 7):
        again = said()
        again.take(ids[:cut])
        again.take(ids[cut:])
        assert content_of(again.pieces) == content
    message = await whole(reading(answer))
    assert accumulated(await streamed_slowly(answer)) == created(message)


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
