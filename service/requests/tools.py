"""The tools of a request, and which of them the model is shown."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from models.conversation import Tool, ToolChoice
from models.grammar.schemas import SchemaError
from models.grammar.validation import Validator
from service.errors import ApiError
from service.requests.client_tools import client_tool
from service.requests.found_tools import definitions_of, references_in
from service.requests.served import Served
from service.requests.tool_changes import changes_in
from service.requests.toolbox import Toolbox
from service.tool_search.definitions import search_tool
from service.wire.blocks import ToolDefinition
from service.wire.requests import BaseRequest
from service.wire.tools import (
    AnyTool,
    CustomTool,
    NamedChoice,
    RankedSearchTool,
    RegexSearchTool,
)


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools that the model is shown, and those it may search; `paths` are those of all tools in
    the request. `definitions` is what the model is told where it finds one, by its name."""

    tools: tuple[Tool, ...]
    choice: ToolChoice
    paths: Mapping[str, str]
    findable: tuple[Tool, ...]
    definitions: Mapping[str, str]


def offered(request: BaseRequest, served: Served, kept: Mapping[str, int]) -> Offered:
    """A tool with `defer_loading` is shown once a message refers to it, and all as the system
    messages have changed them by the end. What is `kept` of them, by its path, is marked. Raises
    ApiError 400."""
    toolbox = Toolbox(references_in(request))
    if request.tools:
        _check_supported("tools", served)
        if all(each.defer_loading for each in request.tools):
            raise ApiError.invalid(
                "tools: at least one tool must not have defer_loading: the one by which the others"
                " are found"
            )
    for index, wire in enumerate(request.tools or ()):
        path = f"tools.{index}"
        if first := toolbox.paths.get(wire.name):
            raise ApiError.invalid(
                f"{path}.name: tool names must be unique, and '{wire.name}' is that of {first}"
            )
        tool = _tool(wire, path, served)
        toolbox.define(replace(tool, kept_seconds=kept.get(path)), wire, path)
    for path, block in changes_in(request):
        if isinstance(block.tool, ToolDefinition):
            wire, path = block.tool.definition, f"{path}.tool.definition"
            _check_supported(path, served)
            toolbox.check_name(wire, path)
            toolbox.define(_tool(wire, path, served), wire, path)
        else:
            toolbox.change(block, path)
    choice = _choice(request, {each.name for each in toolbox.shown}, toolbox.paths, served)
    searches = any(each.on_server for each in toolbox.shown)
    return Offered(
        toolbox.shown,
        choice,
        toolbox.paths,
        toolbox.findable if searches else (),
        definitions_of(toolbox.deferred),
    )


def _check_supported(path: str, served: Served) -> None:
    if not served.capabilities.tools:
        raise ApiError.invalid(
            f"{path}: tool use is not supported by {served.model}; send the request without tools"
        )


def _tool(wire: AnyTool, path: str, served: Served) -> Tool:
    if wire.allowed_callers and "direct" not in wire.allowed_callers:
        raise ApiError.invalid(
            f"{path}.allowed_callers: code execution is not supported; allow 'direct' calls"
        )
    if wire.strict and not served.grammar:
        raise ApiError.invalid(
            f"{path}.strict: it needs the grammar, which is off here; leave it out, or start"
            " the service with --grammar on"
        )
    match wire:
        case CustomTool():
            return _custom(wire, path)
        case RegexSearchTool() | RankedSearchTool():
            return search_tool(wire)
        case _:
            return client_tool(wire)


def _custom(tool: CustomTool, path: str) -> Tool:
    schema = _of_object(tool.input_schema, f"{path}.input_schema")
    return Tool(tool.name, tool.description or "", schema, strict=bool(tool.strict))


def _of_object(schema: dict[str, Any], path: str) -> dict[str, Any]:
    kind = schema.get("type")
    if kind is not None and kind != "object" and not (isinstance(kind, list) and "object" in kind):
        raise ApiError.invalid(f"{path}.type: Input should be 'object'")
    try:
        Validator(schema, of_arguments=True)
    except SchemaError as error:
        raise ApiError.invalid(f"{path}: the schema {error}") from error
    return schema if kind == "object" else {**schema, "type": "object"}


def _choice(
    request: BaseRequest, shown: Collection[str], paths: Mapping[str, str], served: Served
) -> ToolChoice:
    choice = request.tool_choice
    if choice is None:
        return ToolChoice()
    parallel = not choice.disable_parallel_tool_use
    name = choice.name if isinstance(choice, NamedChoice) else None
    if choice.type in ("any", "tool"):
        _check_forced(name, shown, paths, served)
    return ToolChoice(choice.type, name, parallel)


def _check_forced(
    name: str | None, shown: Collection[str], paths: Mapping[str, str], served: Served
) -> None:
    if not served.capabilities.tools:
        raise ApiError.invalid(
            f"tool_choice: tool use is not supported by {served.model}; use 'auto' or 'none'"
        )
    if not served.grammar:
        raise ApiError.invalid(
            "tool_choice.type: 'any' and 'tool' need the grammar, which is off here; use 'auto', or"
            " start the service with --grammar on"
        )
    if name is not None and name not in paths:
        raise ApiError.invalid(
            f"tool_choice.name: no tool is called '{name[:60]}'; name one of `tools`"
        )
    if not shown or (name is not None and name not in shown):
        raise ApiError.invalid(
            "tool_choice: there is no such tool to call; send it in `tools`, without defer_loading"
        )
