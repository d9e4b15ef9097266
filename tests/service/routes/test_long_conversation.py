"""What long sessions need, all in one conversation: searches, signed thinking, a tool that fails
with a PDF, both edits, and cache markers."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.support.cached import total
from tests.support.pdfs import document, drawn, pdf
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen

MARK: Any = {"type": "ephemeral"}
SYSTEM: Any = [{"type": "text", "text": "Be brief. " * 20, "cache_control": MARK}]
TOOLS: list[Any] = [
    {"type": "tool_search_tool_bm25", "name": "tool_search_tool_bm25", "cache_control": MARK},
    {
        "name": "read_page",
        "description": "Reads a page of a report.",
        "input_schema": {"type": "object", "properties": {"page": {"type": "integer"}}},
        "defer_loading": True,
    },
    {"name": "clock", "input_schema": {"type": "object"}, "defer_loading": True},
]
EDITS: Any = [
    {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}},
    {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "tool_uses", "value": 1},
        "keep": {"type": "tool_uses", "value": 0},
    },
]
PDF = document(pdf(drawn("Only the first page is here.")))


def thought(text: str, then: str) -> str:
    return f"<think>\n{text}\n</think>\n\n{then}"


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    model = write_tiny_qwen(tmp_path_factory.mktemp("model") / "tiny", "qwen3")
    with scripted_service(model, tmp_path_factory.mktemp("data")) as running:
        yield running


class Conversation:
    def __init__(self, service: Running, version: str, *, streams: bool) -> None:
        self._sdk = anthropic.Anthropic(
            base_url=service.url,
            api_key="none",
            max_retries=0,
            default_headers={"anthropic-version": version},
        )
        self._data, self._streams = service.data_dir, streams
        self.messages: list[Any] = []
        self.prompts: list[list[int]] = []  # with what was generated after each

    def say(self, *blocks: Any, script: dict[str, Any], **more: Any) -> Any:
        """The answer to these blocks and a text with the script."""
        text = {"type": "text", "text": json.dumps(script)}
        self.messages.append({"role": "user", "content": [*blocks, text]})
        asked: dict[str, Any] = {
            "model": "tiny",
            "max_tokens": 2000,
            "system": SYSTEM,
            "tools": TOOLS,
            "thinking": {"type": "adaptive"},
            "messages": self.messages,
            "cache_control": MARK,
            **more,
        }
        counted = self._sdk.beta.messages.count_tokens(
            **{name: value for name, value in asked.items() if name != "max_tokens"}
        )
        if self._streams:
            with self._sdk.beta.messages.stream(**asked) as stream:
                answer = stream.get_final_message()
        else:
            answer = self._sdk.beta.messages.create(**asked)
        self.messages.append({"role": "assistant", "content": answer.content})
        rounds = answer.usage.iterations or [answer.usage]
        assert total(rounds[0].model_dump()) == counted.input_tokens
        self.prompts.append(self._written())
        return answer

    def _written(self) -> list[int]:
        """All that the model had read and written by the end of the newest run."""
        (newest, *_) = sorted(
            self._data.rglob("prompt.json"), key=lambda file: file.stat().st_mtime, reverse=True
        )
        ids = json.loads(newest.read_bytes())["ids"]
        for line in (newest.parent / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "tokens":
                ids = ids + event["ids"]
            elif event["event"] == "round":
                ids = ids[: event["kept"]] + event["ids"]
        return ids


def kinds(answer: Any) -> list[str]:
    return [each.type for each in answer.content]


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21"])
@pytest.mark.parametrize("streams", [False, True])
def test_all_of_it_works_together(service: Running, version: str, streams: bool) -> None:
    talk = Conversation(service, version, streams=streams)

    first = talk.say(
        script={
            "say": thought("I need a tool.", call("tool_search_tool_bm25", query="report page")),
            "next": {"say": thought("There it is.", call("read_page", page=2))},
        }
    )
    assert kinds(first) == [
        *("thinking", "server_tool_use", "tool_search_tool_result", "thinking", "tool_use")
    ]
    assert [each.tool_name for each in first.content[2].content.tool_references] == ["read_page"]
    assert first.stop_reason == "tool_use"
    assert len(first.usage.iterations) == 2

    failed = {
        "type": "tool_result",
        "tool_use_id": first.content[4].id,
        "is_error": True,
        "content": [{"type": "text", "text": "There is no page 2."}, PDF],
    }
    second = talk.say(failed, script={"say": thought("A pity.", "There is one page.")})
    assert kinds(second) == ["thinking", "text"]
    assert second.usage.cache_read_input_tokens > 0
    assert second.context_management is None

    third = talk.say(
        script={"say": thought("Again.", "That is all.")},
        context_management={"edits": EDITS},
        betas=["context-management-2025-06-27"],
    )
    assert kinds(third) == ["thinking", "text"]
    applied = third.context_management.applied_edits
    assert [each.type for each in applied] == [each["type"] for each in EDITS]
    assert applied[0].cleared_thinking_turns == 1
    assert applied[1].cleared_tool_uses == 1  # not the search, whose result has a definition
    assert third.usage.cache_read_input_tokens > 0

    begun, goes_on, edited = talk.prompts
    assert goes_on[: len(begun)] == begun
    assert len(edited) < len(goes_on) + 200
