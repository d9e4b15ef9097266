"""Calls and results as plain text."""

import pytest

from models.conversation import Block, Text, Thinking, ToolCall, ToolResult, Turn
from models.families.plain import readable


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ((), ""),
        ((Text(" as it is \n"),), " as it is \n"),
        ((Thinking("hm"),), ""),
        ((Thinking("hm"), Text("yes")), "yes"),
        ((Text("I look."), ToolCall("1", "Read", {})), "I look.\n\n[called Read with {}]"),
        ((ToolCall("1", "run", {"cmd": "é"}),), '[called run with {"cmd":"é"}]'),
        ((ToolResult("1", "Read", "a\nb\n"), Text("go on")), "[Read answered]\na\nb\n\ngo on"),
        ((ToolResult("1", "Read", "gone", is_error=True),), "[Read failed]\ngone"),
        ((ToolResult("1", "Read", ""),), "[Read answered]"),
    ],
)
def test_a_turn_reads_as_what_was_said_called_and_answered(
    blocks: tuple[Block, ...], text: str
) -> None:
    assert readable(Turn("assistant", blocks)) == text
