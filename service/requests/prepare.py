"""A wire request as a conversation."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from models.conversation import AnswerForm, Conversation, Role, Turn
from service.errors import ApiError
from service.requests.answer_plan import Display
from service.requests.refusals import refuse_unsupported
from service.wire.blocks import AssistantBlock, SystemBlock, TextBlock, UserBlock
from service.wire.requests import (
    BaseRequest,
    CountTokensRequest,
    Message,
    MessagesRequest,
    SystemMessage,
    UserMessage,
)

_Content = str | Sequence[UserBlock | AssistantBlock | SystemBlock]

# Between text blocks of one turn, and between neighbouring turns of one role.
_PARAGRAPH = "\n\n"

# Blocks of earlier answers that are not shown to the model again.
_DROPPED = ("thinking", "redacted_thinking")

# Unknown to the shapes, and without any bearing on the answer.
_BILLING_FIELDS = frozenset({"fallback_credit_token", "billing_policy"})

# Keeps a header of these names short, whatever a request brings.
_MAX_IGNORED = 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation, and the names of the request's fields that had no effect on it.

    The names, 20 at most, are safe to put into a header.
    """

    conversation: Conversation
    ignored: tuple[str, ...]
    display: Display = "summarized"


def conversation_of(request: BaseRequest, *, model: str) -> Prepared:
    """The conversation that `request` holds, for `model` (its name in errors).

    Raises ApiError 400 for what is not supported, and for user turns that say nothing.
    """
    refuse_unsupported(request, model)
    turns = _merged(_turns_of(request, model))
    if all(turn.role == "system" for turn in turns):
        raise ApiError.invalid("messages: at least one user or assistant message is required")
    form = AnswerForm(stop_sequences=tuple(request.stop_sequences or ()))
    return Prepared(Conversation(turns, form), tuple(islice(_ignored(request), _MAX_IGNORED)))


def _turns_of(request: BaseRequest, model: str) -> Iterator[Turn]:
    if request.system is not None:
        texts = _texts(request.system, "system", model)
        yield Turn.of("system", _PARAGRAPH.join(texts))
    for index, message in enumerate(request.messages):
        yield _turn_of(message, f"messages.{index}", model)


def _turn_of(message: Message, path: str, model: str) -> Turn:
    if isinstance(message, SystemMessage) and message.clear_at == "next_user_message":
        raise ApiError.invalid(
            f"{path}.clear_at: 'next_user_message' is not supported; leave the message out of"
            " later requests instead"
        )
    texts = _texts(message.content or "", f"{path}.content", model)
    if isinstance(message, UserMessage) and not texts:
        raise ApiError.invalid(f"{path}.content: user messages must hold some text")
    return Turn.of(message.role, _PARAGRAPH.join(texts))


def _texts(content: _Content, path: str, model: str) -> list[str]:
    """The texts of one turn that are not empty."""
    if isinstance(content, str):
        return [content] if content else []
    texts: list[str] = []
    for index, block in enumerate(content):
        if isinstance(block, TextBlock):
            if block.text:
                texts.append(block.text)
        elif block.type not in _DROPPED:
            raise ApiError.invalid(
                f"{path}.{index}: {block.type} blocks are not supported by {model} yet;"
                " send their content as text"
            )
    return texts


def _merged(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Neighbours of one role become one turn; system turns that say nothing disappear."""
    merged: list[tuple[Role, list[str]]] = []
    for turn in turns:
        if turn.role == "system" and not turn.text:
            continue
        if not merged or merged[-1][0] != turn.role:
            merged.append((turn.role, []))
        if turn.text:
            merged[-1][1].append(turn.text)
    return tuple(Turn.of(role, _PARAGRAPH.join(texts)) for role, texts in merged)


def _ignored(request: BaseRequest) -> Iterator[str]:
    config = request.output_config
    if config is not None and config.effort is not None:
        yield "output_config.effort"
    if config is not None and config.task_budget is not None:
        yield "output_config.task_budget"
    if request.speed == "fast":
        yield "speed"
    if request.compaction is not None:
        yield "compaction"
    if any(isinstance(m, SystemMessage) and m.output_config for m in request.messages):
        yield "messages.output_config"
    no_bearing = _BILLING_FIELDS
    if isinstance(request, CountTokensRequest):
        no_bearing = no_bearing | MessagesRequest.model_fields.keys()
    for name, value in (request.model_extra or {}).items():
        if value is not None and name not in no_bearing:
            yield re.sub(r"[^A-Za-z0-9_.-]", "?", name[:64])
