"""One answer from token ids: characters first, stop sequences in them second."""

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.parsing.answer import AnswerParser
from models.parsing.events import Event, Stopped, TextDelta
from models.parsing.syntax import PlainText
from models.parsing.token_text import TokenBytes
from tests.support.tiny_checkpoint import byte_tokenizer

TOKENIZER = byte_tokenizer()  # one token a byte
TOKEN_BYTES = TokenBytes(TOKENIZER)


@pytest.mark.parametrize(
    ("text", "stops", "shown", "matched"),
    [
        ("alpha beta gamma", ["beta"], "alpha ", "beta"),
        ("pleas", ["assistant"], "pleas", None),
        ("caf\u00e9!", ["\u00e9"], "caf", "\u00e9"),
        ("a👨\u200d👩b", ["\u200d"], "a👨", "\u200d"),
        ("🙂🙃", ["🙃"], "🙂", "🙃"),
        ("깰깱", ["깱x"], "깰깱", None),
    ],
)
def test_stop_sequences_are_seen_in_characters_that_come_byte_by_byte(
    text: str, stops: list[str], shown: str, matched: str | None
) -> None:
    assert _parsed(_ids(text), stops) == (shown, matched)


def test_a_replacement_character_at_the_end_may_complete_a_stop_sequence() -> None:
    ids = [*_ids("x"), *_ids("é")[:1]]
    assert _parsed(ids, []) == ("x\ufffd", None)
    assert _parsed(ids, ["\ufffd"]) == ("x", "\ufffd")


def test_special_tokens_between_the_halves_of_a_character_are_no_text() -> None:
    first, second = _ids("é")
    assert _parsed([first, TOKENIZER.token_to_id("<|im_start|>"), second], []) == ("é", None)


@given(
    st.text(st.sampled_from("ab é깰🙂\n"), max_size=20),
    st.lists(st.text(st.sampled_from("ab é깰🙂\n"), min_size=1, max_size=4), max_size=3),
)
def test_an_answer_is_its_text_up_to_the_first_stop_sequence(text: str, stops: list[str]) -> None:
    shown, matched = _parsed(_ids(text), stops)
    if matched is None:
        assert shown == text
        assert not any(each in text for each in stops)
    else:
        assert text.startswith(shown + matched)
        assert not any(each in (shown + matched)[:-1] for each in stops)


def _ids(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def _parsed(ids: Iterable[int], stops: list[str]) -> tuple[str, str | None]:
    parser = AnswerParser(TOKEN_BYTES, PlainText(), stop_sequences=stops)
    shown = ""
    for event in _events(parser, ids):
        if isinstance(event, Stopped):
            return shown, event.sequence
        assert isinstance(event, TextDelta)
        shown += event.text
    return shown, None


def _events(parser: AnswerParser, ids: Iterable[int]) -> Iterator[Event]:
    for token in ids:
        yield from parser.feed(token)
    yield from parser.end(cut=False)
