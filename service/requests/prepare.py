"""A wire request as a conversation."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from models.conversation import AnswerForm, Conversation, Tool
from service.errors import ApiError
from service.requests.answer_plan import Display
from service.requests.cache_markers import markers_of
from service.requests.compaction import asked_for_summary, check_compaction, is_compaction, task_of
from service.requests.context_editing import Edit
from service.requests.forms import display_of, effort_of, form_of
from service.requests.history import History
from service.requests.marked_text import ended, longest
from service.requests.refusals import refuse_unsupported
from service.requests.served import Served
from service.requests.summaries import SummaryPlan, after_summary
from service.requests.tool_changes import summed_changes
from service.requests.tools import Offered, offered
from service.wire.context_edits import Compact
from service.wire.requests import (
    BaseRequest,
    CountTokensRequest,
    Diagnostics,
    Message,
    MessagesRequest,
    SystemMessage,
)
from service.wire.shape import Shape
from service.wire.tools import OfferedTool

# Unknown to the shapes, and without any bearing on the answer.
_BILLING_FIELDS = frozenset({"fallback_credit_token", "billing_policy"})

# Keeps a header of these names short, whatever a request brings.
_MAX_IGNORED = 20


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation, and the names of what in the request had no effect on it.

    The names, 20 at most, are safe to put into a header. `tool_paths` says where in the request
    the tools are. `edits` are to be made before the conversation is rendered; None where the
    request says nothing of any. With a `summary` the conversation asks for that.
    `files` are the uploaded files that the request names, with their SHA-256.
    `findable` are the tools that the model may search.
    """

    conversation: Conversation
    ignored: tuple[str, ...]
    display: Display = "summarized"
    tool_paths: Mapping[str, str] = field(default_factory=dict[str, str])
    edits: tuple[Edit, ...] | None = None
    summary: SummaryPlan | None = None
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    findable: tuple[Tool, ...] = ()
    may_compact: "MayCompact | None" = None


@dataclass(frozen=True, slots=True)
class MayCompact:
    """How the summary is shown that an edit may make, and what the answer after it has: system
    text, without that of the messages, and most tokens."""

    summary: SummaryPlan
    system: str
    max_tokens: int


def conversation_of(request: BaseRequest, served: Served) -> Prepared:
    """The conversation that `request` holds, with the marks of what is to be kept of its prompt;
    one that is only counted is not kept.

    Raises ApiError 400 for what is not supported, and for histories that do not hold together.
    """
    refuse_unsupported(request)
    check_compaction(request)
    request = after_summary(request, served.signer)
    kept = markers_of(request)
    if isinstance(request, CountTokensRequest):
        kept = dict[str, int]()
    effort = effort_of(request, served)
    tools = offered(request, served, kept)
    history = History.of(request, served, kept, tools.definitions)
    conversation = Conversation(history.turns, effort=effort)
    prefills = conversation.prefills and not is_compaction(request)
    form = form_of(request, tools, served, prefills=prefills)
    form = _with_last_tool_kept(form, longest(history.marks_before))
    conversation = replace(conversation, form=form)
    if all(turn.role == "system" for turn in conversation.turns):
        raise ApiError.invalid("messages: at least one user or assistant message is required")
    if is_compaction(request):
        conversation = asked_for_summary(conversation, task_of(request))
    return Prepared(
        conversation,
        tuple(islice(_ignored(request, history, served), _MAX_IGNORED)),
        display_of(request),
        tools.paths,
        _edits_of(request),
        SummaryPlan(_changes(request, tools)) if is_compaction(request) else None,
        findable=tools.findable,
        may_compact=_may_compact(request, tools, served),
    )


def _with_last_tool_kept(form: AnswerForm, kept_seconds: int | None) -> AnswerForm:
    """In a request the tools come before all that is said."""
    if not form.listed_tools:
        return form
    last = form.listed_tools[-1]
    tools = (ended(each, kept_seconds) if each is last else each for each in form.tools)
    return replace(form, tools=tuple(tools))


def _ignored(request: BaseRequest, history: History, served: Served) -> Iterator[str]:
    config = request.output_config
    if config is not None and config.effort not in (None, *served.capabilities.efforts):
        yield "output_config.effort"
    if config is not None and config.task_budget is not None:
        yield "output_config.task_budget"
    if request.speed == "fast":
        yield "speed"
    if request.compaction is not None and not is_compaction(request):
        yield "compaction"
    if any(_asks_in_vain(each, served) for each in request.messages):
        yield "messages.output_config"
    yield from (f"messages.{each}" for each in history.dropped)
    yield from dict.fromkeys(map(_in_header, _ignored_within(request)))
    no_bearing = _BILLING_FIELDS
    if isinstance(request, CountTokensRequest):
        no_bearing = no_bearing | MessagesRequest.model_fields.keys()
    for name, value in (request.model_extra or {}).items():
        if value is not None and name not in no_bearing:
            yield _in_header(name)


def _ignored_within(request: BaseRequest) -> Iterator[str]:
    """Fields of the request's own objects and of its tools that the shapes do not know, and what
    no prompt has of a tool."""
    fields = ((name, getattr(request, name)) for name in type(request).model_fields)
    shapes = [(name, each) for name, each in fields if isinstance(each, Shape)]
    for name, shape in (*shapes, *(("tools", each) for each in request.tools or ())):
        if not isinstance(shape, Diagnostics):  # it has no bearing on the answer
            extra = (shape.model_extra or {}).items()
            yield from (f"{name}.{field}" for field, value in extra if value is not None)
        if isinstance(shape, OfferedTool) and shape.input_examples:
            yield f"{name}.input_examples"


def _in_header(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "?", name[:64])


def _edits_of(request: BaseRequest) -> tuple[Edit, ...] | None:
    """Counting is of what is there before anything is summarised."""
    management = request.context_management
    if management is None:
        return None
    left_out = Compact if isinstance(request, CountTokensRequest) else ()
    return tuple(each for each in management.edits or () if not isinstance(each, left_out))


def _may_compact(request: BaseRequest, tools: Offered, served: Served) -> MayCompact | None:
    if not isinstance(request, MessagesRequest):
        return None
    if not any(isinstance(each, Compact) for each in _edits_of(request) or ()):
        return None
    system = History.before_messages(request, served)
    return MayCompact(
        SummaryPlan(_changes(request, tools), in_place=True), system, request.max_tokens
    )


def _changes(request: BaseRequest, tools: Offered) -> tuple[dict[str, Any], ...]:
    return summed_changes(request, tools.paths, tools.tools)


def _asks_in_vain(message: Message, served: Served) -> bool:
    config = message.output_config if isinstance(message, SystemMessage) else None
    return bool(config) and config.effort not in (None, *served.capabilities.efforts)
