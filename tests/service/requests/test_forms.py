from dataclasses import replace
from typing import Any

import pytest

from models.conversation import ThinkingMode
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest
from tests.service.requests.served import (
    TINY,
    assistant,
    prepared,
    refusal,
    system,
    tool,
    user,
)

ENABLED = {"type": "enabled", "budget_tokens": 1024}
FORMAT = {"format": {"type": "json_schema", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("thinking", "able", "tiny"),
    [
        (None, ThinkingMode(), ThinkingMode()),
        ({"type": "disabled"}, ThinkingMode(), ThinkingMode()),
        ({"type": "adaptive"}, ThinkingMode("adaptive"), ThinkingMode()),
        (ENABLED, ThinkingMode("enabled", 1024), None),
        ({"type": "between_tools"}, ThinkingMode("between_tools"), None),
    ],
)
def test_thinking_is_asked_for_where_the_model_has_it(
    thinking: Any, able: ThinkingMode, tiny: ThinkingMode | None
) -> None:
    assert prepared(thinking=thinking).conversation.form.thinking == able
    if tiny is not None:
        accepted = prepared(served=TINY, thinking=thinking)
        assert (accepted.conversation.form.thinking, accepted.ignored) == (tiny, ())
    else:
        kind = thinking["type"]
        assert refusal(served=TINY, thinking=thinking).message == (
            f"thinking.type: '{kind}' is not supported by tiny; use 'adaptive' or 'disabled'"
        )


@pytest.mark.parametrize("given", [None, "summarized", "updates", "omitted"])
def test_thinking_is_displayed_as_asked(given: str | None) -> None:
    for thinking in ({"type": "adaptive"}, ENABLED):
        display = prepared(thinking={**thinking, "display": given}).display
        assert display == ("omitted" if given == "omitted" else "summarized")


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
def test_an_effort_that_the_model_lacks_is_refused_by_name(kind: type[BaseRequest]) -> None:
    high, most = {"effort": "high"}, {"effort": "max"}
    assert prepared(kind, output_config=high).conversation.effort == "high"
    assert refusal(kind, output_config=most).message == (
        "output_config.effort: 'max' is not supported by able; use 'low' or 'high', or start the"
        " service with --ignore-unsupported-hints"
    )
    assert refusal(kind, TINY, output_config=high).message == (
        "output_config.effort: 'high' is not supported by tiny; leave it out, or start the service"
        " with --ignore-unsupported-hints"
    )


def test_an_effort_that_the_model_lacks_may_be_ignored() -> None:
    lenient = replace(TINY, ignores_hints=True)
    accepted = prepared(served=lenient, output_config={"effort": "high"})
    assert (accepted.conversation.effort, accepted.ignored) == (None, ("output_config.effort",))


def test_the_last_effort_of_the_messages_counts() -> None:
    messages = [
        user("a"),
        system([], output_config={"effort": "high"}),
        user("b"),
        system("c", output_config={"effort": "low"}),
        system("d", output_config={}),
    ]
    accepted = prepared(messages=messages, output_config={"effort": "high"})
    assert (accepted.conversation.effort, accepted.ignored) == ("low", ())
    unsuited = [*messages, system("e", output_config={"effort": "max"})]
    accepted = prepared(messages=unsuited)
    assert (accepted.conversation.effort, accepted.ignored) == ("low", ("messages.output_config",))


def test_a_format_is_kept_where_the_model_can_be_held_to_it() -> None:
    assert prepared(output_config=FORMAT).conversation.form.output_schema == {"type": "object"}
    assert refusal(served=TINY, output_config=FORMAT).message == (
        "output_config.format: structured output is not supported by tiny;"
        " describe the format in the prompt"
    )


def test_a_format_and_a_forced_call_exclude_each_other() -> None:
    any_tool = {"tools": [tool()], "tool_choice": {"type": "any"}}
    assert refusal(output_config=FORMAT, **any_tool).message.startswith("output_config.format: ")
    prepared(output_config=FORMAT, tools=[tool()])


@pytest.mark.parametrize(
    ("fields", "against"),
    [
        ({"tools": [tool()], "tool_choice": {"type": "any"}}, "tool_choice asks for a call"),
        ({"output_config": FORMAT}, "output_config.format asks for a text of its own"),
        ({"thinking": ENABLED}, "thinking is enabled"),
    ],
)
def test_what_begins_an_answer_anew_cannot_go_on_with_a_text(
    fields: dict[str, Any], against: str
) -> None:
    assert refusal(messages=[user("a"), assistant("b")], **fields).message == (
        f"messages.1: an answer cannot go on with an assistant message while {against}; end the"
        " messages with a user message"
    )
    prepared(messages=[user("a"), assistant("")], **fields)


def test_an_answer_that_goes_on_with_a_text_does_not_think_first() -> None:
    accepted = prepared(messages=[user("a"), assistant("b")], thinking={"type": "adaptive"})
    assert accepted.conversation.form.thinking == ThinkingMode()


def test_a_forced_call_may_be_thought_about() -> None:
    form = prepared(tools=[tool()], tool_choice={"type": "any"}, thinking=ENABLED).conversation.form
    assert form.must_call
    assert form.thinking.thinks
    assert form.guided
