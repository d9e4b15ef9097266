"""What the service and the engine process say to each other.

A frame is two little-endian uint32 lengths, a JSON header, then a body: the message's token ids as
packed little-endian uint32. Messages are frozen dataclasses; each has at most one field of ids.
"""

import struct
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import orjson

from models.boundary import Boundary

VERSION = 6
MAX_FRAME_BYTES = 64 << 20  # a prompt of 16 million tokens; anything longer is a fault
_LENGTHS = struct.Struct("<II")


def ids_of(values: "list[int] | tuple[int, ...] | array[int]" = ()) -> "array[int]":
    return array("I", values)


Interruption = Literal["cancelled", "suspended"]
Reason = Literal["stop", "length"] | Interruption


class ProtocolError(Exception):
    """The other side sent something that is not a frame of this version."""


@dataclass(frozen=True, slots=True)
class Stats:
    """What the engine measured of one run, or of one segment of a run that was suspended.

    Times in seconds, memory in bytes. `prefilled_tokens` were computed, `reused_tokens` were not,
    since a kept state had them. Of the generated tokens, `accepted_tokens` were drafted: they are
    those of `drafted_tokens` that were right, in as many `verified_rounds`. So often, drafting was
    given up for a while, as it did not pay: `draft_pauses`.
    """

    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_token_seconds: float | None = None
    longest_step_seconds: float = 0.0
    prefilled_tokens: int = 0
    generated_tokens: int = 0
    peak_memory_bytes: int = 0
    reused_tokens: int = 0
    verified_rounds: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    draft_pauses: int = 0

    def plus(self, later: "Stats") -> "Stats":
        """This segment and the one after it; the time between them counts for neither."""
        first_token = self.first_token_seconds
        if first_token is None and later.first_token_seconds is not None:
            elapsed = self.prefill_seconds + self.decode_seconds
            first_token = elapsed + later.first_token_seconds
        return Stats(
            prefill_seconds=self.prefill_seconds + later.prefill_seconds,
            decode_seconds=self.decode_seconds + later.decode_seconds,
            first_token_seconds=first_token,
            longest_step_seconds=max(self.longest_step_seconds, later.longest_step_seconds),
            prefilled_tokens=self.prefilled_tokens + later.prefilled_tokens,
            generated_tokens=self.generated_tokens + later.generated_tokens,
            peak_memory_bytes=max(self.peak_memory_bytes, later.peak_memory_bytes),
            reused_tokens=self.reused_tokens + later.reused_tokens,
            verified_rounds=self.verified_rounds + later.verified_rounds,
            drafted_tokens=self.drafted_tokens + later.drafted_tokens,
            accepted_tokens=self.accepted_tokens + later.accepted_tokens,
            draft_pauses=self.draft_pauses + later.draft_pauses,
        )


# From the service to the engine.


@dataclass(frozen=True, slots=True)
class Load:
    """Make the model in `folder` resident. The first message, sent once.

    Computed states of prompts take at most `cache_bytes` of memory; by default, a share of the
    machine's. With a `cache_folder` they are kept there, too, in at most `cache_disk_bytes`, for
    models whose weights are those called `weights`. Unless it `speculates`, one token is generated
    a step. The weights in the folder `drafter` are for drafts.
    """

    folder: str
    version: int = VERSION
    cache_bytes: int | None = None
    cache_folder: str | None = None
    cache_disk_bytes: int = 0
    weights: str | None = None
    speculates: bool = True
    drafter: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Generate up to `max_tokens` after `prompt`; 0 prefills only. Temperature 0 is greedy.

    A run that is resumed has the `first_index` tokens that it generated so far at the end of its
    prompt; `max_tokens` are those still to come. What was computed for a run is of use only to
    runs of the same `scope`. `guide` is a `GuideSpec` as JSON; without, any token may follow any.
    With `boundaries`, in ascending order, nothing that was kept beyond the last of them is used.
    The turn of the answer begins at `answer_from`, if that is known: the last place in the prompt
    that another one may have, too.
    """

    job: str
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    stop_ids: tuple[int, ...]
    prompt: "array[int]" = field(default_factory=ids_of)
    first_index: int = 0
    scope: str = ""
    guide: dict[str, Any] | None = None
    boundaries: tuple[Boundary, ...] = ()
    answer_from: int | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop `job` before its next step; answered by `Finished`. Of no effect when it is not running,
    not even on a later run of it."""

    job: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """As `Cancel`, but the job will come again: the engine keeps what it needs to go on."""

    job: str


# From the engine to the service.


@dataclass(frozen=True, slots=True)
class Loading:
    """Weights resident so far, in bytes."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and warm. `facts` are for `GET /v1/runtime`."""

    load_seconds: float
    facts: dict[str, Any]
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The first event of a run with boundaries: its prompt's first `read_tokens` were kept by a
    boundary that has not expired, and up to `kept_tokens` its own boundaries will be. This is what
    clients are told; what was really reused or computed is in `Stats`."""

    job: str
    read_tokens: int
    kept_tokens: int


@dataclass(frozen=True, slots=True)
class CacheState:
    """What the prompt cache holds now, for `GET /v1/runtime`. Comes between runs."""

    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prefill:
    """Prompt tokens whose keys and values are there so far: the first tells what was reused."""

    job: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Tokens:
    job: str
    ids: "array[int]" = field(default_factory=ids_of)


@dataclass(frozen=True, slots=True)
class Finished:
    job: str
    reason: Reason
    stats: Stats


@dataclass(frozen=True, slots=True)
class Failed:
    """The run failed and the engine goes on; without a job, the engine cannot start."""

    job: str | None
    message: str


JobEvent = CacheUse | Prefill | Tokens | Finished | Failed
Message = Load | Run | Cancel | Suspend | Loading | Ready | CacheState | JobEvent

_KINDS = {kind.__name__: kind for kind in Message.__args__}
_IDS_FIELD: dict[type[Message], str] = {Run: "prompt", Tokens: "ids"}


def encode(message: Message) -> bytes:
    kind = type(message)
    ids_field = _IDS_FIELD.get(kind)
    header: dict[str, Any] = {"kind": kind.__name__}
    body = b""
    for each in fields(kind):
        value = getattr(message, each.name)
        if each.name == ids_field:
            body = _little_endian(value).tobytes()
        else:
            header[each.name] = value
    text = orjson.dumps(header)
    return _LENGTHS.pack(len(text), len(body)) + text + body


class FrameReader:
    """Turns bytes, cut anywhere, into messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Message]:
        """Raises ProtocolError at the first frame that is malformed."""
        self._buffer += data
        while len(self._buffer) >= _LENGTHS.size:
            header_length, body_length = _LENGTHS.unpack_from(self._buffer)
            end = _LENGTHS.size + header_length + body_length
            if end > MAX_FRAME_BYTES:
                raise ProtocolError(f"a frame of {end} bytes")
            if len(self._buffer) < end:
                return
            middle = _LENGTHS.size + header_length
            header = bytes(self._buffer[_LENGTHS.size : middle])
            body = bytes(self._buffer[middle:end])
            del self._buffer[:end]
            yield _decode(header, body)


def _decode(header: bytes, body: bytes) -> Message:
    try:
        values = orjson.loads(header)
        kind = _KINDS[values.pop("kind")]
        if kind in _IDS_FIELD:
            ids = ids_of()
            ids.frombytes(body)
            values[_IDS_FIELD[kind]] = _little_endian(ids)
        elif body:
            raise ValueError(f"{kind.__name__} has no token ids")
        if kind is Finished:
            values["stats"] = Stats(**values["stats"])
        if kind is Run:
            values["stop_ids"] = tuple(values["stop_ids"])
            values["boundaries"] = tuple(Boundary(**each) for each in values.get("boundaries", ()))
        return kind(**values)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError(f"an unreadable frame: {error}") from error


def _little_endian(ids: "array[int]") -> "array[int]":
    if sys.byteorder == "little":
        return ids
    swapped = ids_of(ids)
    swapped.byteswap()
    return swapped
