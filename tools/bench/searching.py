"""What a search among many deferred tools costs."""

import time
from collections.abc import Callable, Iterator
from statistics import median

from models.catalog import Checkpoint
from models.conversation import Tool
from service.tool_search.matching import matching
from service.tool_search.ranking import ranked
from tools.bench.figure import Bar, Figure, centre
from tools.bench.prompts import words
from tools.bench.services import Places

_TOOLS = 500
_QUERY = "tells the weather of the next days in a city"


def searching(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """Both kinds of search, in CPU time, since nothing here waits."""
    del checkpoint, places  # no engine and no service take part
    tools = [_tool(number) for number in range(_TOOLS)]
    began = time.process_time()
    ranked(_QUERY, tools)
    first = 1000 * (time.process_time() - began)
    repetitions = 5 if quick else 50
    by_words = _took(lambda: ranked(_QUERY, tools), repetitions)
    by_pattern = _took(lambda: matching("weather|fore(cast)+", tools), repetitions)
    size = f"{_TOOLS} tools of 60 words"
    yield Figure(
        "search by words", median(by_words), "ms", f"{size}: {centre(by_words)}", Bar("<=", 5)
    )
    yield Figure(
        "search by pattern", median(by_pattern), "ms", f"{size}: {centre(by_pattern)}", Bar("<=", 5)
    )
    yield Figure("first search by words", first, "ms", "the same, of which no word was counted yet")


def _tool(number: int) -> Tool:
    arguments = {
        f"argument_{place}": {"type": "string", "description": words(10, 10 * number + place)}
        for place in range(3)
    }
    return Tool(f"tool_{number}", words(30, ~number), {"type": "object", "properties": arguments})


def _took(search: Callable[[], object], repetitions: int) -> list[float]:
    took: list[float] = []
    for _ in range(repetitions):
        began = time.process_time()
        search()
        took.append(1000 * (time.process_time() - began))
    return took
