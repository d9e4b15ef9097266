"""Bodies that are larger than any other, so that they are never in memory as a whole."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import anyio
from hypercorn.typing import (
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
)
from quart import Request
from quart.asgi import ASGIHTTPConnection
from quart.wrappers.request import Body
from werkzeug.exceptions import RequestEntityTooLarge, RequestTimeout

PIECE_BYTES: Final = 1 << 20


def requests_limited(limits: Mapping[tuple[str, str], int]) -> type[Request]:
    """The requests of an application in which bodies of (method, path) have a limit of their own,
    in bytes; these are to be read with `pieces`."""

    class Limited(Request):
        def __init__(self, method: str, scheme: str, path: str, *rest: Any, **more: Any) -> None:
            limit = limits.get((method, path))
            if limit is not None:
                more["max_content_length"] = limit
                self.body_class = _PacedBody
            super().__init__(method, scheme, path, *rest, **more)
            self.max_content_length = limit

    return Limited


class PacedConnection(ASGIHTTPConnection):
    """Takes no more of a large body from the network while what has come is not read: a disk may
    be slower."""

    async def handle_messages(self, request: Request, receive: ASGIReceiveCallable) -> None:
        async def paced() -> ASGIReceiveEvent:
            if isinstance(request.body, _PacedBody):
                await request.body.has_room()
            return await receive()

        await super().handle_messages(request, paced)

    async def handle_request(self, request: Request, send: ASGISendCallable) -> None:
        async def answered(event: ASGISendEvent) -> None:
            if isinstance(request.body, _PacedBody):
                request.body.forget()
            await send(event)

        await super().handle_request(request, answered)


class _PacedBody(Body):
    def __init__(self, *limits: int | None) -> None:
        super().__init__(*limits)
        self._unread = 0
        self._is_wanted = True
        self._room = asyncio.Event()
        self._room.set()

    def forget(self) -> None:
        """There is an answer, so nobody reads any more.

        What still comes has to be taken all the same: Hypercorn puts the end of the request behind
        it, in a queue with little room, and closes no connection before. A client that sends on
        would wait for ever.
        """
        self._is_wanted = False
        self._room.set()

    async def has_room(self) -> None:
        await self._room.wait()

    def append(self, data: bytes) -> None:
        if not self._is_wanted:
            return
        super().append(data)
        self._unread += len(data)
        if self._unread >= PIECE_BYTES:
            self._room.clear()

    async def __anext__(self) -> bytes:
        data = await super().__anext__()
        self._unread = 0
        self._room.set()
        return data


async def pieces(request: Request) -> AsyncIterator[bytes]:
    """The body, a mebibyte or a little more at a time.

    Raises what the framework raises for a body that is too large, or stands still.
    """
    limit, size, waiting = request.max_content_length, 0, bytearray()
    while part := await _part(request):
        size += len(part)
        if limit is not None and size > limit:  # it did not say so in its head
            raise RequestEntityTooLarge
        waiting += part
        if len(waiting) >= PIECE_BYTES:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


async def _part(request: Request) -> bytes:
    try:
        with anyio.fail_after(request.body_timeout):
            return await anext(request.body, b"")
    except TimeoutError:
        raise RequestTimeout from None
