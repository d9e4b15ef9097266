"""Lines that clients change from request to request do not reach the model."""

from typing import Any

import pytest

from models.conversation import Mark, Text
from tests.service.requests.served import EPHEMERAL, assistant, prepared, system, text, user

ATTRIBUTION = "x-anthropic-billing-header: cc_version=2.1.200.abc; cc_entrypoint=cli; cch=11111;"
COUNTER = "<total_tokens>9000 tokens left</total_tokens>"
USAGE = "Token usage: 21000/200000; 179000 remaining"


def turns(messages: list[Any], first: Any = None) -> list[tuple[str, str]]:
    conversation = prepared(messages=messages, system=first).conversation
    return [(turn.role, turn.text) for turn in conversation.turns]


@pytest.mark.parametrize(
    "first",
    [
        [text(ATTRIBUTION), text("You are kind.\n")],
        [text("You are kind.\n"), text(ATTRIBUTION)],
        [text("You are kind.\n"), text(f"{ATTRIBUTION}\n{COUNTER}\n\n{USAGE}\n")],
        [text(f" \n{ATTRIBUTION}"), text("You are kind.\n"), text(COUNTER), text(COUNTER)],
    ],
)
def test_blocks_of_such_lines_disappear(first: list[Any]) -> None:
    assert turns([user("hi")], first) == [("system", "You are kind.\n"), ("user", "hi")]


@pytest.mark.parametrize(
    "first",
    [
        f"{ATTRIBUTION}\nYou are kind.\n\nBe brief.",
        f"{ATTRIBUTION}\r\n\r\nYou are kind.\n\nBe brief.".replace("\r\n\r\n", "\r\n\n"),
        f"You are kind.\n\nBe brief.\n\n{COUNTER}",
        f"You are kind.\n\nBe brief.\n\n{COUNTER}\n\n{COUNTER}\n",
        f"You are kind.\n{ATTRIBUTION}  \n\nBe brief.\n{USAGE}",
    ],
)
def test_such_lines_are_taken_out_of_longer_texts(first: str) -> None:
    expected = [("system", "You are kind.\n\nBe brief."), ("user", "hi")]
    assert turns([user("hi")], first) == turns([user("hi")], [text(first)]) == expected
    assert turns([system(first), user("hi")]) == expected


@pytest.mark.parametrize(
    "said",
    [
        "what does x-anthropic-billing-header: do?",
        "x-anthropic-billing-header: do you know it?",
        f" {ATTRIBUTION}",
        f"It is `{ATTRIBUTION}`",
        f"{COUNTER} and more",
        f"Say {COUNTER}",
        f"{USAGE}.",
        "<total_tokens>many tokens left</total_tokens>",
        "<total_tokens>5</total_tokens>",
        "a\n\nb\n",
    ],
)
def test_only_a_whole_line_of_their_form_is_taken(said: str) -> None:
    assert turns([user("hi")], said)[0] == ("system", said)


def test_what_anybody_else_says_is_untouched() -> None:
    said = f"{ATTRIBUTION}\n{COUNTER}"
    history = [user(said), assistant([text(said)]), user([text(said)])]
    assert turns(history) == [("user", said), ("assistant", said), ("user", said)]


def test_a_later_system_turn_keeps_its_counters_but_not_the_attribution() -> None:
    late = system([text(ATTRIBUTION), text(COUNTER, cache_control=EPHEMERAL)])
    assert turns([user("hi"), late]) == [("user", "hi"), ("system", COUNTER)]
    assert turns([user("hi"), system(ATTRIBUTION)]) == [("user", "hi")]


def test_the_mark_of_a_text_stays_at_its_end() -> None:
    first = [text(f"{ATTRIBUTION}\nabc\n{COUNTER}", cache_control=EPHEMERAL), text("d")]
    turn = prepared(system=first).conversation.turns[0]
    assert turn.blocks == (Text("abc\n\nd", (Mark(3, 300),)),)
