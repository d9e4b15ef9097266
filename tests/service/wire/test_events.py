import json

from anthropic.types import Message as SdkMessage
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from service.errors import ApiError
from service.wire import events
from service.wire.block_events import BlockEvents
from service.wire.responses import Message, PromptUsage, Usage
from storage.answer_pieces import (
    CallArguments,
    CallEnd,
    CallStart,
    Piece,
    Signature,
    TextPiece,
    ThinkingPiece,
    content_of,
)

USAGE = Usage(
    PromptUsage(3, cache_read=11, cache_creation_5m=5, cache_creation_1h=2), output_tokens=5
)


ANSWER: list[Piece] = [
    ThinkingPiece("h"),
    ThinkingPiece("m"),
    Signature("s"),
    TextPiece("a"),
    CallStart("toolu_1", "run"),
    CallArguments('{"a":'),
    CallArguments("1}"),
    CallEnd(),
    CallStart("toolu_2", "now"),
    CallEnd(),
    TextPiece("b"),
]


def test_every_event_is_one_the_official_client_knows() -> None:
    blocks = BlockEvents()
    stream = [
        events.message_start("msg_1", "m", USAGE),
        *blocks.of(ANSWER),
        *blocks.end(),
        events.message_delta("stop_sequence", "END", USAGE),
        events.message_stop(),
    ]
    for event in stream:
        parsed = TypeAdapter(RawMessageStreamEvent).validate_python(event, strict=True)
        assert parsed.type == event["type"]
        assert not parsed.model_extra


def test_a_whole_message_is_one_the_official_client_knows() -> None:
    message = Message("msg_1", "m", content_of(ANSWER), "tool_use", None, USAGE).as_json()
    parsed = SdkMessage.model_validate(message, strict=True)
    assert not parsed.model_extra
    assert parsed.usage.cache_read_input_tokens == 11
    assert parsed.usage.cache_creation is not None
    assert parsed.usage.cache_creation.ephemeral_5m_input_tokens == 5
    assert parsed.usage.cache_creation.ephemeral_1h_input_tokens == 2


def test_each_block_ends_before_the_next_begins_and_pieces_that_came_together_are_one() -> None:
    shown = [
        (each["type"].removeprefix("content_block_"), each) for each in BlockEvents().of(ANSWER)
    ]
    assert [(name, each["index"]) for name, each in shown] == [
        *((name, 0) for name in ("start", "delta", "delta", "stop")),
        *((name, 1) for name in ("start", "delta", "stop")),
        *((name, 2) for name in ("start", "delta", "stop")),
        *((name, 3) for name in ("start", "stop")),
        *((name, 4) for name in ("start", "delta")),
    ]
    assert [each["content_block"] for name, each in shown if name == "start"] == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "toolu_1", "name": "run", "input": {}},
        {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}},
        {"type": "text", "text": ""},
    ]
    assert [each["delta"] for name, each in shown if name == "delta"] == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "s"},
        {"type": "text_delta", "text": "a"},
        {"type": "input_json_delta", "partial_json": '{"a":1}'},
        {"type": "text_delta", "text": "b"},
    ]


def test_an_event_is_framed_as_a_name_line_and_a_data_line() -> None:
    assert events.encode(events.ping()) == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_text_with_line_breaks_stays_on_one_data_line() -> None:
    frame = events.encode(events.content_block_delta(0, "text_delta", text="a\r\nb\u2028c 😀"))
    name, data, *rest = frame.split(b"\n")
    assert (name, rest) == (b"event: content_block_delta", [b"", b""])
    assert json.loads(data.removeprefix(b"data: "))["delta"]["text"] == "a\r\nb\u2028c 😀"


def test_an_error_event_is_the_error_envelope() -> None:
    event = events.error(ApiError.overloaded("busy", retry_after=2), "req_1")
    assert event == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "busy"},
        "request_id": "req_1",
    }
    assert events.encode(event).startswith(b"event: error\n")


def test_a_machine_code_is_found_in_the_details() -> None:
    fault = ApiError.invalid("no", "thread_unsupported_request")
    assert fault.envelope(None)["error"]["details"] == {"error_code": "thread_unsupported_request"}


def test_faults_tell_clients_whether_to_come_back() -> None:
    assert ApiError.overloaded("busy", retry_after=2).headers == {"retry-after": "2"}
    assert ApiError.internal("broken").headers == {"x-should-retry": "false"}


def test_small_pieces_of_arguments_wait_for_each_other_but_not_beyond_their_call() -> None:
    blocks, json_text = BlockEvents(), '{"path":"a/rather/long/path.py"}'
    shown = [event for each in json_text for event in blocks.of([CallArguments(each)])]
    shown += blocks.end()
    pieces = [each["delta"]["partial_json"] for each in shown if "delta" in each]
    assert ["".join(pieces), *map(len, pieces)] == [json_text, 16, 16]
    assert [*blocks.of([CallArguments('{"a":1}')])] == []
    last = next(blocks.of([CallEnd()]))
    assert last["delta"]["partial_json"] == '{"a":1}'
