"""Summaries over HTTP and with the official client."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic import types

from tests.support.batches import create_batch, results
from tests.support.cached import counted, total
from tests.support.messages import body, events_of
from tests.support.refusals import refused
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen

BETA = "compact-2026-09-04"
TALK: list[Any] = [
    {"role": "user", "content": "Read it."},
    {"role": "assistant", "content": "Done."},
]
LATE: dict[str, Any] = {"name": "late", "input_schema": {"type": "object"}, "defer_loading": True}
TOOLS: list[Any] = [{"name": "read", "input_schema": {"type": "object"}}, LATE]
FOUND = {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "late"}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_qwen(tmp_path_factory.mktemp("model") / "tiny", "qwen3")


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with scripted_service(model, tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture(scope="module", params=["2023-06-01", "2026-10-21"])
def sdk(service: Running, request: pytest.FixtureRequest) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(
        base_url=service.url,
        api_key="none",
        max_retries=0,
        default_headers={"anthropic-version": request.param},
        _strict_response_validation=True,
    ) as sdk:
        yield sdk


def summarize(**script: Any) -> dict[str, Any]:
    """Has the scripted engine write the summary."""
    return {"type": "summarize", "instructions": json.dumps(script)}


def compacting(**script: Any) -> dict[str, Any]:
    return body(messages=TALK, compaction=summarize(**script))


def test_the_answer_is_a_signed_summary_and_nothing_else(client: httpx.Client) -> None:
    message = client.post("/v1/messages", json=compacting(say="  They read it.\n")).json()
    (block,) = message["content"]
    assert block.keys() == {"type", "content", "signature", "tool_changes"}
    assert (block["type"], block["content"]) == ("compaction", "They read it.")
    assert block["tool_changes"] == []
    assert (message["stop_reason"], message["stop_sequence"]) == ("compaction", None)
    assert total(message["usage"]) > counted(client, body(messages=TALK))
    assert message["usage"]["output_tokens"] > len("They read it.") // 8


def test_a_stream_has_it_in_one_delta_and_all_else_at_its_beginning(client: httpx.Client) -> None:
    whole = client.post("/v1/messages", json=compacting(say="They read it.")).json()
    events = events_of(client, compacting(say="They read it."))
    assert [each["type"] for each in events if each["type"] != "ping"] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    _, start, delta, _, ending, _ = (each for each in events if each["type"] != "ping")
    assert start["content_block"] == {**whole["content"][0], "content": None}
    assert delta["delta"] == {"type": "compaction_delta", "content": "They read it."}
    assert ending["delta"]["stop_reason"] == "compaction"
    assert ending["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_thinking_is_counted_and_not_shown(client: httpx.Client) -> None:
    request = compacting(say="<think>\nHm.\n</think>\n\nThey read it.")
    message = client.post("/v1/messages", json={**request, "thinking": {"type": "adaptive"}}).json()
    (block,) = message["content"]
    assert block["content"] == "They read it."
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0


@pytest.mark.parametrize("written", ["", "  \n", "<think>\nHm.\n</think>\n\n"])
def test_where_nothing_was_written_there_is_no_summary(client: httpx.Client, written: str) -> None:
    request = {**compacting(say=written), "thinking": {"type": "adaptive"}}
    message = client.post("/v1/messages", json=request).json()
    assert message["content"] == [{"type": "compaction", "content": None}]
    assert message["stop_reason"] == "compaction"
    (_, _, delta, _, _, _) = (each for each in events_of(client, request) if each["type"] != "ping")
    assert delta["delta"] == {"type": "compaction_delta", "content": None}


def test_a_summary_that_was_cut_is_one(client: httpx.Client) -> None:
    request = {**compacting(say="abcdefghij" * 20), "max_tokens": 30}
    message = client.post("/v1/messages", json=request).json()
    assert message["content"][0]["content"].startswith("abc")
    assert message["content"][0]["signature"]
    assert message["stop_reason"] == "compaction"


def test_a_call_in_it_is_text(client: httpx.Client) -> None:
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    written = '<tool_call>\n{"name": "read", "arguments": {}}\n</tool_call>'
    message = client.post("/v1/messages", json={**compacting(say=written), "tools": tools}).json()
    (block,) = message["content"]
    assert '"name": "read"' in block["content"]
    assert message["stop_reason"] == "compaction"


@pytest.mark.parametrize("betas", [[], [BETA]])
def test_the_official_client_goes_on_from_the_summary(
    sdk: anthropic.Anthropic, betas: list[str]
) -> None:
    messages = [*TALK, {"role": "system", "content": [FOUND]}]
    request: dict[str, Any] = {
        **body(messages=messages, tools=TOOLS, compaction=summarize(say="They read it.")),
        "betas": betas,
    }
    whole = sdk.beta.messages.create(**request)
    with sdk.beta.messages.stream(**request) as stream:
        told = [event for event in stream if event.type == "compaction"]
        streamed = stream.get_final_message()
    assert [event.content for event in told] == ["They read it."]
    assert streamed.content == whole.content
    (block,) = whole.content
    assert block.type == "compaction"
    assert block.tool_changes is not None
    assert [each.to_dict() for each in block.tool_changes] == [FOUND]
    for message in (whole, streamed):
        history = [message.to_param(), {"role": "user", "content": "Go on."}]
        follow: dict[str, Any] = body(messages=history, tools=TOOLS)
        answer = sdk.beta.messages.create(**follow)
        assert answer.stop_reason == "end_turn"
        count = sdk.beta.messages.count_tokens(model="claude-test", messages=history, tools=TOOLS)
        assert count.input_tokens == answer.usage.input_tokens


@anthropic.beta_tool
def read() -> str:
    """Read it."""
    return "x"


def test_the_tool_runner_compacts_its_history(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"say": "They read it."}))
    monkeypatch.setenv("SCRIPT_FILE", str(script))
    with (
        scripted_service(model, tmp_path / "data") as running,
        anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0) as sdk,
    ):
        runner = sdk.beta.messages.tool_runner(
            model="claude-test", max_tokens=64, messages=TALK[:1], tools=[read], betas=[BETA]
        )
        runner.compact_before_next_turn()
        reasons = [message.stop_reason for message in runner]
    assert reasons == ["compaction", "end_turn"]


def test_the_official_client_knows_refusals_by_their_codes(sdk: anthropic.Anthropic) -> None:
    made = sdk.beta.messages.create(**compacting(say="x")).content[0].to_dict()
    call = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    tools = [*TOOLS, *({**LATE, "name": f"late{number}"} for number in range(1001))]
    found = [{**FOUND, "tool": {**FOUND["tool"], "name": each["name"]}} for each in tools[2:]]

    def check(kind: type[Exception], *messages: Any, **fields: Any) -> None:
        with pytest.raises(kind):
            sdk.beta.messages.create(**body(messages=list(messages), **fields))

    def of(block: Any, **changed: Any) -> dict[str, Any]:
        return {"role": "assistant", "content": [{**block, **changed}]}

    asked, summary = TALK[0], {"compaction": {"type": "summarize"}}
    check(types.CompactionNothingToSummarizeError, {"role": "user", "content": ""}, **summary)
    check(types.CompactionNothingToSummarizeError, **summary)
    check(types.CompactionIncompleteTurnError, asked, of(call), **summary)
    check(types.CompactionTooManyToolReferencesError, asked, {"role": "system", "content": found},
          tools=tools, **summary)  # fmt: skip
    check(types.CompactionBlockMisplacedError, asked, of(made))
    check(types.CompactionBlockAmbiguousError, of(made), asked, of(made))
    check(types.CompactionSignatureInvalidError, of(made, signature="x"), asked)
    check(types.CompactionContentMismatchError, of(made, content="y"), asked)
    check(types.CompactionToolChangesMismatchError, of(made, tool_changes=[FOUND]), asked)


def test_without_room_the_official_client_may_come_again(model: Path, tmp_path: Path) -> None:
    with (
        scripted_service(model, tmp_path, queue_limit=0) as running,
        anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0) as sdk,
        pytest.raises(types.CompactionUnavailableError),
    ):
        sdk.beta.messages.create(**compacting())


def test_a_summary_of_another_data_folder_is_refused(
    client: httpx.Client, model: Path, tmp_path: Path
) -> None:
    with scripted_service(model, tmp_path) as other, other.client() as there:
        theirs = there.post("/v1/messages", json=compacting(say="x")).json()
    message = {"role": "assistant", "content": theirs["content"]}
    answer = client.post("/v1/messages", json=body(messages=[message, TALK[0]]))
    assert "messages.0.content.0.signature: it is none of this server's" in refused(answer)


def test_a_summary_that_is_asked_for_again_is_given_again(client: httpx.Client) -> None:
    headers = {"idempotency-key": "summary"}
    first, again = (
        client.post("/v1/messages", json=compacting(say="x"), headers=headers).json()
        for _ in range(2)
    )
    assert again == first
    assert first["content"][0]["content"] == "x"


def test_a_batch_can_hold_requests_for_summaries(service: Running, client: httpx.Client) -> None:
    (result,) = results(service, create_batch(service, compacting(say="x")))
    whole = client.post("/v1/messages", json=compacting(say="x")).json()
    assert result["message"]["content"] == whole["content"]


def test_the_served_model_says_that_it_can(sdk: anthropic.Anthropic) -> None:
    (model,) = sdk.beta.models.list()
    assert model.capabilities is not None
    can = model.capabilities.compaction
    assert can is not None
    assert can.supported
    assert can.summarize.supported
