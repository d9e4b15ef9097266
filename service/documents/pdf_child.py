"""The process that reads one PDF: bytes in, JSON out, and then it is gone.

    python -m service.documents.pdf_child < PDF > JSON

What is wrong with a PDF may be made to be: nobody trusts this process, and it may use only so much
of the machine. It writes either `{"pages": 2, "text": …}` or `{"refusal": …}`, a sentence's rest
after "the PDF". A blank before that says that it has started: if nothing follows, it met its limits
or died of the PDF.
"""

# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

import re
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import cast

import orjson
import pypdfium2 as pdfium
import pypdfium2.raw as pdfium_c

from service.documents.limits import (
    MOST_CHARACTERS,
    MOST_CPU_SECONDS,
    MOST_MEMORY_BYTES,
    MOST_PAGES,
)

# A hyphen at the end of a line, as pdfium tells it; the two lines are one then.
_HYPHEN = "\ufffe"
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\uffff]")
_UNOPENED = {
    pdfium_c.FPDF_ERR_PASSWORD: "is password protected; send it without a password",
    pdfium_c.FPDF_ERR_SECURITY: (
        "is encrypted, and not in the standard way with a password; send it without encryption"
    ),
    # All was well, and there was nothing to show.
    pdfium_c.FPDF_ERR_SUCCESS: "has no pages",
}
# Annotations that say nothing themselves; most PDFs have no others.
_WORDLESS = {pdfium_c.FPDF_ANNOT_LINK, pdfium_c.FPDF_ANNOT_POPUP}


class _Refused(Exception):
    pass


def main() -> None:
    for limit, most in (
        (resource.RLIMIT_CPU, MOST_CPU_SECONDS),
        (resource.RLIMIT_AS, MOST_MEMORY_BYTES),
        (resource.RLIMIT_FSIZE, 6 * MOST_CHARACTERS),  # what JSON makes of them at most
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(limit, (most, most))
    sys.stdout.buffer.write(b" ")
    sys.stdout.buffer.flush()
    try:
        pages = list(_pages(sys.stdin.buffer.read()))
        said = {"pages": len(pages), "text": _text(pages)}
    except _Refused as refused:
        said = {"refusal": str(refused)}
    sys.stdout.buffer.write(orjson.dumps(said))


def _text(pages: list[str]) -> str:
    if not any(pages):
        raise _Refused(
            "has no text, its pages are images or empty; only text is read, so send what text"
            " recognition makes of it"
        )
    return "\n\n".join(f"[Page {number}]\n{page}".rstrip() for number, page in enumerate(pages, 1))


def _pages(data: bytes) -> Iterator[str]:
    """The text of each page, in order."""
    document = _opened(data)
    if len(document) > MOST_PAGES:
        raise _Refused(f"has {len(document)} pages, at most {MOST_PAGES} are read; send part of it")
    left = MOST_CHARACTERS
    for index in range(len(document)):
        try:
            page = _shown(document, index)
            texts = page.get_textpage()
        except pdfium.PdfiumError as error:
            raise _Refused(f"is damaged: its page {index + 1} cannot be read; mend it") from error
        left -= texts.count_chars()
        if left < 0:
            raise _Refused(f"has more than {MOST_CHARACTERS} characters of text; send part of it")
        yield _clean(texts.get_text_range(errors="replace"))
        texts.close()
        page.close()


def _opened(data: bytes) -> pdfium.PdfDocument:
    """Where there is a password only for changing it, anyone may read it."""
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as error:
        code = cast(int, error.err_code)
        raise _Refused(_UNOPENED.get(code, "is damaged and cannot be opened; mend it")) from error
    # Only of use for forms: it makes what fields show, where the PDF has just their values.
    with suppress(pdfium.PdfiumError):
        document.init_forms()
    return document


def _shown(document: pdfium.PdfDocument, index: int) -> pdfium.PdfPage:
    """The page, with what is written in its fields and notes, which is no text of a page until it
    is made part of it."""
    page = document[index]
    if not _has_notes(page) or not pdfium_c.FPDFPage_Flatten(page, pdfium_c.FLAT_NORMALDISPLAY):
        return page
    page.close()
    return document[index]


def _has_notes(page: pdfium.PdfPage) -> bool:
    for index in range(pdfium_c.FPDFPage_GetAnnotCount(page)):
        note = pdfium_c.FPDFPage_GetAnnot(page, index)
        kind = pdfium_c.FPDFAnnot_GetSubtype(note)
        pdfium_c.FPDFPage_CloseAnnot(note)
        if kind not in _WORDLESS:
            return True
    return False


def _clean(text: str) -> str:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").replace(_HYPHEN, "-")
    return _CONTROLS.sub("", lines).strip()


if __name__ == "__main__":
    main()
