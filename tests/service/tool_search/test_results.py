"""What a search finds, whatever it is for."""

import time
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.conversation import Tool, ToolCall
from service.tool_search.results import found_in, results_of
from storage.answer_pieces import WholeBlock

REGEX, BM25 = "tool_search_tool_regex", "tool_search_tool_bm25"


def tool(name: str, description: str = "", **arguments: str) -> Tool:
    described = {each: {"type": "string", "description": arguments[each]} for each in arguments}
    return Tool(name, description, {"type": "object", "properties": described})


TOOLS = [
    tool("get_weather", "Tells the weather and the temperature.", city="Where."),
    tool("readFile", "Reads a file from the disk.", path="The file's place."),
    tool("sendMail", "Sends a message.", to="Who gets it.", text="What it says."),
    tool("mail_rules", "How messages are sorted into folders."),
]


def searched(name: str, query: Any, tools: list[Tool] = TOOLS) -> dict[str, Any]:
    [piece] = results_of([ToolCall("srvtoolu_1", name, {"query": query})], tools, 0)
    assert isinstance(piece, WholeBlock)
    return piece.block["content"]


def names(name: str, query: str, tools: list[Tool] = TOOLS) -> list[str]:
    calls = [ToolCall("srvtoolu_1", name, {"query": query})]
    return [*found_in(results_of(calls, tools, 0))]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("weather", ["get_weather"]),
        ("WEATHER|FILE", ["get_weather", "readFile"]),
        ("mail|message", ["sendMail", "mail_rules"]),
        ("^city$", []),
        ("(?m)^city$", ["get_weather"]),
        ("who gets", ["sendMail"]),
        ("nothing like it", []),
    ],
)
def test_a_pattern_is_looked_for_in_names_descriptions_and_arguments(
    query: str, expected: list[str]
) -> None:
    assert names(REGEX, query) == expected


def test_names_that_match_come_first() -> None:
    tools = [tool("a", "about b"), tool("b")]
    assert names(REGEX, "b", tools) == ["b", "a"]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("what is the temperature in a city", "get_weather"),
        ("read files", "readFile"),
        ("send a message to somebody", "sendMail"),
        ("Rules for mail", "mail_rules"),
    ],
)
def test_words_find_the_tool_that_they_describe_best(query: str, first: str) -> None:
    assert names(BM25, query)[0] == first


@pytest.mark.parametrize("name", [REGEX, BM25])
def test_at_most_five_are_found(name: str) -> None:
    tools = [tool(f"file_{number}") for number in range(20)]
    assert names(name, "file", tools) == [f"file_{number}" for number in range(5)]
    assert names(name, "file", []) == []


@pytest.mark.parametrize(
    ("name", "query"),
    [
        (REGEX, "("),
        (REGEX, "a" * 201),
        (REGEX, r"(a)\1"),
        (REGEX, "(?=a)"),
        (REGEX, "((((a{1000}){1000}){1000}){1000})"),
        (REGEX, "\ud800"),
        (REGEX, ""),
        (REGEX, None),
        (BM25, "  "),
        (BM25, 5),
    ],
)
def test_input_that_is_none_is_answered_with_what_is_wrong(name: str, query: Any) -> None:
    error = searched(name, query)
    assert error["type"] == "tool_search_tool_result_error"
    assert error["error_code"] == "invalid_tool_input"
    assert error["error_message"]


def test_patterns_that_elsewhere_take_for_ever_do_not_here() -> None:
    tools = [tool("t", "a" * 10_000) for _ in range(50)]
    for pattern in ("(a+)+$b", "(a|aa)+$b", "(.*)*b$", "(x+x+)+y"):
        assert names(REGEX, pattern, tools) == []


@pytest.mark.parametrize("name", [REGEX, BM25])
def test_a_search_that_takes_too_long_is_given_up(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "monotonic", count().__next__)  # a second more, each time it is asked
    assert searched(name, "weather")["error_code"] == "execution_time_exceeded"


def test_a_pattern_that_is_too_large_a_program_is_told_so() -> None:
    for pattern in ("a{0,1000}" * 18, "(a?){1000}" * 18, r"\pL{0,500}"):
        assert "too large" in searched(REGEX, pattern)["error_message"]
    assert searched(REGEX, "(")["error_message"].endswith(": missing ): (")


@pytest.mark.parametrize("name", [REGEX, BM25])
@settings(max_examples=100, deadline=None)
@given(query=st.text(max_size=220))
def test_any_query_is_answered(name: str, query: str) -> None:
    assert searched(name, query)["type"] in (
        "tool_search_tool_search_result",
        "tool_search_tool_result_error",
    )


def test_a_schema_may_be_of_any_shape() -> None:
    odd = [Tool("odd", "", {"properties": 5}), Tool("odder", "", {"properties": {"a": True}})]
    assert names(REGEX, "odd", odd) == ["odd", "odder"]
    assert set(names(BM25, "odd odder", odd)) == {"odd", "odder"}
