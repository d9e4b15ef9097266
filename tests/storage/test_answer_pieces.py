"""What a record's events keep of an answer is enough to say what it was."""

from itertools import chain, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.answer_pieces import (
    CallArguments,
    CallEnd,
    CallStart,
    Piece,
    Signature,
    TextPiece,
    ThinkingPiece,
    as_details,
    characters,
    content_of,
    joined,
    pieces_in,
    pieces_of,
)
from storage.json_text import from_json, to_json

RUN: list[Piece] = [CallStart("toolu_1", "run"), CallArguments('{"a":'), CallArguments("[1]}")]

blocks = st.one_of(
    st.fixed_dictionaries(
        {"type": st.just("thinking"), "thinking": st.text(), "signature": st.text()}
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("tool_use"),
            "id": st.text(),
            "name": st.text(),
            "input": st.dictionaries(st.text(), st.none() | st.text() | st.lists(st.booleans())),
        }
    ),
    st.fixed_dictionaries({"type": st.just("text"), "text": st.text(min_size=1)}),
)


def neighbours_are_not_both_text(content: list[dict[str, Any]]) -> bool:
    kinds = [block["type"] for block in content]
    return ("text", "text") not in pairwise(kinds)


@settings(max_examples=100)
@given(st.lists(blocks, max_size=6).filter(neighbours_are_not_both_text), st.data())
def test_events_tell_the_content_however_its_pieces_came(
    content: list[dict[str, Any]], data: st.DataObject
) -> None:
    pieces = list(chain.from_iterable(map(_in_characters, pieces_of(content))))
    events: list[dict[str, Any]] = []
    while pieces:
        count = data.draw(st.integers(1, len(pieces)))
        events.append(from_json(to_json({"event": "tokens", **as_details(pieces[:count])})))
        pieces = pieces[count:]
    assert content_of(piece for event in events for piece in pieces_in(event)) == content


def _in_characters(piece: Piece) -> list[Piece]:
    if isinstance(piece, TextPiece | ThinkingPiece | CallArguments) and piece.text:
        return [type(piece)(each) for each in piece.text]
    return [piece]


def test_an_event_of_text_alone_says_so_as_those_of_earlier_versions() -> None:
    assert as_details([TextPiece("a"), TextPiece("b")]) == {"text": "ab"}
    assert as_details([]) == {"text": ""}
    assert pieces_in({"event": "tokens", "ids": [1], "text": "ab"}) == [TextPiece("ab")]
    assert pieces_in({"event": "tokens", "ids": [1], "text": ""}) == []
    assert pieces_in({"event": "tokens", "count": 1, "chars": 2}) == []
    assert pieces_in({"event": "claimed"}) == []


def test_a_call_is_content_once_it_has_its_end() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "run", "input": {"a": [1]}}
    assert content_of([*RUN, CallEnd()]) == [call]
    assert content_of([TextPiece("a"), *RUN]) == [{"type": "text", "text": "a"}]
    nothing = {"type": "tool_use", "id": "toolu_2", "name": "now", "input": {}}
    assert content_of([*RUN, CallEnd(), CallStart("toolu_2", "now"), CallEnd()]) == [call, nothing]


def test_thinking_that_was_cut_off_is_not_signed() -> None:
    block = {"type": "thinking", "thinking": "ab", "signature": ""}
    assert content_of([ThinkingPiece("a"), ThinkingPiece("b")]) == [block]


def test_neighbours_of_one_kind_are_joined() -> None:
    apart = [
        ThinkingPiece("a"),
        ThinkingPiece("b"),
        Signature("s"),
        TextPiece("c"),
        *RUN,
        CallEnd(),
    ]
    together = [ThinkingPiece("ab"), Signature("s"), TextPiece("c"), RUN[0]]
    assert list(joined(apart)) == [*together, CallArguments('{"a":[1]}'), CallEnd()]


def test_without_content_the_characters_of_text_and_thinking_count() -> None:
    assert characters([ThinkingPiece("ab"), Signature("s"), TextPiece("c"), *RUN, CallEnd()]) == 3


@pytest.mark.parametrize(
    "shown", [[{"image": 1}], [{}], [{"signature": "s"}, {"input_json": "{}"}]]
)
def test_what_is_no_answer_is_said_to_be_none(shown: list[dict[str, Any]]) -> None:
    with pytest.raises(LookupError):
        content_of(pieces_in({"event": "tokens", "shown": shown}))
