"""Calls and results as plain text, for families whose models know no tools."""

from models.conversation import Block, Text, Thinking, ToolCall, Turn
from models.parsing.json_text import write_json


def readable(turn: Turn) -> str:
    """What the turn says, calls and results included, so that a conversation that was begun with
    tools can be understood without them. Earlier thinking is left out."""
    return "\n\n".join(_text(each) for each in turn.blocks if not isinstance(each, Thinking))


def _text(block: Block) -> str:
    match block:
        case Text(text) | Thinking(text):
            return text
        case ToolCall():
            return f"[called {block.name} with {write_json(block.arguments)}]"
        case _:
            outcome = "failed" if block.is_error else "answered"
            # A result of nothing leaves the line alone: no word stands for it.
            return f"[{block.name} {outcome}]\n{block.text}".rstrip("\n")
