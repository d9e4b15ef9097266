"""The tools whose schema the API knows by their type: what the model is told of them."""

from typing import Any

from models.conversation import Tool
from service.wire.tools import (
    BashTool,
    ClientTool,
    ComputerTool,
    FirstTextEditorTool,
    MemoryTool,
    TextEditorTool,
)

_STRING: dict[str, Any] = {"type": "string"}


def client_tool(tool: ClientTool) -> Tool:
    description, schema = _told(tool)
    return Tool(tool.name, description, schema, strict=bool(tool.strict))


def _told(tool: ClientTool) -> tuple[str, dict[str, Any]]:
    match tool:
        case BashTool():
            return _BASH
        case FirstTextEditorTool():
            return _editor(undo=True)
        case TextEditorTool():
            return _editor(undo=False)
        case MemoryTool():
            return _MEMORY
        case ComputerTool():
            return _computer(tool)


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _words(description: str, *values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values), "description": description}


def _text(description: str) -> dict[str, Any]:
    return {**_STRING, "description": description}


def _number(description: str) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "description": description}


def _pair(description: str, minimum: int) -> dict[str, Any]:
    return {
        "type": "array",
        "items": {"type": "integer", "minimum": minimum},
        "minItems": 2,
        "maxItems": 2,
        "description": description,
    }


_BASH = (
    "Runs a command in a bash session that lives on between calls, and answers with what it"
    " printed.",
    _object(
        {
            "command": _text("The command to run. Left out only to restart."),
            "restart": {"type": "boolean", "description": "Begin a new session instead."},
        }
    ),
)

_RANGE = _pair("The first and the last line to show, from 1; -1 as the last is the end.", -1)


def _editor(*, undo: bool) -> tuple[str, dict[str, Any]]:
    commands = ["view", "create", "str_replace", "insert", *(["undo_edit"] if undo else [])]
    return (
        "Looks at files and edits them. `view` shows a file or lists a folder; `create` writes a"
        " new file; `str_replace` replaces text that stands in the file exactly once; `insert`"
        " puts text after a line" + ("; `undo_edit` takes the last edit back." if undo else "."),
        _object(
            {
                "command": _words("What to do.", *commands),
                "path": _text("The absolute path of the file or folder."),
                "file_text": _text("For create: all of the new file."),
                "old_str": _text("For str_replace: the text to replace, verbatim."),
                "new_str": _text(
                    "For str_replace: what takes its place; nothing if it is left out."
                    + (" For insert: the text to put in." if undo else "")
                ),
                "insert_line": _number("For insert: the line after which; 0 is the beginning."),
                **({} if undo else {"insert_text": _text("For insert: the text to put in.")}),
                "view_range": _RANGE,
            },
            "command",
            "path",
        ),
    )


_MEMORY = (
    "Keeps notes in files below /memories, which are there in later conversations too. `view`"
    " shows a file or lists a folder; `create` writes a file; `str_replace` replaces text that"
    " stands in it exactly once; `insert` puts text after a line; `delete` and `rename` do so.",
    _object(
        {
            "command": _words(
                "What to do.", "view", "create", "str_replace", "insert", "delete", "rename"
            ),
            "path": _text("The file or folder, below /memories."),
            "view_range": _RANGE,
            "file_text": _text("For create: all of the file."),
            "old_str": _text("For str_replace: the text to replace, verbatim."),
            "new_str": _text("For str_replace: what takes its place."),
            "insert_line": _number("For insert: the line after which; 0 is the beginning."),
            "insert_text": _text("For insert: the text to put in."),
            "old_path": _text("For rename: what is renamed."),
            "new_path": _text("For rename: its new path."),
        },
        "command",
    ),
)

_FIRST_ACTIONS = (
    "key",
    "type",
    "mouse_move",
    "left_click",
    "left_click_drag",
    "right_click",
    "middle_click",
    "double_click",
    "screenshot",
    "cursor_position",
)
_LATER_ACTIONS = (
    "left_mouse_down",
    "left_mouse_up",
    "scroll",
    "hold_key",
    "wait",
    "triple_click",
)


def _computer(tool: ComputerTool) -> tuple[str, dict[str, Any]]:
    screen = f"{tool.display_width_px} by {tool.display_height_px} pixels"
    actions, more = [*_FIRST_ACTIONS], dict[str, Any]()
    if tool.type != "computer_20241022":
        actions += _LATER_ACTIONS
        more = {
            "scroll_direction": _words("For scroll.", "up", "down", "left", "right"),
            "scroll_amount": _number("For scroll: how many steps of the wheel."),
            "duration": {"type": "number", "minimum": 0, "description": "In seconds."},
            "start_coordinate": _pair("For left_click_drag: x and y where it begins.", 0),
        }
    if tool.enable_zoom:
        actions.append("zoom")
        more["region"] = {
            "type": "array",
            "items": {"type": "integer", "minimum": 0},
            "minItems": 4,
            "maxItems": 4,
            "description": "For zoom: left, top, right and bottom of what is shown larger.",
        }
    return (
        f"Uses a computer by its screen ({screen}, x to the right and y down from the left upper"
        " corner), mouse and keyboard. Take a screenshot to see what an action did.",
        _object(
            {
                "action": _words("What to do.", *actions),
                "coordinate": _pair("x and y, for actions of the mouse.", 0),
                "text": _text("What to type, or the keys to press, such as ctrl+s."),
                **more,
            },
            "action",
        ),
    )
