"""The request for a summary of the conversation, instead of an answer to it."""

from collections.abc import Iterable
from dataclasses import replace

from models.conversation import Conversation, Text, ToolChoice, Turn
from service.errors import ApiError
from service.requests.marked_text import PARAGRAPH, merged
from service.wire.blocks import CompactionBlock, TextBlock
from service.wire.requests import BaseRequest, MessagesRequest

_TASK = (
    "Do not answer yet. Write a summary of this whole conversation first. It will take the place of"
    " everything above: whoever goes on with the work has nothing else to go by.\n\n"
    "Write down, the most important first:\n"
    "- what the user asks for, in the user's own words where they matter, and what of it is still"
    " to be done or answered\n"
    "- what was found out and decided, and why\n"
    "- names, paths, commands, numbers and pieces of code that the work needs\n"
    "- what was tried in vain, and what the next step is\n\n"
    "Leave out what can easily be found again. Call no tools. Write the summary alone, with nothing"
    " before or after it."
)


def is_compaction(request: BaseRequest) -> bool:
    """Counting is of the conversation as it is sent."""
    return isinstance(request, MessagesRequest) and request.compaction is not None


def check_compaction(request: BaseRequest) -> None:
    """Raises ApiError 400 for a request for a summary that also asks for an answer of some form,
    and where there is nothing to summarise."""
    if not is_compaction(request):
        return
    choice, output = request.tool_choice, request.output_config
    against = {
        "context_management": request.context_management is not None,
        "stop_sequences": bool(request.stop_sequences),
        "output_config.format": output is not None and output.format is not None,
        "tool_choice": choice is not None and choice.type in ("any", "tool"),
    }
    for path in (path for path, is_there in against.items() if is_there):
        raise ApiError.invalid(
            f"{path}: it cannot be combined with compaction, whose answer is a summary and nothing"
            " else; leave one of the two out"
        )
    if not any(_says_something(each.content) for each in request.messages if each.role != "system"):
        raise ApiError.invalid(
            "messages: they have no text of the user or the assistant to summarise; leave"
            " compaction out until they do",
            "compaction_nothing_to_summarize",
        )


def asked_for_summary(conversation: Conversation, task: str) -> Conversation:
    """The conversation with the task at its end, and free text as its answer. Its prompt begins
    as that of an answer does: tools are told of, though none can be called."""
    form = replace(
        conversation.form, choice=ToolChoice("none"), output_schema=None, stop_sequences=()
    )
    *before, last = conversation.turns
    if last.role == "user":
        asked = Turn("user", tuple(merged((*last.blocks, Text(task)))))
    else:
        before, asked = conversation.turns, Turn.of("user", task)
    return replace(conversation, turns=(*before, asked), form=form)


def task_of(request: BaseRequest) -> str:
    """The instructions of a request for a summary, or else our own."""
    instructions = (request.compaction and request.compaction.instructions) or ""
    return instructions if instructions.strip() else _TASK


def task_with(instructions: str | None) -> str:
    """Ours with instructions that say more."""
    more = instructions or ""
    return f"{_TASK}{PARAGRAPH}{more}" if more.strip() else _TASK


def _says_something(content: str | Iterable[object] | None) -> bool:
    if content is None or isinstance(content, str):
        return bool(content)
    return any(
        bool(block.text)
        if isinstance(block, TextBlock)
        else block.content is not None
        if isinstance(block, CompactionBlock)
        else True
        for block in content
    )
