"""What a request asks of its answer."""

from dataclasses import replace
from typing import Any

from models.conversation import AnswerForm, Effort, ThinkingMode
from models.grammar.schemas import SchemaError
from models.grammar.validation import Validator
from service.errors import ApiError
from service.requests.answer_plan import Display
from service.requests.served import Served
from service.requests.tools import Offered
from service.wire.requests import BaseRequest, EnabledThinking, NoThinking, SystemMessage


def form_of(
    request: BaseRequest, offered: Offered, served: Served, *, prefills: bool
) -> AnswerForm:
    """Raises ApiError 400 for what the model cannot do, and for what excludes each other."""
    form = AnswerForm(
        tools=offered.tools,
        choice=offered.choice,
        thinking=_thinking(request, served),
        output_schema=_output_schema(request, served),
        stop_sequences=tuple(request.stop_sequences or ()),
        guided=served.grammar,
    )
    if form.output_schema is not None and form.must_call:
        raise ApiError.invalid(
            "output_config.format: the answer cannot be of this format and a call at once; use"
            " tool_choice 'auto', or leave the format out"
        )
    if prefills:
        return _after_prefill(form, f"messages.{len(request.messages) - 1}")
    return form


def _after_prefill(form: AnswerForm, path: str) -> AnswerForm:
    """The answer goes on with the text that the client began."""
    against = None
    if form.must_call:
        against = "tool_choice asks for a call"
    elif form.output_schema is not None:
        against = "output_config.format asks for a text of its own"
    elif form.thinking.kind == "enabled":
        against = "thinking is enabled"
    if against:
        raise ApiError.invalid(
            f"{path}: an answer cannot go on with an assistant message while {against}; end the"
            " messages with a user message"
        )
    if form.thinking.kind != "adaptive":
        return form
    return replace(form, thinking=ThinkingMode())


def _thinking(request: BaseRequest, served: Served) -> ThinkingMode:
    thinking, can = request.thinking, served.capabilities.thinking
    if thinking is None or thinking.type == "disabled":
        return ThinkingMode()
    if thinking.type in can:
        budget = thinking.budget_tokens if isinstance(thinking, EnabledThinking) else None
        return ThinkingMode(thinking.type, budget)
    if thinking.type == "adaptive":  # it may think as little as it likes
        return ThinkingMode()
    others = [f"'{each}'" for each in ("enabled", "between_tools") if each in can]
    instead = ", ".join(["'adaptive'", *others])
    raise ApiError.invalid(
        f"thinking.type: '{thinking.type}' is not supported by {served.model};"
        f" use {instead} or 'disabled'"
    )


def display_of(request: BaseRequest) -> Display:
    """Thinking is shown as it is: that is no less than a summary, or the updates, of it."""
    thinking = request.thinking
    if thinking is None or isinstance(thinking, NoThinking) or thinking.display != "omitted":
        return "summarized"
    return "omitted"


def effort_of(request: BaseRequest, served: Served) -> Effort | None:
    """What was asked for last. Raises ApiError 400 for an effort that the model does not have."""
    can, config = served.capabilities.efforts, request.output_config
    effort = config.effort if config else None
    if effort is not None and effort not in can and not served.ignores_hints:
        instead = "use " + " or ".join(f"'{each}'" for each in can) if can else "leave it out"
        raise ApiError.invalid(
            f"output_config.effort: '{effort}' is not supported by {served.model}; {instead}, or"
            " start the service with --ignore-unsupported-hints"
        )
    later = (each.output_config for each in request.messages if isinstance(each, SystemMessage))
    wanted = (effort, *(each.effort for each in later if each))
    return next((each for each in reversed(wanted) if each in can), None)


def _output_schema(request: BaseRequest, served: Served) -> dict[str, Any] | None:
    wanted = request.output_config and request.output_config.format
    if not wanted:
        return None
    if not served.capabilities.structured_outputs:
        raise ApiError.invalid(
            f"output_config.format: structured output is not supported by {served.model};"
            " describe the format in the prompt"
        )
    if not served.grammar:
        raise ApiError.invalid(
            "output_config.format: it needs the grammar, which is off here; describe the format in"
            " the prompt, or start the service with --grammar on"
        )
    try:
        Validator(wanted.json_schema)
    except SchemaError as error:
        raise ApiError.invalid(f"output_config.format.schema: the schema {error}") from error
    return wanted.json_schema
