"""Documents in a user's turn."""

import base64
from functools import partial
from typing import Any

from tools.qualification.check import (
    Check,
    Trial,
    refusal,
    require,
    require_count,
    skip,
    text_of,
)
from tools.qualification.sdk import anthropic

_SECRET = "The code word of the safe is marmalade."
_QUESTION: dict[str, Any] = {
    "type": "text",
    "text": "What is the code word of the safe? Answer with that word alone.",
}


def document(trial: Trial, source: dict[str, Any]) -> None:
    """The prompt has what the document says, and its count is that of the usage."""
    asked = _with_document(source)
    try:
        counted = trial.count(asked)
    except anthropic.BadRequestError as error:
        why = refusal(error, 400)["message"]
        declared = trial.server.supports("pdf_input") and source["type"] == "base64"
        require(not declared, f"pdf_input is declared, and refused: {why}")
        skip(f"it is refused: {why}")
    without = trial.count({"role": "user", "content": [_QUESTION]})
    require(counted > without, "the prompt is no longer with the document than without")
    for streams in (False, True):
        message = trial.ask(asked, streams=streams)
        require_count(counted, message)
        trial.model("marmalade", text_of(message), "marmalade" in text_of(message).lower())


def damaged(trial: Trial) -> None:
    """It is refused, where one that is not damaged is accepted."""
    try:
        trial.count(_with_document(_SOURCES["PDF"]))
    except anthropic.BadRequestError as error:
        skip(f"a good one is refused, too: {refusal(error, 400)['message']}")
    trial.refused(400, _with_document(_base64("application/pdf", b"%PDF-1.7\nnothing more")))


def _with_document(source: dict[str, Any]) -> dict[str, Any]:
    """The turn that asks for what is in it."""
    block = {"type": "document", "source": source, "title": "note"}
    return {"role": "user", "content": [block, _QUESTION]}


def _base64(media_type: str, data: bytes) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return {"type": "base64", "media_type": media_type, "data": encoded}


def _pdf(text: str) -> bytes:
    """A PDF of one page that says so."""
    drawn = b"BT /F1 12 Tf 72 720 Td (%s) Tj ET" % text.encode("ascii")
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R"
        b" /Resources << /Font << /F1 3 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn),
    ]
    file, offsets = b"%PDF-1.7\n", list[int]()
    for number, each in enumerate(objects, 1):
        offsets.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % each for each in offsets)
    end = b"xref\n0 %d\n0000000000 65535 f \n%strailer << /Size %d /Root 1 0 R >>\n"
    size = len(objects) + 1
    return file + end % (size, table, size) + b"startxref\n%d\n%%%%EOF\n" % len(file)


_SOURCES: dict[str, dict[str, Any]] = {
    "text": {"type": "text", "media_type": "text/plain", "data": _SECRET},
    "content": {"type": "content", "content": [{"type": "text", "text": _SECRET}]},
    "PDF": _base64("application/pdf", _pdf(_SECRET)),
}

CHECKS = [
    *(
        Check("documents", name, partial(document, source=source))
        for name, source in _SOURCES.items()
    ),
    Check("documents", "a damaged PDF", damaged),
]
