import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

T = TypeVar("T")


async def to_the_end(step: Callable[[], Awaitable[T]]) -> T:
    """Run `step` to its end, however often the caller is cancelled meanwhile.

    A task of its own, because a web server cancels tasks natively, which a shielded scope of
    anyio does not hold back; the scope keeps anyio from cancelling over and over.
    """
    task = asyncio.ensure_future(step())
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is None:
        return task.result()
    if task.exception() is None:
        raise cancelled
    raise cancelled from task.exception()
