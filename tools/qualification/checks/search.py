"""Tools that search for tools, which the server runs itself."""

from functools import partial
from typing import Any

from tools.qualification.check import Check, Trial, refusal, require, skip
from tools.qualification.checks.protocol import WEATHER
from tools.qualification.sdk import anthropic

_CALENDAR: dict[str, Any] = {
    "name": "list_meetings",
    "description": "Lists the meetings of a day in the calendar.",
    "input_schema": {"type": "object", "properties": {"day": {"type": "string"}}},
}


def search(trial: Trial, kind: str) -> None:
    name = f"tool_search_tool_{kind}"
    deferred = [{**tool, "defer_loading": True} for tool in (WEATHER, _CALENDAR)]
    tools = [{"type": f"{name}_20251119", "name": name}, *deferred]
    question = "How is the weather in Oslo? Search for a tool that tells it."
    _check_deferral(trial, question, tools)
    forced = {"type": "tool", "name": name}
    message = trial.ask(question, tools=tools, tool_choice=forced)
    calls = [each for each in message.content if each.type == "server_tool_use"]
    results = [each for each in message.content if each.type == "tool_search_tool_result"]
    if not results and message.stop_reason == "max_tokens":
        skip("the model did not end its search within --max-tokens")
    require(calls, "a search was forced, and there is none")
    searches = [each.id for each in calls]
    if message.stop_reason == "max_tokens":
        searches = searches[: len(results)]  # the last one was cut
    answered = [each.tool_use_id for each in results]
    require(searches == answered, "searches and results do not pair")
    found: set[str] = set()
    for result in results:
        if result.content.type == "tool_search_tool_search_result":
            found |= {each.tool_name for each in result.content.tool_references}
    unknown = found - {WEATHER["name"], _CALENDAR["name"]}
    require(not unknown, f"tools were found that there are not: {', '.join(sorted(unknown))}")
    asked = ", ".join(str(each.input) for each in calls)
    told = f"{', '.join(sorted(found)) or 'nothing'} by {asked}"
    trial.model("get_weather is found", told, WEATHER["name"] in found)
    _check_history(trial, question, message, tools)


def _check_deferral(trial: Trial, question: str, tools: list[dict[str, Any]]) -> None:
    """Tools that are deferred take no place in the prompt."""
    try:
        counted = trial.count(question, tools=tools)
    except anthropic.BadRequestError as error:
        skip(f"the search is refused: {refusal(error, 400)['message']}")
    shown = [{k: v for k, v in tool.items() if k != "defer_loading"} for tool in tools]
    hidden, open_to_all = trial.count(question), trial.count(question, tools=shown)
    require(not hidden < open_to_all <= counted, "deferred tools are in the prompt")


def _check_history(trial: Trial, question: str, message: Any, tools: list[dict[str, Any]]) -> None:
    """The conversation goes on, with what was searched and found in it."""
    results = [
        {"type": "tool_result", "tool_use_id": each.id, "content": "Rain."}
        for each in message.content
        if each.type == "tool_use"
    ]
    more = {"role": "user", "content": [*results, {"type": "text", "text": "And in Bergen?"}]}
    trial.ask(question, {"role": "assistant", "content": message.content}, more, tools=tools)


CHECKS = [Check("search", kind, partial(search, kind=kind)) for kind in ("regex", "bm25")]
