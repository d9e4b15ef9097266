"""An answer on its way to the client: as server-sent events, or whole."""

from collections.abc import AsyncIterator, Sequence

import anyio

from service.scheduling.live_job import Reading
from service.scheduling.relay import Answered, Broken, Event
from service.wire import events
from service.wire.block_events import BlockEvents
from service.wire.responses import Message, PromptUsage, Usage
from storage.answer_pieces import Piece, content_of

SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # a proxy must not collect events
}


async def stream(reading: Reading, request_id: str, ping_seconds: float) -> AsyncIterator[bytes]:
    """The events of one answer, and a ping whenever none came for `ping_seconds`.

    `message_start` comes as soon as it is known how the prompt is told: at once, unless that is up
    to the prompt cache.
    """
    seen, blocks = 0, BlockEvents()
    while True:
        news = await _news(reading, seen, ping_seconds)
        if not news:
            yield events.encode(events.ping())
            continue
        seen += len(news)
        if isinstance(news[0], PromptUsage):
            usage = Usage(news[0], output_tokens=0)
            start = events.message_start(
                reading.message_id, reading.model, usage, reading.cache_miss
            )
            yield events.encode(start)
        for event in blocks.of(_pieces(news)):
            yield events.encode(event)
        match news[-1]:
            case Answered() as answered:
                for event in blocks.end():
                    yield events.encode(event)
                yield events.encode(
                    events.message_delta(
                        answered.stop_reason,
                        answered.stop_sequence,
                        answered.usage,
                        reading.edits,
                    )
                )
                yield events.encode(events.message_stop())
                return
            case Broken(error):
                yield events.encode(events.error(error, request_id))
                return
            case _:
                continue


async def whole(reading: Reading) -> Message:
    """The complete answer. Raises ApiError if there is none."""
    seen = 0
    pieces: list[Piece] = []
    while True:
        news = await reading.relay.after(seen)
        seen += len(news)
        pieces += _pieces(news)
        match news[-1]:
            case Answered() as answered:
                return Message(
                    id=reading.message_id,
                    model=reading.model,
                    content=content_of(pieces),
                    stop_reason=answered.stop_reason,
                    stop_sequence=answered.stop_sequence,
                    usage=answered.usage,
                    cache_miss=reading.cache_miss,
                    edits=reading.edits,
                )
            case Broken(error):
                raise error
            case _:
                continue


async def _news(reading: Reading, seen: int, seconds: float) -> Sequence[Event]:
    with anyio.move_on_after(seconds):
        return await reading.relay.after(seen)
    return ()


def _pieces(news: Sequence[Event]) -> list[Piece]:
    return [event for event in news if not isinstance(event, PromptUsage | Answered | Broken)]
