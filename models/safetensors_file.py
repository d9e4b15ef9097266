"""The safetensors file format, as far as this project needs it without a framework.

A file is the header's length (8 bytes, little-endian), a JSON header with each tensor's dtype,
shape and byte range, then the bytes. Written one tensor at a time, so that converting a model
needs the memory of its largest tensor.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import orjson

if TYPE_CHECKING:
    import numpy as np

# The format's reference reader refuses longer headers.
MAX_HEADER_BYTES = 100_000_000

_ITEM_BYTES = {"F32": 4, "BF16": 2, "U32": 4}


class BrokenFile(Exception):
    """The file is not a complete safetensors file; the text completes "<file> …"."""


def check_complete(file: Path) -> None:
    """Raise `BrokenFile` unless the file is exactly as long as its header says."""
    header_of(file)


def header_of(file: Path) -> tuple[dict[str, Any], int]:
    """The header, and where the tensors' bytes begin; raises `BrokenFile` as `check_complete`."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        header_bytes = int.from_bytes(stream.read(8), "little")
        if size < 8 or header_bytes > MAX_HEADER_BYTES:
            raise BrokenFile("is not a safetensors file")
        try:
            header = cast(dict[str, Any], orjson.loads(stream.read(header_bytes)))
            ends = [t["data_offsets"][1] for name, t in header.items() if name != "__metadata__"]
            start = 8 + header_bytes
            expected = start + max(ends, default=0)
        except (orjson.JSONDecodeError, LookupError, AttributeError, TypeError):
            raise BrokenFile("has no readable header") from None
    if size != expected:
        raise BrokenFile(f"has {size} of {expected} bytes")
    return header, start


def write_float32(
    file: Path, shapes: dict[str, tuple[int, ...]], tensors: "Iterable[np.ndarray[Any, Any]]"
) -> None:
    """Write float32 `tensors`, which come in the order of `shapes`, each whole or in parts."""
    kinds = {name: ("F32", shape) for name, shape in shapes.items()}
    write(file, kinds, (each.astype("<f4", copy=False) for each in tensors))


def write(
    file: Path,
    kinds: dict[str, tuple[str, tuple[int, ...]]],
    tensors: "Iterable[np.ndarray[Any, Any]]",
) -> None:
    """Write `tensors` of these dtypes, as the format calls them, and shapes, in that order. They
    are little-endian bytes in arrays of any dtype, each whole or in parts."""
    header: dict[str, Any] = {"__metadata__": {"format": "mlx"}}
    offset = 0
    for name, (dtype, shape) in kinds.items():
        end = offset + _ITEM_BYTES[dtype] * math.prod(shape)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (offset, end)}
        offset = end
    encoded = orjson.dumps(header)
    encoded += b" " * (-len(encoded) % 8)  # the format asks for aligned data
    with file.open("wb") as stream:
        stream.write(len(encoded).to_bytes(8, "little"))
        stream.write(encoded)
        for tensor in tensors:
            stream.write(tensor.astype(tensor.dtype, order="C", copy=False).data)
        assert stream.tell() == 8 + len(encoded) + offset
