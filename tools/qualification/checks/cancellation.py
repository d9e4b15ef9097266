"""Whether a request whose client has gone still costs: seen by how soon the next is answered."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tools.qualification.check import Check, Trial, require, skip

# The bar: so much longer than a brief answer takes on an idle server may the next one take.
_TIMES, _SECONDS = 3, 2
_LONG_TOKENS = 4096
_LONG_WORDS = 4000
_SEEN_EVENTS = 10  # from which the speed is told
_LONG = "Count from one to ten thousand in words, one number in each line. Leave none out."
_BRIEF = "Say hello."


async def active(trial: Trial) -> None:
    """An answer that is being written ends with its client."""
    async with trial.server.async_client() as client:
        idle = await _brief(trial, client)
        async with _long(trial, client) as left:
            pass
        await _answered_soon(trial, client, idle, left, time.monotonic())


async def queued(trial: Trial) -> None:
    """A request that waits its turn leaves the queue with its client."""
    async with trial.server.async_client() as client:
        idle = await _brief(trial, client)
        async with _long(trial, client) as left:
            began = asyncio.Event()
            waiting = asyncio.create_task(_stream_until_text(trial, client, _LONG, began))
            await asyncio.wait([waiting], timeout=idle + 1)
            if waiting.done():
                await waiting
                skip("the server answers several requests at once: none is queued")
            await _cancelled(waiting)
            following = asyncio.create_task(_brief(trial, client))
            await asyncio.sleep(0.2)  # so that it is in the queue, too
            closed = time.monotonic()
        await _answered_soon(trial, client, idle, left, closed, following)


async def prefilling(trial: Trial) -> None:
    """A long prompt is not read to its end when its client has gone."""
    words = _LONG_WORDS
    while trial.count(prompt := _unheard_of(words)) > trial.server.context_tokens // 4:
        words //= 2
    async with trial.server.async_client() as client:
        idle = await _brief(trial, client)
        began = asyncio.Event()
        reading = asyncio.create_task(_stream_until_text(trial, client, prompt, began))
        waiting = asyncio.create_task(began.wait())
        # Where headers come with the first token only, it is being read before they are there.
        await asyncio.wait([reading, waiting], timeout=1, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if reading.done():
            await reading
            skip(f"a prompt of {words} words was read before its client could leave")
        await _cancelled(reading)
        await _answered_soon(trial, client, idle, None, time.monotonic())


async def _answered_soon(
    trial: Trial,
    client: Any,
    idle: float,
    left: list[float] | None,
    since: float,
    following: Awaitable[float] | None = None,
) -> None:
    """The next request is answered within the bar, which is less than what was cancelled would
    have taken (`left`, where its speed is known)."""
    bar = _TIMES * idle + _SECONDS
    if left and left[0] < bar:
        if following is not None:
            await following
        skip(f"what was cancelled had {left[0]:.1f} s to go, less than the bar of {bar:.1f} s")
    await (following or _brief(trial, client))
    took = time.monotonic() - since
    require(took <= bar, f"the next answer took {took:.1f} s; alone it takes {idle:.1f} s")


async def _brief(trial: Trial, client: Any) -> float:
    """How many seconds a brief answer takes."""
    began = time.monotonic()
    request = trial.server.request(_BRIEF, max_tokens=min(16, trial.server.max_tokens))
    with trial.noted("/v1/messages", request) as came:
        message = await client.messages.create(**request)
        came |= {"status": 200, "stop_reason": message.stop_reason}
    return time.monotonic() - began


@asynccontextmanager
async def _long(trial: Trial, client: Any) -> AsyncIterator[list[float]]:
    """A long answer is being written in this block; its client is gone after it. How many seconds
    it then still had to go, if the model had used its budget, is in the list."""
    tokens = min(_LONG_TOKENS, trial.server.context_tokens // 2)
    request = trial.server.request(_LONG, max_tokens=tokens, stream=True)
    left: list[float] = []
    with trial.noted("/v1/messages", request) as came:
        stream = await client.messages.create(**request)
        try:
            times: list[float] = []
            async for event in stream:
                if event.type == "content_block_delta":
                    times.append(time.monotonic())
                if len(times) == _SEEN_EVENTS:
                    break
            else:
                skip(f"the model has ended its long answer after {len(times)} pieces")
            # A piece may be several tokens: then less is left than this says, hence the margin.
            left.append(tokens / 2 * (times[-1] - times[0]) / (len(times) - 1))
            came |= {"events": f"{len(times)} deltas, then the client has hung up"}
            came["seconds_left"] = round(left[0], 1)
            yield left
        finally:
            await stream.close()


async def _stream_until_text(trial: Trial, client: Any, text: str, began: asyncio.Event) -> None:
    tokens = min(_LONG_TOKENS, trial.server.context_tokens // 2)
    request = trial.server.request(text, max_tokens=tokens, stream=True)
    with trial.noted("/v1/messages", request) as came:
        came["events"] = "none, then the client has hung up"
        async with await client.messages.create(**request) as stream:
            async for event in stream:
                if event.type == "message_start":
                    began.set()
                    came["events"] = "message_start, then the client has hung up"
                if event.type == "content_block_start":
                    came["events"] = "content_block_start"
                    return


def _unheard_of(words: int) -> str:
    """A prompt so long of which nothing has a cache."""
    return f"{time.time_ns()} " + "one two three four " * (words // 4)


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a request and wait until its connection is closed."""
    task.cancel()
    await asyncio.wait([task])


def _run(trial: Trial, check: Callable[[Trial], Awaitable[None]]) -> None:
    async def run() -> None:
        await check(trial)

    asyncio.run(run())


CHECKS = [
    Check("cancellation", name, partial(_run, check=check))
    for name, check in (("active", active), ("queued", queued), ("mid-prefill", prefilling))
]
