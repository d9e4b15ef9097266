"""Tools and the choice among them, as clients send them."""

from typing import Annotated, Any, Literal

from service.wire.shape import OneOf, Shape

# Only that a tool is an object: requests that bring any are refused by name.
Tool = dict[str, Any]


class FreeChoice(Shape):
    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool | None = None


class NamedChoice(Shape):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


ToolChoice = Annotated[FreeChoice | NamedChoice, OneOf()]
