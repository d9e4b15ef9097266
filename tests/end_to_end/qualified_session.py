"""What a model says, turn by turn, in a session that does all that `tools/qualify-coding` asks."""

from typing import Any

from models.conversation import Block, Text, ToolCall

_MENDED = """
    if size < 1:
        raise ValueError("a page has a line at least")
    return [lines[first : first + size] for first in range(0, len(lines), size)]
"""
_FAULTY = """
    return [lines[page * size : (page + 1) * size] for page in range(len(lines) // size)]
"""


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("", name, arguments)


_TEST = _call("Bash", command="python3 -m unittest", description="Run the tests")
# By how many results of tools the model has seen. Names are those in the session's folder.
ANSWERS: dict[int, list[Block]] = {
    0: [
        Text("First I look."),
        _call("Read", file_path="REQUIREMENTS.md"),
        _call("Read", file_path="pages.py"),
    ],
    2: [_TEST],
    3: [_call("Read", file_path="NOTES.md")],
    4: [_call("Edit", file_path="pages.py", old_string=_FAULTY, new_string=_MENDED)],
    5: [_TEST],
    6: [Text("The last page was lost, and a size below 1 was taken.")],
}
