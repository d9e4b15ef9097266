"""One job's events, and readers of every speed."""

from pathlib import Path

import anyio
import pytest

from service.errors import ApiError
from service.scheduling.relay import Answered, Broken, Event, Relay
from service.wire.responses import PromptUsage, Usage
from storage.answer_pieces import TextPiece
from tests.support.lives import Connection, assert_stops_well, until
from tests.support.messages import check_order, scripted, text_of
from tests.support.running import scripted_service
from tests.support.tiny_checkpoint import write_tiny_checkpoint

END = Answered("end_turn", None, Usage(PromptUsage(1), 3))


async def read_all(relay: Relay) -> list[Event]:
    events: list[Event] = []
    while not events or isinstance(events[-1], TextPiece):
        events += await relay.after(len(events))
    return events


@pytest.mark.anyio
async def test_a_reader_that_comes_late_gets_everything() -> None:
    relay = Relay()
    for each in (TextPiece("a"), TextPiece("b"), END):
        relay.publish(each)
    assert await read_all(relay) == [TextPiece("a"), TextPiece("b"), END]


@pytest.mark.anyio
async def test_readers_wait_for_what_comes_and_each_gets_all_of_it() -> None:
    relay, found = Relay(), []

    async def read() -> None:
        found.append(await read_all(relay))

    async with anyio.create_task_group() as readers:
        for _ in range(3):
            readers.start_soon(read)
        for each in (TextPiece("a"), END):
            await anyio.lowlevel.checkpoint()
            relay.publish(each)
    assert found == [[TextPiece("a"), END]] * 3


@pytest.mark.anyio
async def test_a_reader_that_gives_up_waiting_misses_nothing() -> None:
    relay = Relay()
    with anyio.move_on_after(0) as waiting:
        await relay.after(0)
    assert waiting.cancelled_caught
    relay.publish(Broken(ApiError.internal("no more")))
    [event] = await read_all(relay)
    assert isinstance(event, Broken)


def test_a_reader_that_never_reads_slows_nobody(tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "tiny", context_tokens=32_768)
    text = "a" * 12_000
    long = {**scripted(say=text), "max_tokens": 12_001, "stream": True}
    with scripted_service(model, tmp_path / "data") as service:
        with Connection(service.url, long, receive_buffer=1024) as deaf:
            until(lambda: service.runs("running", "succeeded"))
            with Connection(service.url, long) as reader:
                events = reader.read_to_end()
                check_order(events)
                assert text_of(events) == text
                # Its answer was complete before the other's began, though it has read none of it.
                states = [run["state"] for run in service.runs()]
                assert states == ["succeeded", "succeeded"]
            events = deaf.read_to_end()
            check_order(events)
            assert text_of(events) == text
        assert_stops_well(service)
