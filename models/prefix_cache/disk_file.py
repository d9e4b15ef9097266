"""One piece of a prompt's state in a file: safetensors that can tell whether they are whole.

The metadata say which piece it is. Among them is a SHA-256 of the whole file, taken with zeros in
its own place, so that a torn, altered or misplaced file is never taken for the piece. (Where
processors have instructions for it, no checksum of Python's or zlib's is faster by much.)
"""

import hashlib
import os
from array import array
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from safetensors import SafetensorError, TensorSpec, serialize_file

from models.safetensors_file import BrokenFile, header_of

_NO_CHECKSUM = b"0" * 64
_IDS = "ids"
_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "U32": "uint32",
    "I32": "int32",
    "U64": "uint64",
    "I64": "int64",
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
}


@dataclass(frozen=True, slots=True, eq=False)
class HostArray:
    """An array outside of any framework. NumPy has no bfloat16: `values` are its bits then."""

    dtype: str
    values: "np.ndarray[Any, Any]"


HostArrays = Mapping[str, HostArray]


@dataclass(frozen=True, slots=True)
class Header:
    """Which piece a file has: tokens [start, end) of a prompt. `name` is a digest of all tokens
    before `end`, `parent` of those before `start`. Without a promise, `ttl_seconds` is 0."""

    name: str
    parent: str
    start: int
    end: int
    ttl_seconds: int
    has_point: bool


@dataclass(frozen=True, slots=True, eq=False)
class PieceFile:
    """What a file has: the ids of [start, end), the state computed for them, and what JSON holds
    of it."""

    header: Header
    ids: "array[int]"
    arrays: HostArrays
    meta: dict[str, Any]

    def write(self, file: Path, incoming: Path, used_at: float) -> int:
        """Make `file` appear whole, last used at that time, and return its length. What is not
        whole yet is in the folder `incoming` of the same file system. Raises OSError."""
        ids = HostArray("uint32", np.frombuffer(self.ids, np.uint32))
        specs = {
            name: TensorSpec(
                dtype=each.dtype,
                shape=each.values.shape,
                data_ptr=each.values.ctypes.data,
                data_len=each.values.nbytes,
            )
            for name, each in {**self.arrays, _IDS: ids}.items()
        }
        metadata = {name: str(value) for name, value in asdict(self.header).items()}
        metadata |= {"meta": orjson.dumps(self.meta).decode(), "checksum": _NO_CHECKSUM.decode()}
        partial = incoming / file.name
        try:
            serialize_file(specs, partial, metadata)
            with partial.open("r+b", buffering=0) as stream:
                place = _checksum_place(stream.read(header_of(partial)[1]))
                stream.seek(0)
                digest = hashlib.file_digest(stream, "sha256")
                nbytes = stream.tell()
                stream.seek(place)
                stream.write(digest.hexdigest().encode())
                os.fchmod(stream.fileno(), 0o600)
                os.utime(stream.fileno(), (used_at, used_at))
                os.fsync(stream.fileno())
            partial.rename(file)
        except SafetensorError as error:
            raise OSError(str(error)) from error
        finally:
            partial.unlink(missing_ok=True)
        _sync_folder(file.parent)
        return nbytes


def read_header(file: Path) -> tuple[Header, "array[int]"]:
    """What a file says of itself, and the ids of its tokens. Raises BrokenFile and OSError; whether
    the rest is what was written shows when it is read."""
    described, data_start = header_of(file)
    header = _header(file, described)
    try:
        start, end = described[_IDS]["data_offsets"]
        with file.open("rb") as stream:
            stream.seek(data_start + start)
            ids = array("I", stream.read(max(0, end - start)))
    except (LookupError, TypeError, ValueError, OverflowError):
        ids = array("I")
    if not 0 < len(ids) == header.end - header.start:
        raise BrokenFile("has not the ids of its tokens")
    return header, ids


def read_piece(file: Path) -> PieceFile:
    """All of a file, verified. Raises BrokenFile and OSError."""
    described, data_start = header_of(file)
    content = memoryview(file.read_bytes())
    place = _checksum_place(bytes(content[:data_start]))
    after = place + len(_NO_CHECKSUM)
    digest = hashlib.sha256(content[:place])
    digest.update(_NO_CHECKSUM)
    digest.update(content[after:])
    if bytes(content[place:after]) != digest.hexdigest().encode():
        raise BrokenFile("is not what was written")
    data = content[data_start:]
    arrays = {
        name: _array(tensor, data) for name, tensor in described.items() if name != "__metadata__"
    }
    ids = array("I", arrays.pop(_IDS).values.tobytes())
    meta = orjson.loads(described["__metadata__"]["meta"])
    return PieceFile(_header(file, described), ids, arrays, meta)


def _header(file: Path, described: dict[str, Any]) -> Header:
    try:
        said = described["__metadata__"]
        header = Header(
            name=said["name"],
            parent=said["parent"],
            start=int(said["start"]),
            end=int(said["end"]),
            ttl_seconds=int(said["ttl_seconds"]),
            has_point=said["has_point"] == "True",
        )
    except (LookupError, TypeError, ValueError):
        raise BrokenFile("is no piece of a prompt's state") from None
    if header.name != file.stem:
        raise BrokenFile("is a piece of another prompt's state")
    return header


def _array(tensor: dict[str, Any], data: memoryview) -> HostArray:
    dtype = _DTYPES[tensor["dtype"]]
    start, end = tensor["data_offsets"]
    bits = "uint16" if dtype == "bfloat16" else dtype
    return HostArray(dtype, np.frombuffer(data[start:end], bits).reshape(tensor["shape"]))


def _checksum_place(head: bytes) -> int:
    before, quote, _ = head.partition(b'"checksum":"')
    if not quote:
        raise BrokenFile("has no checksum")
    return len(before) + len(quote)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
