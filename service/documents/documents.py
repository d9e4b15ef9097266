"""The documents of a request, as text."""

from collections.abc import Mapping
from dataclasses import dataclass

import anyio
from anyio import CapacityLimiter, to_thread

from service.documents.limits import MOST_BYTES, MOST_MIB, MOST_PAGES, MOST_SECONDS
from service.documents.pdf_texts import PdfRefused, PdfTexts
from service.documents.sources import Media, Source, Sources
from service.errors import ApiError

_PDF_MARK = b"%PDF-"
_PDF_MARK_WITHIN_BYTES = 1024  # readers are that forgiving
_BLANKS = b"\xef\xbb\xbf \t\r\n\f\v"  # the byte order mark, and white space
# Each may take a core and `MOST_MEMORY_BYTES`.
_AT_ONCE = 2


class Documents:
    """Two are read at a time, whoever waits for them."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._pdfs = PdfTexts()
        self._slots = CapacityLimiter(_AT_ONCE)

    async def digests(self, found: Mapping[str, Source], scope: str) -> Mapping[str, str]:
        """The SHA-256 of the uploaded files among the sources of a request, by id."""
        return await self._sources.digests(found.values(), scope)

    async def texts(self, found: Mapping[str, Source], scope: str) -> Mapping[str, str]:
        """What the sources of one request say, by their paths, for the API key `scope`. Raises
        ApiError 400 that names the source."""
        left = _Left()
        texts: dict[str, str] = {}
        for path, source in found.items():
            async with self._slots:
                texts[path] = await self._text(source, path, scope, left)
        return texts

    async def _text(self, source: Source, path: str, scope: str, left: "_Left") -> str:
        began = anyio.current_time()
        try:
            if left.seconds <= 0:  # what was read last may have taken more than was left
                raise TimeoutError
            with anyio.fail_after(left.seconds):
                media = await self._sources.media(source, path, scope)
                _check(media, path)
                if media.media_type == "text/plain":
                    return await to_thread.run_sync(_plain, media.data, path)
                pdf = await self._pdfs.text(media.data)
        except TimeoutError as error:
            raise ApiError.invalid(
                f"{path}: the documents of the request take more than {MOST_SECONDS:g} s to read;"
                " send fewer"
            ) from error
        except PdfRefused as error:
            raise ApiError.invalid(f"{path}: the PDF {error}") from error
        finally:
            left.seconds -= anyio.current_time() - began
        left.pages -= pdf.pages
        if left.pages < 0:
            raise ApiError.invalid(
                f"{path}: with this PDF the request has more than {MOST_PAGES} pages; send fewer"
            )
        return pdf.text


@dataclass(slots=True)
class _Left:
    """What one request may still have read; waiting for others does not count."""

    pages: int = MOST_PAGES
    seconds: float = MOST_SECONDS


def _check(media: Media, path: str) -> None:
    """Raises ApiError 400 unless it may be what it is said to be."""
    begin = media.data[:_PDF_MARK_WITHIN_BYTES]
    is_pdf = _PDF_MARK in begin
    fault = None
    if len(media.data) > MOST_BYTES:
        fault = f"it has more than {MOST_MIB} MiB; send part of it"
    elif media.media_type not in ("application/pdf", "text/plain"):
        fault = (
            f"documents of the type '{media.media_type[:100]}' are not read, only application/pdf"
            " and text/plain; send its text"
        )
    elif media.media_type == "application/pdf" and not is_pdf:
        fault = "it is said to be application/pdf, and is no PDF; say text/plain if it is text"
    elif media.media_type == "text/plain" and begin.lstrip(_BLANKS).startswith(_PDF_MARK):
        fault = "it is said to be text/plain, and is a PDF; say application/pdf"
    if fault is not None:
        raise ApiError.invalid(f"{path}: {fault}")


def _plain(data: bytes, path: str) -> str:
    if b"\0" in data:
        raise ApiError.invalid(
            f"{path}: it is said to be text/plain, and is binary: it has NUL bytes; send its text"
            " as UTF-8"
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ApiError.invalid(
            f"{path}: it is said to be text/plain, and is not UTF-8 (at byte {error.start}); send"
            " it as UTF-8"
        ) from error
