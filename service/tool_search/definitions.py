"""The tools by which the model searches for others: what it is told of them."""

from models.conversation import Tool
from service.wire.tools import RankedSearchTool, RegexSearchTool

MOST_FOUND = 5
REGEX, RANKED = "tool_search_tool_regex", "tool_search_tool_bm25"
SEARCHES = frozenset({REGEX, RANKED})

_QUERIES = {
    REGEX: "A regular expression (RE2 syntax, upper and lower case are the same) that some part of"
    " the tool's name, description or arguments matches, such as `weather|forecast`. At most 200"
    " characters.",
    RANKED: "Some words that say what the tool is to do.",
}


def search_tool(wire: RegexSearchTool | RankedSearchTool) -> Tool:
    return Tool(
        wire.name,
        "Searches for tools that are not listed here, by their names, descriptions and arguments."
        f" The {MOST_FOUND} best of those found can be called from then on. Search whenever none of"
        " the tools that you have does what is asked for.",
        {
            "type": "object",
            "properties": {"query": {"type": "string", "description": _QUERIES[wire.name]}},
            "required": ["query"],
            "additionalProperties": False,
        },
        strict=bool(wire.strict),
        on_server=True,
    )
