"""Family-neutral conversation: what families render, and what an answer to it may hold."""

from dataclasses import dataclass, field
from typing import Any, Literal

Role = Literal["system", "user", "assistant"]
Effort = Literal["low", "medium", "high", "xhigh", "max"]


@dataclass(frozen=True, slots=True)
class Mark:
    """After so many characters of a text, the prompt up to there is to be kept for so long."""

    characters: int
    ttl_seconds: int


@dataclass(frozen=True, slots=True)
class Text:
    text: str
    marks: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Thinking:
    """What the model thought in an earlier answer, verbatim."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """With `kept_seconds`, the prompt up to the end of the call is to be kept for so long."""

    id: str
    name: str
    arguments: dict[str, Any]
    kept_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What came of the call `call_id` of the tool `name`; perhaps nothing, as an empty text.

    If it `defines_tools`, the model knows them from nowhere else."""

    call_id: str
    name: str
    text: str
    is_error: bool = False
    marks: tuple[Mark, ...] = ()
    defines_tools: bool = False


Block = Text | Thinking | ToolCall | ToolResult


@dataclass(frozen=True, slots=True)
class Turn:
    """What one side says. Roles may appear in any order, a system turn anywhere.

    No two neighbouring blocks are texts. System turns have text only; thinking and calls stand in
    assistant turns, results in user turns, before all else there.

    `tokens` are those of an answer that the model itself gave: the end of its prompt from
    `PreparedPrompt.answer_from` on, and all that it generated. A family that gives such a place
    writes the turn with them, so that the prompt of a conversation begins the next one.
    """

    role: Role
    blocks: tuple[Block, ...]
    tokens: tuple[int, ...] = ()

    @classmethod
    def of(cls, role: Role, text: str) -> "Turn":
        return cls(role, (Text(text),) if text else ())

    @property
    def text(self) -> str:
        """Its texts, without all else."""
        return "".join(each.text for each in self.blocks if isinstance(each, Text))


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the model may call. `schema` is a JSON Schema of type object (2020-12).

    With `kept_seconds`, the prompt up to the end of its definition is to be kept for so long. The
    definition of one that `is_found` stands in the result that found it, and nowhere else. One that
    runs `on_server` is run by whoever serves the model.
    """

    name: str
    description: str
    schema: dict[str, Any]
    strict: bool = False
    kept_seconds: int | None = None
    is_found: bool = False
    on_server: bool = False


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """`any` and `tool` (which has a `name`) ask for a call; `parallel` allows more than one."""

    kind: Literal["auto", "any", "tool", "none"] = "auto"
    name: str | None = None
    parallel: bool = True


@dataclass(frozen=True, slots=True)
class ThinkingMode:
    """`enabled` has the most tokens that thinking may take, its delimiters included.

    With `between_tools` the model does not think, but what it writes before a call counts as
    thinking.
    """

    kind: Literal["disabled", "adaptive", "enabled", "between_tools"] = "disabled"
    budget_tokens: int | None = None

    @property
    def thinks(self) -> bool:
        return self.kind in ("adaptive", "enabled")


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """What an answer may hold: all that is needed to guide it and to parse it.

    With `guided` the engine lets the model write valid calls and output only.
    """

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = ToolChoice()
    thinking: ThinkingMode = ThinkingMode()
    output_schema: dict[str, Any] | None = None
    stop_sequences: tuple[str, ...] = ()
    guided: bool = True

    @property
    def listed_tools(self) -> tuple[Tool, ...]:
        """Those that a prompt lists, before all that is said."""
        return tuple(each for each in self.tools if not each.is_found)

    @property
    def may_call(self) -> bool:
        return bool(self.tools) and self.choice.kind != "none"

    @property
    def must_call(self) -> bool:
        return self.may_call and self.choice.kind in ("any", "tool")

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """Those that the choice leaves."""
        if not self.may_call:
            return ()
        if self.choice.kind == "tool":
            return tuple(each for each in self.tools if each.name == self.choice.name)
        return self.tools


@dataclass(frozen=True, slots=True)
class Conversation:
    """A normalised conversation: no two neighbouring turns share a role.

    A last turn by the assistant is a prefill: the answer continues its text. Every call but those
    of a prefill has its result in the user turn after it. `effort` is one that the family has.
    """

    turns: tuple[Turn, ...]
    form: AnswerForm = field(default_factory=AnswerForm)
    effort: Effort | None = None

    @property
    def prefills(self) -> bool:
        return bool(self.turns) and self.turns[-1].role == "assistant"
