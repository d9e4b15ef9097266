"""The body of a batch: larger than any other, so that it is never in memory as a whole."""

import hashlib
from collections.abc import Mapping
from typing import IO, Any

import anyio
from anyio import to_thread
from quart import Request
from werkzeug.exceptions import RequestEntityTooLarge, RequestTimeout

_WRITE_BYTES = 1 << 20


def requests_limited(limits: Mapping[tuple[str, str], int]) -> type[Request]:
    """The requests of an application in which bodies of (method, path) have a limit of their own,
    in bytes."""

    class Limited(Request):
        def __init__(self, method: str, scheme: str, path: str, *rest: Any, **more: Any) -> None:
            limit = limits.get((method, path))
            if limit is not None:
                more["max_content_length"] = limit
            super().__init__(method, scheme, path, *rest, **more)
            self.max_content_length = limit

    return Limited


async def receive(request: Request, file: IO[bytes]) -> str:
    """Write the body to `file`, and return its SHA-256 in hexadecimal digits.

    Raises what the framework raises for a body that is too large, or stands still.
    """
    digest, limit = hashlib.sha256(), request.max_content_length
    waiting, size = bytearray(), 0

    def write(data: bytes) -> None:
        file.write(data)
        digest.update(data)

    while part := await _part(request):
        size += len(part)
        if limit is not None and size > limit:  # it did not say so in its head
            raise RequestEntityTooLarge
        waiting += part
        if len(waiting) >= _WRITE_BYTES:
            await to_thread.run_sync(write, bytes(waiting))
            waiting.clear()
    await to_thread.run_sync(write, bytes(waiting))
    file.seek(0)
    return digest.hexdigest()


async def _part(request: Request) -> bytes:
    try:
        with anyio.fail_after(request.body_timeout):
            return await anext(request.body, b"")
    except TimeoutError:
        raise RequestTimeout from None
