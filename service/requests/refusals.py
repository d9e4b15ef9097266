"""Top-level fields that would change the answer and cannot be honoured: refused by name."""

from service.errors import ApiError
from service.wire.requests import BaseRequest, EnabledThinking, MessagesRequest
from service.wire.tools import NamedChoice


def refuse_unsupported(request: BaseRequest, model: str) -> None:
    """Raises ApiError 400 that names the field and says what to do instead."""
    # First, because clients that send it recover from this refusal by its code, whatever else
    # the request holds.
    if request.thread is not None:
        raise ApiError.invalid(
            "thread: server-held threads are not supported; send the whole history in `messages`",
            "thread_unsupported_request",
        )
    if request.tools:
        raise ApiError.invalid(
            f"tools: tool use is not supported by {model} yet; send the request without tools"
        )
    choice = request.tool_choice
    if isinstance(choice, NamedChoice) or (choice is not None and choice.type == "any"):
        raise ApiError.invalid(
            f"tool_choice: tool use is not supported by {model} yet; use 'auto' or 'none'"
        )
    if isinstance(request.thinking, EnabledThinking):
        raise ApiError.invalid(
            f"thinking.type: 'enabled' is not supported by {model}; use 'adaptive' or 'disabled'"
        )
    if request.output_config is not None and request.output_config.format is not None:
        raise ApiError.invalid(
            f"output_config.format: structured output is not supported by {model} yet;"
            " describe the format in the prompt"
        )
    if request.container is not None:
        raise ApiError.invalid(
            "container: code execution is not supported; send the request without container"
        )
    if request.mcp_servers:
        raise ApiError.invalid(
            "mcp_servers: calling MCP servers is not supported; connect them in the client"
        )
    # Counting ignores it by contract: clients count the very body that they will compact with.
    if isinstance(request, MessagesRequest) and request.compaction is not None:
        raise ApiError.invalid(
            "compaction: summarising on the server is not supported yet;"
            " ask for the summary in a message"
        )
    _refuse_context_edits(request)


def _refuse_context_edits(request: BaseRequest) -> None:
    # The clear_* edits drop tool uses and thinking, which no prompt built here holds.
    management = request.context_management
    for index, edit in enumerate((management.edits if management else None) or ()):
        if edit.type == "compact_20260112":
            raise ApiError.invalid(
                f"context_management.edits.{index}.type: '{edit.type}' is not supported yet;"
                " compact the history in the client"
            )
