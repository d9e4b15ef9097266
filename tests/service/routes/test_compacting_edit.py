"""`compact_20260112`: a summary is made when it is due, and the answer goes on from it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from tests.service.routes.test_compaction import TALK
from tests.service.routes.test_compaction import model as model  # fixtures
from tests.service.routes.test_compaction import sdk as sdk
from tests.support.batches import create_batch, results
from tests.support.cached import counted, total
from tests.support.messages import body, events_of
from tests.support.running import Running, scripted_service

BETAS = ["compact-2026-01-12", "context-management-2025-06-27"]
ASKED: list[Any] = [*TALK, {"role": "user", "content": "And now?"}]


@pytest.fixture(scope="module")
def service(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with scripted_service(model, tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.fixture(scope="module")
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


def compact(summary: str = "They read it.", trigger: int = 0, **more: Any) -> dict[str, Any]:
    """Has the scripted engine write that summary."""
    value = {"type": "input_tokens", "value": trigger}
    script = json.dumps({"say": summary})
    return {"type": "compact_20260112", "trigger": value, "instructions": script, **more}


def compacting(*edits: dict[str, Any], **fields: Any) -> dict[str, Any]:
    management = {"edits": list(edits or [compact()])}
    return body(**{"messages": ASKED, "context_management": management, **fields})


def answering(**script: Any) -> dict[str, Any]:
    """A summary that tells the scripted engine what to answer to it."""
    return compact(json.dumps(script))


def test_the_answer_comes_after_the_summary_and_is_one_to_it(client: httpx.Client) -> None:
    message = client.post("/v1/messages", json=compacting(answering(say="Now go."))).json()
    block, text = message["content"]
    assert block["content"] == json.dumps({"say": "Now go."})
    assert text == {"type": "text", "text": "Now go."}
    assert message["stop_reason"] == "end_turn"
    assert message["context_management"] == {"applied_edits": []}


def test_what_the_summary_takes_is_told_for_itself(client: httpx.Client) -> None:
    usage = client.post("/v1/messages", json=compacting()).json()["usage"]
    summary, answer = usage["iterations"]
    assert (summary["type"], answer["type"]) == ("compaction", "message")
    assert total(summary) > counted(client, body(messages=ASKED))
    assert total(answer) == total(usage)
    assert answer["output_tokens"] == usage["output_tokens"] < summary["output_tokens"]


def test_the_prompt_after_the_summary_is_that_of_who_sends_it_back(
    client: httpx.Client, prompts_of: Callable[[httpx.Response], list[list[int]]]
) -> None:
    fields: dict[str, Any] = {"system": "Be brief.", "tools": [{"name": "t", "input_schema": {}}]}
    first = client.post("/v1/messages", json=compacting(**fields))
    (block, *_) = first.json()["content"]
    alone = [{"role": "assistant", "content": [block]}]
    ((plain,),) = (prompts_of(client.post("/v1/messages", json=body(messages=alone, **fields))),)
    asking, answering = prompts_of(first)
    assert answering == plain
    assert asking[:20] == plain[:20]


def test_the_conversation_goes_on_with_all_messages_or_without_the_old_ones(
    client: httpx.Client,
) -> None:
    answer = client.post("/v1/messages", json=compacting()).json()
    later = [{"role": "assistant", "content": answer["content"]}, TALK[0]]
    short = counted(client, body(messages=later))
    assert counted(client, body(messages=[*ASKED, *later])) == short
    assert short < counted(client, body(messages=[*ASKED, TALK[1], TALK[0]])) + 100


def test_a_pause_leaves_the_answer_to_the_next_request(client: httpx.Client) -> None:
    edit = compact(pause_after_compaction=True)
    message = client.post("/v1/messages", json=compacting(edit)).json()
    (block,) = message["content"]
    assert block["content"] == "They read it."
    assert message["stop_reason"] == "compaction"
    assert total(message["usage"]) == message["usage"]["output_tokens"] == 0
    assert [each["type"] for each in message["usage"]["iterations"]] == ["compaction"]
    resumed = [*ASKED, {"role": "assistant", "content": message["content"]}]
    answer = client.post("/v1/messages", json=compacting(edit, messages=resumed)).json()
    assert answer["content"] == [{"type": "text", "text": "ok"}]


def test_a_stream_has_both(client: httpx.Client) -> None:
    whole = client.post("/v1/messages", json=compacting()).json()
    events = [each for each in events_of(client, compacting()) if each["type"] != "ping"]
    asked = events[0]["message"]["usage"]["input_tokens"]  # of the summary, until the end
    deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
    assert deltas[0] == {"type": "compaction_delta", "content": "They read it."}
    assert {each["type"] for each in deltas[1:]} == {"text_delta"}
    (ending,) = [each for each in events if each["type"] == "message_delta"]
    assert ending["usage"]["iterations"] == whole["usage"]["iterations"]
    assert asked == total(ending["usage"]["iterations"][0])
    assert total(ending["usage"]) == total(whole["usage"]) > 0


@pytest.mark.parametrize(
    "edits",
    [[compact(trigger=10_000)], [{"type": "compact_20260112"}]],
)
def test_nothing_is_summarised_before_it_is_due(client: httpx.Client, edits: list[Any]) -> None:
    message = client.post("/v1/messages", json=compacting(*edits)).json()
    assert message["content"] == [{"type": "text", "text": "ok"}]
    assert "iterations" not in message["usage"]
    assert total(message["usage"]) == counted(client, body(messages=ASKED))


def test_in_a_small_context_it_is_due_before_that_is_full(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    messages = [{"role": "user", "content": "a" * int(model["max_input_tokens"] * 0.8)}, *ASKED]
    for edit in ({"type": "compact_20260112"}, {**compact(), "trigger": None}):
        message = client.post("/v1/messages", json=compacting(edit, messages=messages)).json()
        assert message["content"][0]["type"] == "compaction", message


def test_edits_before_it_are_made_first(client: httpx.Client) -> None:
    call = {"type": "tool_use", "id": "t", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "a long line\n" * 100}
    messages = [
        ASKED[0],
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result]},
    ]
    due = counted(client, body(messages=messages)) - 50
    clear = {"type": "clear_tool_uses_20250919", "trigger": {"type": "tool_uses", "value": 0},
             "keep": {"type": "tool_uses", "value": 0}}  # fmt: skip
    first = client.post(
        "/v1/messages", json=compacting(clear, compact(trigger=due), messages=messages)
    ).json()
    assert first["content"][0]["type"] == "text"
    assert len(first["context_management"]["applied_edits"]) == 1
    last = client.post(
        "/v1/messages", json=compacting(compact(trigger=due), clear, messages=messages)
    ).json()
    assert last["content"][0]["type"] == "compaction"
    assert last["context_management"]["applied_edits"] == []


def test_without_a_summary_the_conversation_itself_is_answered(
    client: httpx.Client, prompts_of: Callable[[httpx.Response], list[list[int]]]
) -> None:
    first = client.post("/v1/messages", json=compacting(compact("")))
    assert first.json()["content"] == [
        {"type": "compaction", "content": None},
        {"type": "text", "text": "ok"},
    ]
    ((plain,),) = (prompts_of(client.post("/v1/messages", json=body(messages=ASKED))),)
    assert prompts_of(first)[1] == plain


def test_calls_may_follow_the_summary(client: httpx.Client) -> None:
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    say = '<tool_call>\n{"name": "read", "arguments": {"n": 1}}\n</tool_call>'
    request = compacting(answering(say=say), tools=tools)
    message = client.post("/v1/messages", json=request).json()
    _, call = message["content"]
    assert (call["name"], call["input"]) == ("read", {"n": 1})
    assert message["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "x"}
    messages = [
        *ASKED,
        {"role": "assistant", "content": message["content"]},
        {"role": "user", "content": [result]},
    ]
    follow = client.post("/v1/messages", json=body(messages=messages, tools=tools))
    assert follow.json()["stop_reason"] == "end_turn"


def test_stop_sequences_are_for_the_answer(client: httpx.Client) -> None:
    request = compacting(answering(say="one XX two"), stop_sequences=["XX", "say"])
    message = client.post("/v1/messages", json=request).json()
    assert message["content"][0]["content"] == json.dumps({"say": "one XX two"})
    assert message["content"][1]["text"] == "one "
    assert message["stop_sequence"] == "XX"


def test_the_answer_has_its_own_budget(client: httpx.Client) -> None:
    edit = answering(say="abcdefghij" * 10)
    message = client.post("/v1/messages", json=compacting(edit, max_tokens=5)).json()
    assert message["stop_reason"] == "max_tokens"
    assert (
        message["usage"]["output_tokens"] == 5 < message["usage"]["iterations"][0]["output_tokens"]
    )


@pytest.mark.parametrize("betas", [[], BETAS])
def test_the_official_client_goes_on_from_it(sdk: anthropic.Anthropic, betas: list[str]) -> None:
    request: dict[str, Any] = {**compacting(), "betas": betas}
    whole = sdk.beta.messages.create(**request)
    with sdk.beta.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    assert streamed.content[0] == whole.content[0]
    assert streamed.content[1].text == whole.content[1].text == "ok"
    for message in (whole, streamed):
        assert message.usage.iterations is not None
        assert [each.type for each in message.usage.iterations] == ["compaction", "message"]
        history = [*ASKED, message.to_param(), {"role": "user", "content": "Go on."}]
        follow = sdk.beta.messages.create(**body(messages=history))
        assert follow.stop_reason == "end_turn"


def test_an_answer_that_is_asked_for_again_is_given_again(client: httpx.Client) -> None:
    headers = {"idempotency-key": "compacted"}
    first, again = (
        client.post("/v1/messages", json=compacting(), headers=headers).json() for _ in range(2)
    )
    assert again == first
    assert len(first["usage"]["iterations"]) == 2


def test_a_batch_has_both_in_its_results(service: Running, client: httpx.Client) -> None:
    (result,) = results(service, create_batch(service, compacting()))
    whole = client.post("/v1/messages", json=compacting()).json()
    assert result["message"]["content"] == whole["content"]
    assert result["message"]["usage"] == whole["usage"]


def test_the_served_model_says_that_it_can(sdk: anthropic.Anthropic) -> None:
    (model,) = sdk.models.list()
    assert model.capabilities is not None
    assert model.capabilities.context_management.compact_20260112 is not None
    assert model.capabilities.context_management.compact_20260112.supported


@pytest.fixture
def prompts_of(service: Running) -> Callable[[httpx.Response], list[list[int]]]:
    """The prompts of all rounds of a run, as its record has them."""

    def read(response: httpx.Response) -> list[list[int]]:
        assert response.status_code == 200, response.text
        (folder,) = service.data_dir.glob(f"runs/*/*/*/{response.headers['mererun-run']}")
        prompts: list[list[int]] = [json.loads((folder / "prompt.json").read_text())["ids"]]
        said = list(prompts[0])
        for line in (folder / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "tokens":
                said += event["ids"]
            elif event["event"] == "round":
                prompts.append(said[: event["kept"]] + event["ids"])
                said = list(prompts[-1])
        return prompts

    return read
