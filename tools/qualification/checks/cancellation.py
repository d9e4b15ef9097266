"""Whether a request whose client has gone still costs: seen by how soon the next is answered."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from tools.qualification.check import Check, Trial, require, skip

# The bar: the next answer may take so many times as long as on an idle server, and so much more.
_TIMES, _SECONDS = 3, 2
_LONG_TOKENS = 4096
_LONG_WORDS = 4000
_SEEN_PIECES = 10  # from which the speed is told
_START_SECONDS = 1.0  # servers that send nothing before the first token are left after so long
_TEXT_SECONDS = 0.02  # in which text follows message_start where the prompt has been read before it
_LONG = "Count from one to ten thousand in words, one number in each line. Leave none out."
_BRIEF = "Say hello."


async def active(trial: Trial) -> None:
    """An answer that is being written ends with its client."""
    async with trial.server.async_client() as client:
        idle = await _brief(trial, client)
        async with _long(trial, client) as left:
            pass
        await _answered_soon(_brief(trial, client), time.monotonic(), idle, left)


async def queued(trial: Trial) -> None:
    """A request that waits its turn leaves the queue with its client."""
    async with trial.server.async_client() as client:
        idle = await _brief(trial, client)
        async with _long(trial, client) as left:
            waiting = asyncio.create_task(_until_text(trial, client, _LONG, asyncio.Event()))
            await asyncio.wait([waiting], timeout=idle + 1)
            if waiting.done():
                await waiting
                skip("none was queued: the server answers several at once, or the first had ended")
            await _cancelled(waiting)
            following = asyncio.create_task(_brief(trial, client))
            await asyncio.sleep(0.2)  # so that it is in the queue, too
            closed = time.monotonic()
        await _answered_soon(following, closed, idle, left)


async def prefilling(trial: Trial) -> None:
    """A long prompt is not read to its end when its client has gone."""
    words, most_tokens = _LONG_WORDS, trial.server.context_tokens // 4
    while trial.count(_unheard_of(words)) > most_tokens:
        words //= 2
    async with trial.server.async_client() as client:
        idle = await _brief(trial, client)
        whole = await _brief(trial, client, _unheard_of(words))
        # Twice the bar, since some of it has been read when its client leaves.
        while whole < 2 * _bar(idle) and trial.count(_unheard_of(2 * words)) <= most_tokens:
            words *= 2
            whole = await _brief(trial, client, _unheard_of(words))
        started = asyncio.Event()
        began = time.monotonic()
        reading = asyncio.create_task(_until_text(trial, client, _unheard_of(words), started))
        starting = asyncio.create_task(started.wait())
        first = asyncio.FIRST_COMPLETED
        await asyncio.wait([reading, starting], timeout=_START_SECONDS, return_when=first)
        await asyncio.wait([reading], timeout=_TEXT_SECONDS)
        starting.cancel()
        if reading.done():
            await reading
            skip(f"a prompt of {words} words was read before its client could leave")
        await _cancelled(reading)
        closed = time.monotonic()
        left = whole - idle - (closed - began)
        await _answered_soon(_brief(trial, client), closed, idle, left)


async def _answered_soon(
    following: Awaitable[object], since: float, idle: float, left: float
) -> None:
    """The next request is answered within the bar. Where what was cancelled had less than that
    `left`, nothing is shown."""
    await following
    took, bar = time.monotonic() - since, _bar(idle)
    require(took <= bar, f"the next answer took {took:.1f} s; alone it takes {idle:.1f} s")
    if left < bar:
        skip(f"what was cancelled had {left:.1f} s to go, less than the bar of {bar:.1f} s")


def _bar(idle: float) -> float:
    return _TIMES * idle + _SECONDS


async def _brief(trial: Trial, client: Any, text: str = _BRIEF) -> float:
    """How many seconds a brief answer takes."""
    began = time.monotonic()
    request = trial.server.request(text, max_tokens=min(16, trial.server.max_tokens))
    with trial.noted("/v1/messages", request) as came:
        message = await client.messages.create(**request)
        came |= {"status": 200, "stop_reason": message.stop_reason}
    return time.monotonic() - began


@asynccontextmanager
async def _long(trial: Trial, client: Any) -> AsyncIterator[float]:
    """A long answer is being written in this block, and its client is gone after it. Gives the
    seconds that the answer still has to go, if the model uses its budget."""
    request = _long_request(trial, _LONG)
    with trial.noted("/v1/messages", request) as came:
        stream = await client.messages.create(**request)
        try:
            times: list[float] = []
            async for event in stream:
                if event.type == "content_block_delta":
                    times.append(time.monotonic())
                if len(times) == _SEEN_PIECES:
                    break
            else:
                skip(f"the model has ended its long answer after {len(times)} pieces")
            # Half of it, since a piece may be more than one token.
            left = request["max_tokens"] / 2 * (times[-1] - times[0]) / (len(times) - 1)
            came["events"] = f"{len(times)} pieces, then the client has hung up"
            came["seconds_left"] = round(left, 1)
            yield left
        finally:
            await stream.close()


async def _until_text(trial: Trial, client: Any, text: str, started: asyncio.Event) -> None:
    request = _long_request(trial, text)
    with trial.noted("/v1/messages", request) as came:
        came["events"] = "none, then the client has hung up"
        async with await client.messages.create(**request) as stream:
            async for event in stream:
                if event.type == "message_start":
                    started.set()
                    came["events"] = "message_start, then the client has hung up"
                if event.type == "content_block_start":
                    came["events"] = "content_block_start"
                    return


def _long_request(trial: Trial, text: str) -> dict[str, Any]:
    server = trial.server
    tokens = min(_LONG_TOKENS, server.output_tokens, server.context_tokens // 2)
    return server.request(text, max_tokens=tokens, stream=True)


def _unheard_of(words: int) -> str:
    """A prompt so long of which nothing has a cache."""
    return f"{time.time_ns()} " + "one two three four " * (words // 4)


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel a request and wait until its connection is closed."""
    task.cancel()
    await asyncio.wait([task])


def _run(trial: Trial, check: Callable[[Trial], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(check(trial))


CHECKS = [
    Check("cancellation", name, partial(_run, check=check))
    for name, check in (("active", active), ("queued", queued), ("mid-prefill", prefilling))
]
