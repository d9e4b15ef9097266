"""Bodies of `POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, StringConstraints
from pydantic_core import PydanticCustomError

from service.wire.blocks import AssistantBlock, SystemBlock, TextBlock, UserBlock
from service.wire.context_edits import Compaction, ContextManagement
from service.wire.shape import CacheControl, FirstFault, OneOf, Shape, StringOrList
from service.wire.tools import Tool, ToolChoice

Effort = Literal["low", "medium", "high", "xhigh", "max"]


Display = Literal["summarized", "omitted", "updates"]


class AdaptiveThinking(Shape):
    type: Literal["adaptive"]
    display: Display | None = None


class EnabledThinking(Shape):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1024)
    display: Display | None = None


class NoThinking(Shape):
    type: Literal["disabled", "between_tools"]


Thinking = Annotated[AdaptiveThinking | EnabledThinking | NoThinking, OneOf()]


class OutputFormat(Shape):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema")


class OutputConfig(Shape):
    effort: Effort | None = None
    format: OutputFormat | None = None
    task_budget: dict[str, Any] | None = None


class Metadata(Shape):
    user_id: str | None = None


class Diagnostics(Shape):
    """Asks why so little of the prompt was in the cache, compared to that of an earlier message."""

    previous_message_id: str | None = None


class NewThread(Shape):
    type: Literal["create"]


class ContinuedThread(Shape):
    type: Literal["continue"]
    previous_message_id: str


class UserMessage(Shape):
    role: Literal["user"]
    content: Annotated[str | Annotated[list[UserBlock], FirstFault()], StringOrList()]


class AssistantMessage(Shape):
    role: Literal["assistant"]
    content: Annotated[str | Annotated[list[AssistantBlock], FirstFault()], StringOrList()]


class SystemMessage(Shape):
    role: Literal["system"]
    # Absent or empty where the message only changes `output_config`.
    content: Annotated[str | Annotated[list[SystemBlock], FirstFault()], StringOrList()] | None = (
        None
    )
    clear_at: Literal["never", "next_user_message"] | None = None
    output_config: OutputConfig | None = None


Message = Annotated[UserMessage | AssistantMessage | SystemMessage, OneOf(key="role")]


def _not_blank(text: str) -> str:
    if text.isspace():
        raise PydanticCustomError("blank", "String should hold more than whitespace")
    return text


StopSequence = Annotated[
    str, StringConstraints(min_length=1, max_length=1024), AfterValidator(_not_blank)
]


class BaseRequest(Shape):
    """What both endpoints accept, so that both give the same answer to the same fault."""

    model: str = Field(min_length=1)
    messages: Annotated[list[Message], FirstFault()] = Field(min_length=1)
    system: Annotated[str | Annotated[list[TextBlock], FirstFault()], StringOrList()] | None = None
    stop_sequences: Annotated[list[StopSequence], FirstFault()] | None = Field(
        default=None, max_length=64
    )
    stream: bool | None = None
    temperature: float | None = Field(default=None, ge=0, le=1)
    top_p: float | None = Field(default=None, ge=0, le=1)
    top_k: int | None = Field(default=None, ge=0)
    # Not in the first-party API: makes sampling repeatable.
    seed: int | None = Field(default=None, ge=0, le=2**63 - 1)
    tools: Annotated[list[Tool], FirstFault()] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    speed: Literal["standard", "fast"] | None = None
    inference_geo: str | None = None
    diagnostics: Diagnostics | None = None
    context_management: ContextManagement | None = None
    compaction: Compaction | None = None
    mcp_servers: Annotated[list[dict[str, Any]], FirstFault()] | None = None
    # Any value: whatever it holds, the answer is the same refusal.
    container: Any = None
    thread: Annotated[NewThread | ContinuedThread, OneOf()] | None = None


class MessagesRequest(BaseRequest):
    # 0 is legal: it fills the prompt cache and generates nothing.
    max_tokens: int = Field(ge=0)


class CountTokensRequest(BaseRequest):
    pass
