"""Top-level fields that would change the answer and cannot be honoured: refused by name."""

from service.errors import ApiError
from service.wire.requests import BaseRequest


def refuse_unsupported(request: BaseRequest) -> None:
    """Raises ApiError 400 that names the field and says what to do instead."""
    if request.container is not None:
        raise ApiError.invalid(
            "container: code execution is not supported; send the request without container"
        )
    if request.mcp_servers:
        raise ApiError.invalid(
            "mcp_servers: calling MCP servers is not supported; connect them in the client"
        )
    _refuse_context_edits(request)


def _refuse_context_edits(request: BaseRequest) -> None:
    management = request.context_management
    for index, edit in enumerate((management.edits if management else None) or ()):
        if edit.type == "compact_20260112":
            raise ApiError.invalid(
                f"context_management.edits.{index}.type: '{edit.type}' is not supported yet;"
                " compact the history in the client"
            )
        if index and edit.type == "clear_thinking_20251015":
            raise ApiError.invalid(
                f"context_management.edits.{index}.type: '{edit.type}' must be the first of the"
                " edits; put it before the others"
            )
