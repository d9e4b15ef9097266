"""Stop sequences in text that arrives in pieces."""

import unicodedata
from collections.abc import Iterable, Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.parsing.stop_sequences import StopSequences

NFC = "caf\u00e9"
NFD = unicodedata.normalize("NFD", NFC)
FAMILY = "👨\u200d👩\u200d👧"

CASES = [
    pytest.param("alpha beta gamma delta", ["beta gamma"], "alpha ", "beta gamma", id="two words"),
    pytest.param("ABCDEFGHIJ", ["DEFGHIJ"], "ABC", "DEFGHIJ", id="at the end"),
    pytest.param("ABCDEFGX", ["DEFGHIJ"], "ABCDEFGX", None, id="a prefix only"),
    pytest.param("aaab", ["aab"], "a", "aab", id="overlapping itself"),
    pytest.param("ababac", ["abac"], "ab", "abac", id="begun twice"),
    pytest.param("x\nUser: hi", ["\nUser:", "\n"], "x", "\n", id="the earliest end"),
    pytest.param("x\nUser: hi", ["\n", "\nUser:"], "x", "\n", id="in any order of the list"),
    pytest.param("one END two", ["D", "END"], "one ", "END", id="the longest of one end"),
    pytest.param("abcd", ["bc", "abcd"], "a", "bc", id="one inside another"),
    pytest.param("please", ["assistant"], "please", None, id="a prefix at the end of the answer"),
    pytest.param(f"{NFC}!", ["é"], "caf", "é", id="composed in composed"),
    pytest.param(f"{NFD}!", ["é"], f"{NFD}!", None, id="composed in decomposed"),
    pytest.param(f"{NFD}!", ["e\u0301"], "caf", "e\u0301", id="decomposed in decomposed"),
    pytest.param(f"a{FAMILY}b", ["👩"], "a👨\u200d", "👩", id="inside an emoji sequence"),
    pytest.param("stop", ["stop", "stop"], "", "stop", id="listed twice"),
    pytest.param("any text", [], "any text", None, id="none"),
    pytest.param("", ["x"], "", None, id="no text"),
]


@pytest.mark.parametrize(("text", "stops", "shown", "matched"), CASES)
def test_text_goes_through_up_to_the_stop_sequence_however_it_is_cut(
    text: str, stops: list[str], shown: str, matched: str | None
) -> None:
    for pieces in _cuts(text):
        assert _run(pieces, stops) == (shown, matched), pieces


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("abc", ["cd"], "ab"),
        ("abc", ["xyz"], "abc"),
        ("abab", ["abac"], "ab"),
        ("aaa", ["aab"], "a"),
        ("x\n", ["\nUser:"], "x"),
        ("ab", ["abc", "bcd"], ""),
    ],
)
def test_only_what_may_become_a_stop_sequence_is_held_back(
    text: str, stops: list[str], shown: str
) -> None:
    passing = StopSequences(stops)
    assert passing.feed(text).text == shown
    assert shown + passing.flush() == text


ALPHABETS = st.sampled_from(["ab", "ab\n", "aé\u0301", f"x{FAMILY}"])


@given(st.data())
def test_any_cut_of_any_text_gives_what_a_search_of_the_whole_gives(data: st.DataObject) -> None:
    characters = st.sampled_from(data.draw(ALPHABETS))
    text = data.draw(st.text(characters, max_size=40))
    stops = data.draw(st.lists(st.text(characters, min_size=1, max_size=6), max_size=4))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = _search(text, stops)
    assert _run(pieces, stops) == expected
    assert _run(list(text), stops) == expected


def _run(pieces: Iterable[str], stops: Sequence[str]) -> tuple[str, str | None]:
    passing = StopSequences(stops)
    shown = ""
    for piece in pieces:
        passed = passing.feed(piece)
        shown += passed.text
        if passed.matched is not None:
            return shown, passed.matched
    return shown + passing.flush(), None


def _search(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    for end in range(len(text) + 1):
        ending = [each for each in stops if text[:end].endswith(each)]
        if ending:
            matched = max(ending, key=len)
            return text[: end - len(matched)], matched
    return text, None


def _cuts(text: str) -> Iterator[list[str]]:
    yield [text]
    yield list(text)
    for place in range(1, len(text)):
        yield [text[:place], text[place:]]
