"""Images, where the server says that its model sees them."""

import base64
import struct
import zlib
from typing import Any

from tools.qualification.check import Check, Trial, require, require_count, skip, text_of


def image(trial: Trial) -> None:
    """Its image is in the prompt, whose count is that of the usage."""
    if not trial.server.supports("image_input"):
        skip("the server declares no image_input")
    question = {"type": "text", "text": "What colour is this? Answer in one word."}
    asked = {"role": "user", "content": [red_image(), question]}
    counted = trial.count(asked)
    without = trial.count({"role": "user", "content": [question]})
    require(counted > without, "the prompt is no longer with the image than without")
    for streams in (False, True):
        message = trial.ask(asked, streams=streams)
        require_count(counted, message)
        trial.model("red", text_of(message), "red" in text_of(message).lower())


def red_image() -> dict[str, Any]:
    """The block of a red square."""
    source = {"type": "base64", "media_type": "image/png", "data": _red_png()}
    return {"type": "image", "source": source}


def _red_png(side: int = 64) -> str:
    """In base64."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)  # 8 bits of red, green and blue
    rows = (b"\0" + b"\xff\0\0" * side) * side
    parts = (b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")
    chunks = b"".join(chunk(kind, data) for kind, data in parts)
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + chunks).decode()


CHECKS = [Check("images", "a PNG", image)]
