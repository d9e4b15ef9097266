"""A real model summarises, and goes on from what it wrote, with the official client."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.support.lives import assert_stops_well
from tests.support.running import Running, real_service

TALK: list[Any] = [
    {"role": "user", "content": "My cat is called Mimi. Remember that."},
    {"role": "assistant", "content": "Mimi it is."},
]
QUESTION = {"role": "user", "content": "What is my cat called?"}
TASK = "Sum up this conversation in one sentence."


@pytest.fixture(scope="module")
def service(qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with real_service(qwen, tmp_path_factory.mktemp("data")) as running:
        yield running
        assert_stops_well(running)


def asking(*messages: Any, **more: Any) -> dict[str, Any]:
    """With a repeatable answer."""
    greedy = {"temperature": 0}
    return {
        "model": "claude-test",
        "max_tokens": 40,
        "messages": list(messages),
        "extra_body": greedy,
        **more,
    }


def test_a_conversation_goes_on_from_its_summary(
    older: anthropic.Anthropic, newer: anthropic.Anthropic
) -> None:
    request = asking(*TALK, compaction={"type": "summarize", "instructions": TASK})
    whole = older.beta.messages.create(**request)
    with newer.beta.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    (block,) = whole.content
    assert block.type == "compaction"
    assert "Mimi" in (block.content or "")
    assert streamed.content == [block]
    assert whole.stop_reason == streamed.stop_reason == "compaction"
    answer = older.beta.messages.create(**asking(whole.to_param(), QUESTION))
    assert "Mimi" in str(answer.content)


def test_an_answer_that_compacts_first_knows_what_was_said(
    older: anthropic.Anthropic, newer: anthropic.Anthropic
) -> None:
    trigger = {"type": "input_tokens", "value": 1}
    edit = {"type": "compact_20260112", "trigger": trigger, "instructions": TASK}
    request = asking(*TALK, QUESTION, context_management={"edits": [edit]})
    whole = older.beta.messages.create(**request)
    with newer.beta.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    for message in (whole, streamed):
        block, text = message.content
        assert (block.type, text.type) == ("compaction", "text")
        assert "Mimi" in str(text)
        assert message.usage.iterations is not None
        assert [each.type for each in message.usage.iterations] == ["compaction", "message"]
    assert streamed.content[0] == whole.content[0]
    history = [*TALK, QUESTION, whole.to_param(), {"role": "user", "content": "Thanks."}]
    count = older.beta.messages.count_tokens(model="claude-test", messages=history)
    assert count.input_tokens < whole.usage.input_tokens + 150
