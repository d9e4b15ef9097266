import json

from anthropic.types import Message as SdkMessage
from anthropic.types import RawMessageStreamEvent
from pydantic import TypeAdapter

from service.errors import ApiError
from service.wire import events
from service.wire.responses import Message, Text, Usage

USAGE = Usage(
    input_tokens=3, output_tokens=5, cache_creation_input_tokens=7, cache_read_input_tokens=11
)


def test_every_event_is_one_the_official_client_knows() -> None:
    stream = [
        events.message_start("msg_1", "m", USAGE),
        events.content_block_start(0),
        events.content_block_delta(0, "hi"),
        events.content_block_stop(0),
        events.message_delta("stop_sequence", "END", USAGE),
        events.message_stop(),
    ]
    for event in stream:
        parsed = TypeAdapter(RawMessageStreamEvent).validate_python(event, strict=True)
        assert parsed.type == event["type"]
        assert not parsed.model_extra


def test_a_whole_message_is_one_the_official_client_knows() -> None:
    message = Message("msg_1", "m", (Text("hi"),), "end_turn", None, USAGE).as_json()
    parsed = SdkMessage.model_validate(message, strict=True)
    assert not parsed.model_extra
    assert parsed.usage.cache_read_input_tokens == 11
    assert parsed.usage.cache_creation is not None
    assert parsed.usage.cache_creation.ephemeral_5m_input_tokens == 7


def test_an_event_is_framed_as_a_name_line_and_a_data_line() -> None:
    assert events.encode(events.ping()) == b'event: ping\ndata: {"type":"ping"}\n\n'


def test_text_with_line_breaks_stays_on_one_data_line() -> None:
    frame = events.encode(events.content_block_delta(0, "a\r\nb\u2028c 😀"))
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
