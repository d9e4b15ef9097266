"""Muse Glimmer: messages between the user, the assistant, itself and its tools."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from models.catalog import Checkpoint, CheckpointError
from models.conversation import (
    AnswerForm,
    Conversation,
    Effort,
    Text,
    Thinking,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)
from models.families.chat_template import ChatTemplate, Message, TemplateFailed, functions
from models.families.family import Capabilities, Family, NotRendered, PreparedPrompt
from models.families.glimmer_answer import (
    MARKERS,
    MESSAGE,
    MESSAGE_END,
    RECIPIENTS,
    START,
    TURN_END,
    GlimmerSyntax,
)
from models.families.glimmer_guide import glimmer_guide
from models.families.kept_heads import Head, KeptHeads
from models.families.own_tokens import OwnTokens
from models.families.prompt_tokens import Piece, PromptTokens
from models.grammar.guide_spec import GuideSpec
from models.grammar.validation import Schemas
from models.parsing.answer import AnswerParser

_ANSWER = "assistant"
_STRENGTHS: dict[Effort, str] = {
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "xhigh",
    "max": "xhigh",
}
_USER: Message = {"role": "user", "content": "x"}

Pieces = Iterator[Piece]


class GlimmerFamily(Family):
    """The first system message, with the tools and the reasoning strength, is written by the
    checkpoint's own template, and all other messages are ours: unlike there, text beside calls is
    kept, and a later system turn is a message of its own, without the tools once more.

    Where the model is not to think, its answer is addressed to the user from the start; if there
    are tools, the guide leaves it the choice between these and the user.
    """

    name = "glimmer"
    capabilities = Capabilities(
        tools=True,
        structured_outputs=True,
        thinking=frozenset({"adaptive", "enabled", "between_tools"}),
        efforts=tuple(_STRENGTHS),
    )

    def __init__(self, checkpoint: Checkpoint) -> None:
        """Raises CheckpointError if the checkpoint's own template is not of this form."""
        self._tokens = PromptTokens(checkpoint)
        self._template = ChatTemplate(checkpoint, self._tokens)
        self._heads = KeptHeads()
        names = (*MARKERS, TURN_END)
        self._ids: dict[str, int] = dict(zip(names, self._tokens.ids(*names), strict=True))
        self._start, self._message, self._message_end, self._turn_end = (
            self._ids[each] for each in (START, MESSAGE, MESSAGE_END, TURN_END)
        )
        self.stop_ids = checkpoint.stop_ids | {self._turn_end}
        self._assistant = self._tokens.plain(_ANSWER)
        self._own = OwnTokens(self._tokens, (self._ids[each] for each in MARKERS))
        try:
            self._head("x", (), None)
        except (TemplateFailed, ValueError) as error:
            raise CheckpointError(
                f"{checkpoint.id} has a chat template that does not write Muse Glimmer's messages "
                f"({error})"
            ) from error

    def render(self, conversation: Conversation) -> PreparedPrompt:
        turns, form = conversation.turns, conversation.form
        if taken := RECIPIENTS & {each.name for each in form.tools}:
            raise NotRendered(
                f"the tool {min(taken)} has the name of another whom the model writes to; rename it"
            )
        system = turns[0].text if turns[0].role == "system" else ""
        try:
            head = self._head(system, form.listed_tools, conversation.effort)
        except (TemplateFailed, ValueError) as error:
            raise NotRendered(
                f"the model's chat template cannot write the system turn and the tools: {error}"
            ) from error
        pieces: list[Piece] = list(head)
        for each in turns[1 if system else 0 : -1 if conversation.prefills else None]:
            pieces += self._turn(each)
        if conversation.prefills:
            pieces += self._begun(turns[-1])
            if turns[-1].blocks and isinstance(turns[-1].blocks[-1], Text):
                return PreparedPrompt(self._tokens.encode(pieces), "text")
        before = self._tokens.encode(pieces)
        to_choose = form.thinking.thinks or form.may_call
        recipient = () if to_choose else (" to=user", self._message)
        return PreparedPrompt(
            before + self._tokens.encode((self._start, _ANSWER, *recipient)),
            "header" if to_choose else "text",
            None if conversation.prefills else len(before),
        )

    def encoded_at_once(self, turns: Iterable[str]) -> Iterable[str]:
        return self._tokens.encoded_at_once(turns)

    def parser(self, form: AnswerForm, opens: str = "text") -> AnswerParser:
        return AnswerParser(
            self._tokens.token_bytes,
            GlimmerSyntax(form, Schemas(form.tools).fault, opens),
            markers={self._ids[each]: each for each in MARKERS},
            stop_sequences=form.stop_sequences,
        )

    def guide(self, form: AnswerForm, opens: str = "text") -> GuideSpec | None:
        return glimmer_guide(form, opens, self._ids, self._assistant)

    def _head(self, system: str, tools: Sequence[Tool], effort: Effort | None) -> Head:
        """All up to the first message that is not the system's. Raises TemplateFailed, or
        ValueError if what follows is not written as expected."""
        messages = [{"role": "system", "content": system}, _USER] if system else [_USER]
        offered = functions(tools)
        strength = {"reasoning_strength": _STRENGTHS[effort]} if effort else {}

        def write() -> list[str | int]:
            pieces = self._template.pieces(
                messages, tools=offered, add_generation_prompt=True, **strength
            )
            rest = [*self._turn(Turn.of("user", "x")), self._start, _ANSWER]
            if pieces[-len(rest) :] != rest:
                raise ValueError(
                    "a user's message and the beginning of an answer are not as expected"
                )
            return pieces[: -len(rest)]

        return self._heads.of([system, offered, strength], write)

    def _turn(self, turn: Turn) -> Pieces:
        if turn.role == "assistant":
            own = self._own.of(turn)
            if own and self._is_assistants(own):
                yield from (own, self._turn_end)
            else:
                yield from self._answer(turn)
            return
        for each in turn.blocks:
            if isinstance(each, ToolResult):
                # The format has no mark of its own for what failed.
                said = f"Error: {each.text}" if each.is_error else each.text
                text = f'<tool_output name="{each.name}">\n{said}\n</tool_output>'
                yield from (self._start, f"tool {each.name}", self._message, text, self._turn_end)
        if turn.text:
            yield from (self._start, turn.role, self._message, turn.text, self._turn_end)

    def _is_assistants(self, own: tuple[int, ...]) -> bool:
        """Whether all messages in it are: a model could write one in the name of the system."""
        starts = [place + 1 for place, each in enumerate(own) if each == self._start]
        return all(own[each : each + len(self._assistant)] == self._assistant for each in starts)

    def _answer(self, turn: Turn) -> Pieces:
        says = [each for each in turn.blocks if not isinstance(each, Thinking)]
        pieces = list(self._messages(turn))
        if not says:
            pieces += (self._start, f"{_ANSWER} to=user", self._message, self._message_end)
        yield from pieces[:-1]
        yield self._turn_end

    def _begun(self, turn: Turn) -> Pieces:
        """A turn that the answer goes on with."""
        pieces = list(self._messages(turn))
        ends_open = bool(turn.blocks) and isinstance(turn.blocks[-1], Text)
        yield from pieces[:-1] if ends_open else pieces

    def _messages(self, turn: Turn) -> Pieces:
        """Each with an end after which the turn goes on."""
        for each in turn.blocks:
            match each:
                case Thinking(text):
                    recipient = "self"
                case Text(text):
                    recipient = "user"
                case ToolCall():
                    recipient, text = each.name, _call(each)
                case ToolResult():
                    raise ValueError("a result in an assistant's turn")
            yield from (self._start, f"{_ANSWER} to={recipient}", self._message)
            yield from (text, self._message_end)


def _call(call: ToolCall) -> str:
    parameters = "".join(
        f'<atem:parameter name="{name}">{_value(value)}</atem:parameter>\n'
        for name, value in call.arguments.items()
    )
    return (
        f'<atem:function_calls>\n<atem:invoke name="{call.name}">\n{parameters}'
        "</atem:invoke>\n</atem:function_calls>"
    )


def _value(value: Any) -> str:
    match value:
        case str():
            return value
        case dict() | list():
            return json.dumps(cast(Any, value), ensure_ascii=False)
        case bool() | None:
            return json.dumps(value)
        case _:
            return str(value)
