"""Frames between the service and the engine process."""

import contextlib
import itertools
import struct
from functools import reduce
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.boundary import Boundary
from models.engine.protocol import (
    MAX_FRAME_BYTES,
    VERSION,
    CacheState,
    CacheUse,
    Cancel,
    Failed,
    Finished,
    FrameReader,
    Load,
    Loading,
    Message,
    Prefill,
    ProtocolError,
    Ready,
    Run,
    Stats,
    Suspend,
    Tokens,
    encode,
    ids_of,
)

MESSAGES: tuple[Message, ...] = (
    Load("/models/tiny"),
    Load("/m", cache_bytes=1 << 33, cache_folder="/c", cache_disk_bytes=5, weights="ab"),
    Run("run_1", 64, 0.7, 0.9, 40, 2**63 - 1, (1, 2), ids_of([0, 1, 2**32 - 1])),
    Run("empty", 0, 0.0, 1.0, 0, 0, ()),
    Run("resumed", 64, 0.0, 1.0, 0, 0, (), ids_of([5, 6]), 1, "key_1"),
    Run("guided", 64, 0.0, 1.0, 0, 0, (), guide={"states": [{"kind": "Ended"}]}),
    Run("marked", 1, 0.0, 1.0, 0, 0, (), ids_of([5]), boundaries=(Boundary(9, 300),)),
    CacheUse("run_1", 5, 1 << 20),
    CacheState({"memory": {"held_bytes": 1 << 40}}),
    Cancel("run_1"),
    Suspend("run_1"),
    Loading(5, 1 << 40),
    Ready(1.5, {"device": "cpu", "blas": None, "nested": [1, {"a": True}]}),
    Prefill("run_1", 256, 300),
    Tokens("run_1", ids_of(range(1000))),
    Tokens("run_1"),
    Finished("run_1", "stop", Stats(1.0, 2.0, 0.5, 0.25, 300, 64, 1 << 35)),
    Finished("run_1", "cancelled", Stats()),
    Finished("run_1", "suspended", Stats(reused_tokens=7)),
    Failed(None, "no such\nfolder: é 🜁"),
    Failed("run_1", ""),
)

REASONS = ("stop", "length", "cancelled", "suspended")

_names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_counts = st.integers(0, 2**63 - 1)
_seconds = st.floats(0, 1e9)
_ids = st.lists(st.integers(0, 2**32 - 1), max_size=50).map(ids_of)
_stats = st.builds(
    Stats, _seconds, _seconds, st.none() | _seconds, _seconds, _counts, _counts, _counts, _counts
)
_runs = st.builds(
    Run,
    job=_names,
    max_tokens=_counts,
    temperature=st.floats(0, 1),
    top_p=st.floats(0, 1),
    top_k=_counts,
    seed=_counts,
    stop_ids=st.lists(st.integers(0, 2**32 - 1), max_size=4).map(tuple),
    prompt=_ids,
    first_index=_counts,
    scope=_names,
    boundaries=st.lists(st.builds(Boundary, _counts, _counts), max_size=4).map(tuple),
)
_messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(Load, folder=_names, version=_counts),
    _runs,
    st.builds(CacheUse, _names, _counts, _counts),
    st.builds(CacheState, st.dictionaries(_names, _counts)),
    st.builds(Cancel, _names),
    st.builds(Suspend, _names),
    st.builds(Loading, _counts, _counts),
    st.builds(Ready, _seconds, st.dictionaries(_names, _names | st.none() | _counts), _counts),
    st.builds(Prefill, _names, _counts, _counts),
    st.builds(Tokens, _names, _ids),
    st.builds(Finished, _names, st.sampled_from(REASONS), _stats),
    st.builds(Failed, st.none() | _names, _names),
)


def frame(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack("<II", len(header), len(body)) + header + body


def read(*pieces: bytes) -> list[Message]:
    reader = FrameReader()
    return [message for piece in pieces for message in reader.feed(piece)]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back_as_it_was_sent(message: Message) -> None:
    assert read(encode(message)) == [message]


def test_every_kind_of_message_is_tried() -> None:
    assert {type(message) for message in MESSAGES} == set(Message.__args__)


@given(st.lists(_messages, max_size=5), st.data())
def test_a_stream_cut_anywhere_gives_the_same_messages(
    messages: list[Message], data: st.DataObject
) -> None:
    stream = b"".join(map(encode, messages))
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8).map(sorted))
    edges = [0, *cuts, len(stream)]
    pieces = [stream[start:end] for start, end in itertools.pairwise(edges)]
    assert read(*pieces) == messages


def test_a_stream_cut_in_two_at_every_position_gives_the_same_messages() -> None:
    short = [each for each in MESSAGES if len(encode(each)) < 500]
    stream = b"".join(map(encode, short))
    for cut in range(len(stream) + 1):
        assert read(stream[:cut], stream[cut:]) == short


def test_a_stream_that_comes_byte_by_byte_gives_the_same_messages() -> None:
    stream = b"".join(map(encode, MESSAGES))
    assert read(*(stream[i : i + 1] for i in range(len(stream)))) == list(MESSAGES)


def test_ids_travel_as_little_endian_words() -> None:
    data = encode(Tokens("a", ids_of([1, 258])))
    assert data.endswith(bytes([1, 0, 0, 0, 2, 1, 0, 0]))


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (MAX_FRAME_BYTES, 0),
        (0, MAX_FRAME_BYTES),
        (2**32 - 1, 2**32 - 1),
    ],
)
def test_an_oversized_frame_is_refused_from_its_lengths_alone(header: int, body: int) -> None:
    with pytest.raises(ProtocolError, match="a frame of"):
        read(struct.pack("<II", header, body))


@pytest.mark.parametrize(
    ("header", "body"),
    [
        (b"", b""),
        (b"{", b""),
        (b"\xff\xfe", b""),
        (b"null", b""),
        (b"[]", b""),
        (b'"Cancel"', b""),
        (b"{}", b""),
        (b'{"kind":"Explode"}', b""),
        (b'{"kind":["Cancel"]}', b""),
        (b'{"kind":"Cancel"}', b""),
        (b'{"kind":"Cancel","job":"a","more":1}', b""),
        (b'{"kind":"Cancel","job":"a"}', b"\1\0\0\0"),
        (b'{"kind":"Tokens","job":"a"}', b"\1\2\3"),
        (b'{"kind":"Finished","job":"a","reason":"stop","stats":[1]}', b""),
        (b'{"kind":"Finished","job":"a","reason":"stop","stats":{"speed":1}}', b""),
        (b'{"kind":"Finished","job":"a","reason":"stop"}', b""),
    ],
)
def test_a_garbled_frame_is_refused(header: bytes, body: bytes) -> None:
    with pytest.raises(ProtocolError, match="an unreadable frame"):
        read(frame(header, body))


def test_messages_before_a_garbled_frame_are_still_read() -> None:
    reader = FrameReader()
    messages = reader.feed(encode(Cancel("a")) + frame(b"{"))
    assert next(messages) == Cancel("a")
    with pytest.raises(ProtocolError):
        next(messages)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_but_a_protocol_error(data: bytes) -> None:
    try:
        read(data)
        read(frame(data))
    except ProtocolError:
        pass


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | _names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3),
    max_leaves=5,
)


@given(_messages, st.data())
def test_a_header_with_any_one_field_replaced_is_read_or_refused(
    message: Message, data: st.DataObject
) -> None:
    encoded = encode(message)
    length, _ = struct.unpack_from("<II", encoded)
    header: dict[str, Any] = orjson.loads(encoded[8 : 8 + length])
    header[data.draw(st.sampled_from(sorted(header)))] = data.draw(_json)
    with contextlib.suppress(ProtocolError):
        read(frame(orjson.dumps(header), encoded[8 + length :]))


def test_both_sides_say_their_version() -> None:
    assert Load("folder").version == Ready(0.0, {}).version == VERSION


def test_a_run_without_the_newer_fields_is_a_new_run_of_no_scope() -> None:
    header = {"kind": "Run", "job": "run_1", "max_tokens": 1, "temperature": 0, "top_p": 1}
    header |= {"top_k": 0, "seed": 0, "stop_ids": []}
    (run,) = read(frame(orjson.dumps(header)))
    assert isinstance(run, Run)
    assert (run.first_index, run.scope) == (0, "")


def test_the_stats_of_two_segments_make_those_of_the_whole() -> None:
    earlier = Stats(1.0, 2.0, 1.5, 0.25, 300, 5, 100, 10)
    later = Stats(0.5, 4.0, 0.75, 0.5, 20, 7, 90, 305)
    assert earlier.plus(later) == Stats(1.5, 6.0, 1.5, 0.5, 320, 12, 100, 315)


def test_a_first_token_in_a_later_segment_counts_from_the_start_of_the_first() -> None:
    without = Stats(1.0, 0.5)
    assert without.plus(Stats(2.0, 1.0, 2.25)).first_token_seconds == 3.75
    assert without.plus(without).first_token_seconds is None
    assert without.plus(without).plus(Stats(0.0, 1.0, 0.25)).first_token_seconds == 3.25


@given(st.lists(_stats, min_size=1, max_size=4))
def test_stats_are_summed_in_any_grouping(segments: list[Stats]) -> None:
    def counts(stats: Stats) -> tuple[int, ...]:
        return (stats.prefilled_tokens, stats.generated_tokens, stats.reused_tokens)

    left = reduce(Stats.plus, segments)
    assert left.plus(Stats()) == Stats().plus(left) == left
    assert counts(left) == tuple(map(sum, zip(*map(counts, segments), strict=True)))
