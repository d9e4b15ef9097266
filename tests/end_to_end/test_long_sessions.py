"""What long sessions need, from a real model by the official client: as whole answers and as
streams, by the first version of the API and by the newest."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import pytest

from tests.support.pdfs import document, drawn, handed, pdf
from tests.support.running import Running

WAYS = [("2023-06-01", False), ("2026-10-21", True)]

SECRET = "The code word of the safe is marmalade."
NOTE = document(pdf(drawn("Blank."), drawn(SECRET)), title="note.pdf")
QUESTION: Any = {
    "type": "text",
    "text": "What is the code word of the safe? Answer with that word alone.",
}

CLOCK: Any = {
    "name": "get_time",
    "description": "Tells the time of day.",
    "input_schema": {"type": "object", "additionalProperties": False},
}
TIME: Any = {"role": "user", "content": "What time is it?"}
TALK: list[Any] = [
    {"role": "user", "content": "My cat is called Mimi. Remember that."},
    {"role": "assistant", "content": "Mimi it is."},
]
CAT: Any = {"role": "user", "content": "What is my cat called? Say its name alone."}
TASK = "Sum up this conversation in one sentence."


@dataclass(frozen=True)
class Sdk:
    """A client that asks in one of the ways, for answers that can be repeated."""

    client: anthropic.Anthropic
    streams: bool
    search: str  # one kind for each version

    def answer(self, *messages: Any, **more: Any) -> Any:
        asked: dict[str, Any] = {
            "model": "claude-test",
            "max_tokens": 12,
            "messages": messages,
            "extra_body": {"temperature": 0},
            **more,
        }
        if not self.streams:
            return self.client.beta.messages.create(**asked)
        with self.client.beta.messages.stream(**asked) as stream:
            return stream.get_final_message()

    def count(self, *messages: Any, **more: Any) -> Any:
        return self.client.beta.messages.count_tokens(
            model="claude-test", messages=messages, **more
        )


@pytest.fixture(scope="module", params=WAYS, ids=str)
def sdk(qwen_service: Running, request: pytest.FixtureRequest) -> Iterator[Sdk]:
    version, streams = request.param
    with anthropic.Anthropic(
        base_url=qwen_service.url,
        api_key="none",
        max_retries=0,
        timeout=300,
        http_client=anthropic.DefaultHttpxClient(verify=False),  # see Running.client
        default_headers={"anthropic-version": version},
        _strict_response_validation=True,
    ) as client:
        yield Sdk(client, streams, "regex" if version == "2023-06-01" else "bm25")


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


def text_of(answer: Any) -> str:
    return "".join(each.text for each in answer.content if each.type == "text")


def test_a_question_about_a_pdf_is_answered_from_it(sdk: Sdk) -> None:
    asked = user(NOTE, QUESTION)
    answer = sdk.answer(asked)
    assert "marmalade" in text_of(answer)
    assert sdk.count(asked).input_tokens == answer.usage.input_tokens


def test_a_pdf_that_a_tool_has_read_is_told_of(sdk: Sdk) -> None:
    messages = handed(NOTE)
    messages[-1]["content"].append(QUESTION)
    assert "marmalade" in text_of(sdk.answer(*messages))


def test_what_is_wrong_with_a_pdf_is_raised(sdk: Sdk) -> None:
    encoded = base64.b64encode(b"%PDF-1.7").decode()
    broken = {"type": "base64", "media_type": "application/pdf", "data": encoded}
    with pytest.raises(anthropic.BadRequestError, match="the PDF is damaged"):
        sdk.answer(user({"type": "document", "source": broken}))


def test_an_uploaded_file_is_a_document_until_it_is_deleted(sdk: Sdk) -> None:
    files = sdk.client.beta.files
    file = files.upload(file=("note.txt", SECRET.encode(), "text/plain"))
    asked = user({"type": "document", "source": {"type": "file", "file_id": file.id}}, QUESTION)
    assert "marmalade" in text_of(sdk.answer(asked))
    files.delete(file.id)
    with pytest.raises(anthropic.NotFoundError, match=file.id):
        sdk.answer(asked)


def test_old_tool_results_are_cleared_and_told_of(sdk: Sdk) -> None:
    messages: list[Any] = [TIME]
    for number in range(2):
        call = {"id": f"toolu_{number}", "name": "get_time", "input": {}}
        messages += [
            {"role": "assistant", "content": [{"type": "tool_use", **call}]},
            user({"type": "tool_result", "tool_use_id": call["id"], "content": "Noon. " * 50}),
        ]
    uses = {"type": "clear_tool_uses_20250919"}
    uses |= {key: {"type": "tool_uses", "value": 1} for key in ("trigger", "keep")}
    edits = [{"type": "clear_thinking_20251015"}, uses]
    request: dict[str, Any] = {"tools": [CLOCK], "thinking": {"type": "adaptive"}}
    edited = {**request, "context_management": {"edits": edits}}
    answer = sdk.answer(*messages, **edited)
    (applied,) = answer.context_management.applied_edits
    assert (applied.type, applied.cleared_tool_uses) == ("clear_tool_uses_20250919", 1)
    counted = sdk.count(*messages, **edited)
    assert counted.input_tokens == answer.usage.input_tokens
    whole = sdk.count(*messages, **request).input_tokens
    assert counted.context_management.original_input_tokens == whole
    assert whole - counted.input_tokens == applied.cleared_input_tokens > 50


def test_a_search_is_executed_and_the_answer_goes_on(sdk: Sdk) -> None:
    search = f"tool_search_tool_{sdk.search}"
    tools: Any = [
        {"type": f"{search}_20251119", "name": search},
        {**CLOCK, "defer_loading": True},
    ]
    forced = {"type": "tool", "name": search}
    answer = sdk.answer(TIME, tools=tools, tool_choice=forced, max_tokens=40)
    called, found, *_ = answer.content
    assert (called.type, called.name) == ("server_tool_use", search)
    assert (found.type, found.tool_use_id) == ("tool_search_tool_result", called.id)
    assert found.content.type == "tool_search_tool_search_result"
    references = [each.tool_name for each in found.content.tool_references]
    assert references == ["get_time"]
    assert [each.type for each in answer.usage.iterations] == ["message", "message"]

    results = [
        {"type": "tool_result", "tool_use_id": each.id, "content": "Noon."}
        for each in answer.content
        if each.type == "tool_use"
    ]
    history = [TIME, {"role": "assistant", "content": answer.content}]
    more = user(*results, {"type": "text", "text": "And now?"})
    again = sdk.count(*history, more, tools=tools)
    assert again.input_tokens > answer.usage.iterations[-1].input_tokens


def test_a_tool_that_the_client_has_found_can_be_called(sdk: Sdk) -> None:
    find: Any = {"name": "find_tool", "input_schema": {"type": "object"}}
    call = {"type": "tool_use", "id": "toolu_1", "name": "find_tool", "input": {}}
    reference = {"type": "tool_reference", "tool_name": "get_time"}
    answer = sdk.answer(
        TIME,
        {"role": "assistant", "content": [call]},
        user({"type": "tool_result", "tool_use_id": "toolu_1", "content": [reference]}),
        tools=[find, {**CLOCK, "defer_loading": True}],
        tool_choice={"type": "tool", "name": "get_time"},
        max_tokens=30,
    )
    assert (answer.content[-1].name, answer.content[-1].input) == ("get_time", {})


def test_a_thread_is_continued_once(sdk: Sdk) -> None:
    first = sdk.answer(TALK[0], thread={"type": "create"}, max_tokens=4)
    onto = {"type": "continue", "previous_message_id": first.id}
    second = sdk.answer(CAT, thread=onto)
    assert "Mimi" in text_of(second)
    whole = [TALK[0], {"role": "assistant", "content": first.content}, CAT]
    assert second.usage.input_tokens == sdk.count(*whole).input_tokens
    with pytest.raises(anthropic.BadRequestError) as refused:
        sdk.answer(CAT, thread=onto)
    assert "already" in str(refused.value)


def test_a_conversation_goes_on_from_its_summary(sdk: Sdk) -> None:
    asked = {"type": "summarize", "instructions": TASK}
    summed_up = sdk.answer(*TALK, compaction=asked, max_tokens=40)
    (block,) = summed_up.content
    assert block.type == summed_up.stop_reason == "compaction"
    assert "Mimi" in block.content
    answer = sdk.answer({"role": "assistant", "content": summed_up.content}, CAT)
    assert "Mimi" in text_of(answer)


def test_an_answer_that_compacts_first_knows_what_was_said(sdk: Sdk) -> None:
    trigger = {"type": "input_tokens", "value": 1}
    edit = {"type": "compact_20260112", "trigger": trigger, "instructions": TASK}
    answer = sdk.answer(*TALK, CAT, context_management={"edits": [edit]}, max_tokens=40)
    block, text = answer.content
    assert (block.type, text.type) == ("compaction", "text")
    assert "Mimi" in text.text
    assert [each.type for each in answer.usage.iterations] == ["compaction", "message"]
    history = [*TALK, CAT, {"role": "assistant", "content": answer.content}]
    thanks = user({"type": "text", "text": "Thanks."})
    assert sdk.count(*history, thanks).input_tokens < answer.usage.input_tokens + 150


def test_a_system_turn_holds_for_as_long_as_it_says(sdk: Sdk) -> None:
    note = {"role": "system", "content": f"{SECRET} Say it.", "clear_at": "next_user_message"}
    asked = user(QUESTION)
    assert "marmalade" in text_of(sdk.answer(asked, note))
    later = [{"role": "assistant", "content": "Yes."}, CAT]
    with_note = sdk.count(asked, note, *later)
    assert with_note.input_tokens == sdk.count(asked, *later).input_tokens


def test_a_tool_that_is_added_later_can_be_called(sdk: Sdk) -> None:
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": CLOCK}}
    system = {"role": "system", "content": [added]}
    forced = {"type": "tool", "name": "get_time"}
    answer = sdk.answer(*TALK, system, TIME, tool_choice=forced, max_tokens=40)
    assert (answer.content[-1].name, answer.content[-1].input) == ("get_time", {})
