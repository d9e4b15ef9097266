"""The body of a batch, on its way to a file."""

import hashlib
from typing import IO

from anyio import to_thread
from quart import Request

from service.streamed_body import pieces


async def receive(request: Request, file: IO[bytes]) -> str:
    """Write the body to `file`, and return its SHA-256 in hexadecimal digits.

    Raises what the framework raises for a body that is too large, or stands still.
    """
    digest = hashlib.sha256()

    def write(data: bytes) -> None:
        file.write(data)
        digest.update(data)

    async for piece in pieces(request):
        await to_thread.run_sync(write, piece)
    file.seek(0)
    return digest.hexdigest()
