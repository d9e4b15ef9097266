"""Searches that the model asked for, run: what clients and the model are told of them."""

from collections.abc import Sequence
from typing import Any, Literal

from models.conversation import Tool, ToolCall
from service.tool_search.definitions import MOST_FOUND, REGEX
from service.tool_search.matching import BadPattern, TookTooLong, matching
from service.tool_search.ranking import ranked
from storage.answer_pieces import Piece, WholeBlock

_MOST_SEARCHES = 10  # in one message

ErrorCode = Literal["invalid_tool_input", "too_many_requests", "execution_time_exceeded"]


def results_of(calls: Sequence[ToolCall], tools: Sequence[Tool], done: int) -> list[Piece]:
    """A block for each call, in a message that has `done` so many before. To be called off the
    event loop, though it is bounded in time."""
    return [
        WholeBlock(
            {
                "type": "tool_search_tool_result",
                "tool_use_id": call.id,
                "content": _result(call, tools, done + number),
            }
        )
        for number, call in enumerate(calls)
    ]


def found_in(results: Sequence[Piece]) -> tuple[str, ...]:
    """The names of the tools that such blocks refer to."""
    return tuple(
        each["tool_name"]
        for result in results
        if isinstance(result, WholeBlock)
        for each in result.block["content"].get("tool_references", ())
    )


def _result(call: ToolCall, tools: Sequence[Tool], number: int) -> dict[str, Any]:
    query = call.arguments.get("query")
    if number >= _MOST_SEARCHES:
        return _error(
            "too_many_requests",
            f"{_MOST_SEARCHES} searches were made in this answer; go on with what was found",
        )
    if not isinstance(query, str) or not query.strip():
        return _error("invalid_tool_input", "give the words or the pattern to search for as query")
    try:
        found = matching(query, tools) if call.name == REGEX else ranked(query, tools)
    except BadPattern as error:
        return _error("invalid_tool_input", str(error))
    except TookTooLong:
        return _error("execution_time_exceeded", "the search took too long; search for less")
    references = [{"type": "tool_reference", "tool_name": each.name} for each in found[:MOST_FOUND]]
    return {"type": "tool_search_tool_search_result", "tool_references": references}


def _error(code: ErrorCode, message: str) -> dict[str, Any]:
    return {
        "type": "tool_search_tool_result_error",
        "error_code": code,
        "error_message": message,
    }
