"""What a request asks to be cleared from its prompt or summarised, as clients send it."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, PlainValidator
from pydantic_core import PydanticCustomError

from service.wire.shape import FirstFault, OneOf, Shape


class _ClosedShape(Shape):
    """One in which every field changes the prompt, so that none may be overlooked."""

    model_config = ConfigDict(extra="forbid")


class InputTokens(_ClosedShape):
    type: Literal["input_tokens"]
    value: int = Field(ge=0)


class ToolUses(_ClosedShape):
    type: Literal["tool_uses"]
    value: int = Field(ge=0)


class ThinkingTurns(_ClosedShape):
    type: Literal["thinking_turns"]
    value: int = Field(gt=0)


class AllThinking(_ClosedShape):
    type: Literal["all"]


def _all_as_object(keep: Any) -> Any:
    return {"type": "all"} if keep == "all" else keep


def _flag_or_names(value: Any) -> bool | list[str]:
    match value:
        case bool():
            return value
        case list() if all(isinstance(each, str) for each in value):  # pyright: ignore[reportUnknownVariableType]
            return value  # pyright: ignore[reportUnknownVariableType]
        case _:
            raise PydanticCustomError(
                "flag_or_names", "Input should be true, false or a list of tool names"
            )


class ClearToolUses(_ClosedShape):
    type: Literal["clear_tool_uses_20250919"]
    trigger: Annotated[InputTokens | ToolUses, OneOf()] | None = None
    keep: ToolUses | None = None
    clear_at_least: InputTokens | None = None
    exclude_tools: Annotated[list[str], FirstFault()] | None = None
    clear_tool_inputs: Annotated[bool | list[str], PlainValidator(_flag_or_names)] | None = None


class ClearThinking(_ClosedShape):
    type: Literal["clear_thinking_20251015"]
    keep: (
        Annotated[ThinkingTurns | AllThinking, OneOf(), BeforeValidator(_all_as_object)] | None
    ) = None


class Compact(_ClosedShape):
    type: Literal["compact_20260112"]
    trigger: InputTokens | None = None
    instructions: str | None = None
    pause_after_compaction: bool | None = None


ContextEdit = Annotated[ClearToolUses | ClearThinking | Compact, OneOf()]


class ContextManagement(Shape):
    edits: Annotated[list[ContextEdit], FirstFault()] | None = None


class Compaction(_ClosedShape):
    """Makes the whole request one for a summary."""

    type: Literal["summarize"]
    instructions: str | None = None
