"""The texts of PDFs, read in processes of their own and kept for the next turn."""

import sys
import tempfile
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from subprocess import DEVNULL
from typing import BinaryIO

import anyio
import orjson
from anyio import to_thread

from service.documents.limits import MOST_CHARACTERS, MOST_CPU_SECONDS, MOST_MEMORY_BYTES
from service.errors import ApiError

_CHILD = (sys.executable, "-m", "service.documents.pdf_child")
# A conversation sends its documents again in each turn.
_KEPT_CHARACTERS = 2 * MOST_CHARACTERS


class PdfRefused(Exception):
    """Why a PDF is not read: a sentence's rest after "the PDF"."""


@dataclass(frozen=True, slots=True)
class PdfText:
    """`text` has a line `[Page 1]` and so on before what each of the `pages` says."""

    pages: int
    text: str


class PdfTexts:
    """The texts that were asked for last are kept, by the SHA-256 of their PDFs."""

    def __init__(self) -> None:
        self._kept: OrderedDict[bytes, PdfText] = OrderedDict()

    async def text(self, pdf: bytes) -> PdfText:
        """Cancelled, it leaves no process behind. Raises PdfRefused, and
        ApiError 500 where no PDF can be read."""
        digest = (await to_thread.run_sync(sha256, pdf)).digest()
        found = self._kept.pop(digest, None) or await _read(pdf)
        self._kept[digest] = found
        while sum(len(each.text) for each in self._kept.values()) > _KEPT_CHARACTERS:
            self._kept.popitem(last=False)
        return found


async def _read(pdf: bytes) -> PdfText:
    # Files, not pipes: however much goes in or comes out, the event loop has nothing to do.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        await to_thread.run_sync(_rewritten, given, pdf)
        async with await anyio.open_process(
            _CHILD, stdin=given, stdout=said, stderr=DEVNULL
        ) as child:
            try:
                await child.wait()
            finally:
                # By hand: anyio would wait for it, where a web server has cancelled the task.
                with suppress(ProcessLookupError):
                    child.kill()
        answer = await to_thread.run_sync(_answer, said)
    match answer:
        case {"pages": int(pages), "text": str(text)}:
            return PdfText(pages, text)
        case {"refusal": str(reason)}:
            raise PdfRefused(reason)
        case _:
            raise PdfRefused(
                f"is too complex: reading it takes more than {MOST_CPU_SECONDS} s or"
                f" {MOST_MEMORY_BYTES >> 20} MiB of memory, or ends abnormally; send its text"
            )


def _rewritten(file: BinaryIO, data: bytes) -> None:
    file.write(data)
    file.seek(0)


def _answer(file: BinaryIO) -> object:
    file.seek(0)
    said = file.read()
    if not said:
        raise ApiError.internal(
            "PDFs cannot be read: their process does not start; install mererun again"
        )
    try:
        return orjson.loads(said)
    except ValueError:
        return None
