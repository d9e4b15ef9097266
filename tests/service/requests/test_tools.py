from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest

from models.conversation import Tool, ToolChoice
from models.grammar.json_grammar import call_arguments
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest
from tests.service.requests.served import (
    ABLE,
    EPHEMERAL,
    TINY,
    assistant,
    call,
    prepared,
    refusal,
    result,
    tool,
    user,
)

REFERRED = {"type": "tool_reference", "tool_name": "TaskStop"}


def shown(**fields: Any) -> tuple[Tool, ...]:
    return prepared(**fields).conversation.form.tools


def test_custom_tools_are_shown_as_they_are() -> None:
    schema = {"type": "object", "properties": {"no": False, "k": {"const": 3}}}
    given = [
        tool("a", description="does a", input_schema=schema, strict=True, type="custom"),
        tool(
            "b", type=None, cache_control=EPHEMERAL, input_examples=[{}], allowed_callers=["direct"]
        ),
        tool("c", eager_input_streaming=True, description=None, defer_loading=False),
    ]
    assert shown(tools=given) == (
        Tool("a", "does a", schema, strict=True),
        Tool("b", "", {"type": "object"}, kept_seconds=300),
        Tool("c", "", {"type": "object"}),
    )
    assert prepared(tools=given).ignored == ("tools.input_examples",)


@pytest.mark.parametrize("schema", [{}, {"anyOf": [{}]}, {"type": ["object", "null"]}])
def test_the_type_of_a_schema_may_be_missing(schema: dict[str, Any]) -> None:
    assert shown(tools=[tool(input_schema=schema)])[0].schema == {**schema, "type": "object"}


DEEP: dict[str, Any] = {"type": "object"}
for _ in range(100):
    DEEP = {"type": "object", "properties": {"x": DEEP}}


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ([tool(input_schema={"type": "array"})], "tools.0.input_schema.type: Input should be"),
        ([tool(), tool("b", input_schema=DEEP)], "tools.1.input_schema: the schema is nested more"),
        (
            [tool(input_schema={"properties": []})],
            "tools.0.input_schema: the schema has properties that are not an object",
        ),
        ([{"name": "a"}], "tools.0.input_schema: Field required"),
        ([{"input_schema": {}}], "tools.0.name: Field required"),
        ([tool("a"), tool("")], "tools.1.name: Input should be 1 to 128 of the characters"),
        ([tool("a b")], "tools.0.name: Input should be 1 to 128 of the characters"),
        ([tool("a" * 129)], "tools.0.name: Input should be 1 to 128 of the characters"),
        ([tool("a\n")], "tools.0.name: Input should be 1 to 128 of the characters"),
        (
            [tool("a"), tool("b"), tool("a")],
            "tools.2.name: tool names must be unique, and 'a' is that of tools.0",
        ),
        (
            [tool("a", allowed_callers=["code_execution_20260120"])],
            "tools.0.allowed_callers: code execution is not supported",
        ),
        (
            [tool("a"), {"type": "web_search_20250305", "name": "web_search"}],
            "tools.1.type: 'web_search_20250305' would run on the server, which has no such tool",
        ),
        (
            [{"type": "mcp_toolset", "mcp_server_name": "x"}],
            "tools.0.type: 'mcp_toolset' would run on the server",
        ),
        (
            [{"type": "computer_toolset_20260801"}],
            "tools.0.type: 'computer_toolset_20260801' is not supported; offer its members",
        ),
        ([{"type": "made_up", "name": "x"}], "tools.0.type: unknown tool type 'made_up'"),
        ([{"type": "bash_20250124", "name": "sh"}], "tools.0.name: Input should be 'bash'"),
        (
            [{"type": "computer_20251124", "name": "computer"}],
            "tools.0.display_width_px: Field required",
        ),
    ],
)
def test_tools_that_cannot_be_are_refused_by_place_and_name(
    tools: list[Any], message: str, kind: type[BaseRequest]
) -> None:
    assert refusal(kind, tools=tools).message.startswith(message)


def test_a_model_without_tools_refuses_them_by_name() -> None:
    assert refusal(served=TINY, tools=[tool()]).message == (
        "tools: tool use is not supported by tiny; send the request without tools"
    )
    for choice in ({"type": "any"}, {"type": "tool", "name": "Read"}):
        assert refusal(served=TINY, tool_choice=choice).message == (
            "tool_choice: tool use is not supported by tiny; use 'auto' or 'none'"
        )


def test_a_deferred_tool_is_shown_once_it_is_referred_to() -> None:
    tools = [tool("ToolSearch"), tool("TaskStop", defer_loading=True)]
    assert [each.name for each in shown(tools=tools)] == ["ToolSearch"]
    found = [user("a"), assistant([call("1", "ToolSearch")]), user([result("1", [REFERRED])])]
    assert [each.name for each in shown(tools=tools, messages=found)] == ["ToolSearch", "TaskStop"]


def test_the_choice_is_kept() -> None:
    def choice(**given: Any) -> ToolChoice:
        return prepared(tools=[tool("a")], tool_choice=given or None).conversation.form.choice

    assert choice() == ToolChoice()
    assert choice(type="none") == ToolChoice("none")
    assert choice(type="auto", disable_parallel_tool_use=True) == ToolChoice(parallel=False)
    assert choice(type="any", disable_parallel_tool_use=False) == ToolChoice("any")
    assert choice(type="tool", name="a") == ToolChoice("tool", "a")


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (
            {"type": "tool", "name": "nope"},
            "tool_choice.name: no tool is called 'nope'; name one of `tools`",
        ),
        (
            {"type": "tool", "name": "late"},
            "tool_choice: there is no such tool to call; send it in `tools`, without defer_loading",
        ),
    ],
)
def test_a_choice_of_no_tool_is_refused(choice: dict[str, Any], message: str) -> None:
    tools = [tool("a"), tool("late", defer_loading=True)]
    assert refusal(tools=tools, tool_choice=choice).message == message


def test_any_tool_needs_one() -> None:
    assert refusal(tool_choice={"type": "any"}).message.startswith("tool_choice: ")


def test_without_the_grammar_nothing_is_promised() -> None:
    loose = replace(ABLE, grammar=False)
    assert not prepared(served=loose, tools=[tool()]).conversation.form.guided
    for fields, field in [
        ({"tools": [tool("a"), tool("b", strict=True)]}, "tools.1.strict: "),
        ({"tools": [tool("a")], "tool_choice": {"type": "any"}}, "tool_choice.type: "),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
            "output_config.format: ",
        ),
    ]:
        message = refusal(served=loose, **fields).message
        assert message.startswith(field)
        assert "--grammar on" in message


SCREEN = {"display_width_px": 800, "display_height_px": 600}
CLIENT_TOOLS = [
    ("bash_20250124", "bash", {}, {"command": "ls"}),
    ("bash_20241022", "bash", {}, {"restart": True}),
    (
        "text_editor_20241022",
        "str_replace_editor",
        {},
        {"command": "undo_edit", "path": "/a"},
    ),
    (
        "text_editor_20250124",
        "str_replace_editor",
        {},
        {"command": "insert", "path": "/a", "insert_line": 0, "new_str": "x"},
    ),
    (
        "text_editor_20250429",
        "str_replace_based_edit_tool",
        {},
        {"command": "view", "path": "/a", "view_range": [1, -1]},
    ),
    (
        "text_editor_20250728",
        "str_replace_based_edit_tool",
        {"max_characters": 100},
        {"command": "str_replace", "path": "/a", "old_str": "a", "new_str": ""},
    ),
    ("memory_20250818", "memory", {}, {"command": "rename", "old_path": "/a", "new_path": "/b"}),
    ("computer_20241022", "computer", SCREEN, {"action": "type", "text": "x"}),
    (
        "computer_20250124",
        "computer",
        SCREEN,
        {"action": "scroll", "coordinate": [1, 2], "scroll_direction": "up", "scroll_amount": 3},
    ),
    (
        "computer_20251124",
        "computer",
        {**SCREEN, "enable_zoom": True, "display_number": 1},
        {"action": "zoom", "region": [0, 0, 10, 10]},
    ),
]


@pytest.mark.parametrize(("type", "name", "fields", "arguments"), CLIENT_TOOLS)
def test_tools_known_by_their_type_are_shown_with_a_schema(
    type: str, name: str, fields: dict[str, Any], arguments: dict[str, Any]
) -> None:
    (made,) = shown(tools=[{"type": type, "name": name, **fields}])
    assert made.name == name
    assert len(made.description) > 40
    assert jsonschema_rs.is_valid(made.schema, arguments)
    assert not jsonschema_rs.is_valid(made.schema, {"made_up": 1})
    call_arguments(made.schema)
