"""An answer on its way to the client: as server-sent events, or whole."""

from collections.abc import AsyncIterator, Sequence

import anyio

from service.scheduling.live_job import Reading
from service.scheduling.recorded import message_of
from service.scheduling.relay import Answered, Broken, Event, TextDelta
from service.wire import events
from service.wire.responses import Message, Usage

SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # a proxy must not collect events
}


async def stream(reading: Reading, request_id: str, ping_seconds: float) -> AsyncIterator[bytes]:
    """The events of one answer. `message_start` comes at once, with the exact count of the
    prompt; then a ping whenever nothing else came for `ping_seconds`."""
    usage = Usage(input_tokens=reading.input_tokens, output_tokens=0)
    yield events.encode(events.message_start(reading.message_id, reading.model, usage))
    seen, opened = 0, False
    while True:
        news = await _news(reading, seen, ping_seconds)
        if not news:
            yield events.encode(events.ping())
            continue
        seen += len(news)
        text = _text(news)
        if text and not opened:
            opened = True
            yield events.encode(events.content_block_start(0))
        if text:
            yield events.encode(events.content_block_delta(0, text))
        match news[-1]:
            case Answered(stop_reason, stop_sequence, output_tokens):
                if opened:
                    yield events.encode(events.content_block_stop(0))
                usage = Usage(input_tokens=reading.input_tokens, output_tokens=output_tokens)
                yield events.encode(events.message_delta(stop_reason, stop_sequence, usage))
                yield events.encode(events.message_stop())
                return
            case Broken(error):
                yield events.encode(events.error(error, request_id))
                return
            case TextDelta():
                continue


async def whole(reading: Reading) -> Message:
    """The complete answer. Raises ApiError if there is none."""
    seen, texts = 0, list[str]()
    while True:
        news = await reading.relay.after(seen)
        seen += len(news)
        texts.append(_text(news))
        match news[-1]:
            case Answered(stop_reason, stop_sequence, output_tokens):
                return message_of(
                    reading.message_id,
                    reading.model,
                    "".join(texts),
                    input_tokens=reading.input_tokens,
                    output_tokens=output_tokens,
                    stop_reason=stop_reason,
                    stop_sequence=stop_sequence,
                )
            case Broken(error):
                raise error
            case TextDelta():
                continue


async def _news(reading: Reading, seen: int, seconds: float) -> Sequence[Event]:
    with anyio.move_on_after(seconds):
        return await reading.relay.after(seen)
    return ()


def _text(news: Sequence[Event]) -> str:
    """A reader that fell behind gets what it missed in one piece."""
    return "".join(event.text for event in news if isinstance(event, TextDelta))
