"""PDFs, well made and hostile, and the blocks that send them."""

import base64
import zlib
from collections.abc import Callable, Sequence
from typing import Any

PACKED = b"/Filter /FlateDecode"
TWICE_PACKED = b"/Filter [/FlateDecode /FlateDecode]"
PAGE = b"BT /F1 12 Tf 72 720 Td (some text) Tj ET"
OPERATORS = b"BT /F1 1 Tf " + b"(a) Tj " * 1_000_000 + b"ET"


def drawn(*lines: str) -> bytes:
    """The content of a page that says so."""
    moves = b" 0 -14 Td ".join(b"(%s) Tj" % line.encode("latin-1") for line in lines)
    return b"BT /F1 12 Tf 72 720 Td " + moves + b" ET"


def pdf(
    *contents: bytes,
    kids: bytes | None = None,
    count: int | None = None,
    box: bytes = b"0 0 612 792",
    content: bytes = b"",
    font: bytes = b"",
    pages: int | None = None,
    notes: Sequence[bytes] = (),
) -> bytes:
    """A PDF with a page for each of `contents`, or `pages` that go round them. The other arguments
    replace or add to what a good one has: in the page tree, the dictionaries of contents, the font.
    `notes` are the dictionaries of fields and notes that stand on each page.
    """
    first = 5
    pages = len(contents) if pages is None else pages
    places = [first + len(contents) + index for index in range(pages)]
    listed = _references(places)
    noted = _references([first + len(contents) + pages + index for index in range(len(notes))])
    form = b"/AcroForm << /Fields %s /DA (/F1 9 Tf) /DR << /Font << /F1 3 0 R >> >> >>" % noted
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R %s >>" % (form if b"/FT" in b"".join(notes) else b""),
        b"<< /Type /Pages /Kids %s /Count %d >>"
        % (kids or listed, pages if count is None else count),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica %s >>" % font,
        _stream(_UNICODE, b""),
        *(_stream(each, content) for each in contents),
        *(
            b"<< /Type /Page /Parent 2 0 R /MediaBox [%s] /Contents %d 0 R"
            b" /Resources << /Font << /F1 3 0 R >> >> /Annots %s >>"
            % (box, first + index % len(contents), noted)
            for index in range(pages)
        ),
        *(b"<< /Type /Annot /Rect [72 600 172 620] %s >>" % each for each in notes),
    ]
    file = bytearray(b"%PDF-1.7\n")
    offsets: list[int] = []
    for number, each in enumerate(objects, 1):
        offsets.append(len(file))
        file += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    start = len(file)
    file += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    file += b"".join(b"%010d 00000 n \n" % each for each in offsets)
    file += b"trailer << /Size %d /Root 1 0 R >>\n" % (len(objects) + 1)
    return bytes(file + b"startxref\n%d\n%%%%EOF\n" % start)


def packed(data: bytes, times: int = 1) -> bytes:
    """The page content that is `data` so many times, in little space."""
    packer = zlib.compressobj(9, wbits=-15)
    block = packer.compress(data) + packer.flush(zlib.Z_FULL_FLUSH)  # which may be repeated
    return b"\x78\xda" + block * times + packer.flush()


def bomb(mebibytes: int) -> bytes:
    """A small PDF whose page has so many zeros."""
    return pdf(zlib.compress(packed(bytes(1 << 20), mebibytes), 9), content=TWICE_PACKED)


def encrypted(how: bytes) -> bytes:
    """A PDF that says so, and is as it would be without."""
    return pdf(PAGE).replace(b"trailer << ", b"trailer << /Encrypt %s " % how)


def document(data: bytes, media_type: str = "application/pdf", **more: Any) -> dict[str, Any]:
    encoded = base64.b64encode(data).decode()
    return sourced({"type": "base64", "media_type": media_type, "data": encoded}, **more)


def plain(text: str, **more: Any) -> dict[str, Any]:
    return sourced({"type": "text", "media_type": "text/plain", "data": text}, **more)


def sourced(source: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "document", "source": source, **more}


def asked(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a question about them."""
    return [{"role": "user", "content": [*blocks, {"type": "text", "text": "What is it?"}]}]


def handed(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a conversation in which a tool has found them."""
    call = {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": list(blocks)}
    return [
        {"role": "user", "content": "Read it."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]


def _references(numbers: Sequence[int]) -> bytes:
    return b"[%s]" % b" ".join(b"%d 0 R" % each for each in numbers)


def _stream(data: bytes, fields: bytes) -> bytes:
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), fields, data)


# What characters stand for, where the font says /ToUnicode 4 0 R: half a pair, and NUL.
_UNICODE = (
    b"/CIDInit /ProcSet findresource begin 12 dict begin begincmap /CMapType 2 def"
    b" 1 begincodespacerange <00> <FF> endcodespacerange"
    b" 3 beginbfchar <61> <D800> <62> <0000> <63> <0043> endbfchar endcmap end end"
)

HOSTILE: dict[str, tuple[Callable[[], bytes], str]] = {
    "an inline image without its end": (lambda: pdf(b"BI /W 1 /H 1 ID " + b"x" * 2000), "no text"),
    "a page tree that holds itself": (lambda: pdf(PAGE, kids=b"[2 0 R]", count=1), "damaged"),
    "pages that are missing": (lambda: pdf(PAGE, kids=b"[9999 0 R]"), "damaged"),
    "a last page that is missing": (
        lambda: pdf(PAGE, kids=b"[6 0 R 9999 0 R]", count=2),
        "damaged: its page 2 cannot be read",
    ),
    "a page that is only counted": (
        lambda: pdf(PAGE, count=2),
        "damaged: its page 2 cannot be read",
    ),
    "a lock without a password": (lambda: encrypted(b"<< >>"), "is encrypted, and not in"),
    "a lock for certificates": (
        lambda: encrypted(b"<< /Filter /Adobe.PubSec >>"),
        "is encrypted, and not in",
    ),
    "no pages": (lambda: pdf(PAGE, pages=0), "has no pages"),
    "half of a file": (lambda: pdf(PAGE)[:200], "damaged"),
    "nothing but a mark": (lambda: b"%PDF-1.7", "damaged"),
    "no text": (lambda: pdf(b"0 0 100 100 re f"), "no text"),
    "a stream that decodes to 2 GiB": (lambda: bomb(2048), "too complex"),
    "8 million operators": (lambda: pdf(packed(OPERATORS, 8), content=PACKED), "too complex"),
    "more pages than are read": (lambda: pdf(PAGE, pages=601), "601 pages"),
}
