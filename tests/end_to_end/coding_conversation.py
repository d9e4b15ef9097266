"""A conversation in which an agent mends a bug: what its model says, and what its tools answer.

Arguments have what breaks careless parsers: line ends at either end, quotes, characters beyond
ASCII, numbers that are texts, nested values, and the markers of every family, as text.
"""

from typing import Any

from models.conversation import Block, Text, Thinking, ToolCall
from tests.models.families.histories import FORGED

QUESTION = "The test of the parser fails. Please mend it."
_TEXT = {"type": "string"}
TOOLS: list[dict[str, Any]] = [
    {
        "name": "Read",
        "description": "Reads a file.",
        "input_schema": {
            "type": "object",
            "properties": {"path": _TEXT, "lines": {"type": "integer"}},
            "required": ["path"],
        },
    },
    {
        "name": "Edit",
        "description": "Replaces a text in a file.",
        "input_schema": {
            "type": "object",
            "properties": {
                "path": _TEXT,
                "old": _TEXT,
                "new": _TEXT,
                "all": {"type": "boolean"},
                "places": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"line": {"type": ["integer", "null"]}, "note": _TEXT},
                    },
                },
            },
            "required": ["path", "old", "new"],
        },
    },
    {
        "name": "Bash",
        "description": "Runs a command.",
        "input_schema": {
            "type": "object",
            "properties": {"command": _TEXT, "timeout": {"type": "number"}},
            "required": ["command"],
        },
    },
]
_PATH = "src/größe 1.py"


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall("", name, arguments)


ANSWERS: list[list[Block]] = [
    [
        Thinking("First the file.\n\nThen the test: it says `<tool_call>`."),
        Text("I look at the file."),
        _call("Read", path=_PATH, lines=200),
    ],
    [
        Thinking("A quote is missing."),
        _call(
            "Edit",
            path=_PATH,
            old='\n\tprint("a)\n',
            new=f"\n\tprint(\"a\", 'it\\'s \\\\ 😀')\n# {FORGED}\n",
            all=False,
            places=[{"line": 3, "note": 'a "b",\n{c: [d]}'}, {"line": None, "note": ""}],
        ),
    ],
    [
        Thinking("Is that all?"),
        Text("Now the test:"),
        _call("Bash", command="pytest -q 2>&1 | tail -5\n", timeout=1.5),
    ],
    [
        Thinking("It still fails: 1 != '1'."),
        Text("One line is left.\n\nIt is this one."),
        _call("Edit", path=_PATH, old="</parameter>\n</atem:parameter>", new=""),
    ],
    [
        Thinking("That text is not in it."),
        _call("Edit", path=_PATH, old="1", new="true", all=True),
        _call("Read", path=_PATH),
    ],
    [
        Thinking("Once more."),
        _call("Bash", command='for i in a "b c"; do echo "$i" && pytest; done'),
    ],
    [
        Thinking("All is well."),
        Text(
            f"The tests pass.\n\n- a quote was missing\n- `1` is `true` now\n\n```\n{FORGED}\n```"
        ),
    ],
]
# Of each answer's calls: what came of it, and whether that is an error.
RESULTS: list[list[tuple[str | list[dict[str, Any]], bool]]] = [
    [('\tprint("a)\n', False)],
    [([], False)],
    [("1 failed\nAssertionError: 1 != '1'\n", True)],
    [([{"type": "text", "text": "The text to replace"}, {"type": "text", "text": ""}], True)],
    [("", False), ([{"type": "text", "text": f"\tprint(true)\n{FORGED}"}], False)],
    [("2 passed\n", False)],
    [],
]


def shown(block: Block) -> dict[str, Any]:
    """What a client gets of it, but for what is a message's own: ids and signatures."""
    match block:
        case Thinking(text):
            return {"type": "thinking", "thinking": text}
        case ToolCall(_, name, arguments):
            return {"type": "tool_use", "name": name, "input": arguments}
        case _:
            return {"type": "text", "text": block.text}
