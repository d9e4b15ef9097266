"""Conversations that the service holds: continued once, by their owner, whatever came between."""

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import httpx
import pytest

from service.auth import add_key
from storage.database import Database
from storage.retention import Keep, prune
from tests.support.batches import create_batch, results
from tests.support.cached import marked, split
from tests.support.fake_language import write_fake_checkpoint
from tests.support.lives import (
    Connection,
    assert_stops_well,
    end,
    ended,
    newest_run,
    open_runs,
    recorded_events,
    until,
)
from tests.support.messages import events_of, message_of
from tests.support.pdfs import document, drawn, pdf
from tests.support.running import Running, scripted_service

CALL = '<think>hm</think>Look.<call>run:{"cmd":"ls"}</call>'
RUN = {"name": "run", "input_schema": {"type": "object"}}
CREATE = {"type": "create"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that thinks and calls."""
    return write_fake_checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    return file, add_key(file)[1], add_key(file)[1]


@pytest.fixture(scope="module")
def service(
    model: Path, tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, str, str]
) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(model, data, api_key_file=str(keys[0]), drain_seconds=0.1) as running:
        running.headers["x-api-key"] = keys[1]
        yield running
        assert open_runs(running) == []
        assert_stops_well(running)


@pytest.fixture
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


def asking(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"model": "claude-test", "max_tokens": 500, "messages": list(messages), **more}


def user(*blocks: Any, **script: Any) -> dict[str, Any]:
    """A message with these blocks, and what the engine is to do."""
    return {"role": "user", "content": [*blocks, {"type": "text", "text": json.dumps(script)}]}


def onto(message: dict[str, Any]) -> dict[str, Any]:
    return {"type": "continue", "previous_message_id": message["id"]}


def result(message: dict[str, Any], text: str = "a b") -> dict[str, Any]:
    (call,) = [each for each in message["content"] if each["type"] == "tool_use"]
    return {"type": "tool_result", "tool_use_id": call["id"], "content": text}


def begun(client: httpx.Client, say: str = "one") -> dict[str, Any]:
    """The first message of a thread."""
    return answered(client, asking(user(say=say), thread=CREATE))


def answered(client: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/messages", json=request)
    assert answer.status_code == 200, answer.text
    return answer.json()


def streamed(client: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    return message_of(events_of(client, request))


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["details"]["error_code"]


def continuing(client: httpx.Client, message: dict[str, Any], **script: Any) -> httpx.Response:
    return client.post("/v1/messages", json=asking(user(**script), thread=onto(message)))


def kept(service: Running, message: dict[str, Any], name: str) -> Any:
    run = message["id"].replace("msg_", "run_")
    (file,) = service.data_dir.glob(f"runs/*/*/*/{run}/{name}.json")
    return json.loads(file.read_text())


@pytest.mark.parametrize("ask", [answered, streamed])
def test_a_thread_has_the_prompts_of_the_whole_conversation(
    service: Running,
    client: httpx.Client,
    ask: Callable[[httpx.Client, dict[str, Any]], dict[str, Any]],
) -> None:
    """Signed thinking, a call and its result, a PDF, and what was marked for the cache."""
    paper = {**document(pdf(drawn(uuid4().hex))), "cache_control": {"type": "ephemeral"}}
    unmarked = {key: each for key, each in paper.items() if key != "cache_control"}
    fixed = {"system": [marked(uuid4().hex)], "tools": [RUN]}
    more = {"thinking": {"type": "adaptive"}}
    messages: list[Any] = [
        {"role": "user", "content": [paper]},
        {"role": "assistant", "content": "I see."},
        user(say=CALL),
    ]
    first = ask(client, asking(*messages, **fixed, **more, thread=CREATE))
    assert [each["type"] for each in first["content"]] == ["thinking", "text", "tool_use"]
    messages += [{"role": "assistant", "content": first["content"]}, user(result(first), say="ok")]
    short = asking(messages[-1], **more, cache_control={"type": "ephemeral"})
    second = ask(client, {**short, "thread": onto(first)})
    messages += [{"role": "assistant", "content": second["content"]}, user(say="bye")]
    last = asking(messages[-1], **more, thread=onto(second))
    counted = client.post(
        "/v1/messages/count_tokens", json={**last, "max_tokens": None}
    ).raise_for_status()
    third = ask(client, last)
    assert split(second["usage"])[0] > 0
    assert split(third["usage"])[0] > 0

    whole = ask(client, asking(*messages, **fixed, **more))
    assert kept(service, third, "prompt")["ids"] == kept(service, whole, "prompt")["ids"]
    assert kept(service, first, "thread")["messages"][0]["content"] == [unmarked]
    assert kept(service, first, "request")["messages"][0]["content"] != [paper]
    usage = third["usage"]
    told = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert counted.json()["input_tokens"] == sum(usage[each] for each in told)


def test_the_edits_of_a_request_are_made_to_the_whole_thread(client: httpx.Client) -> None:
    edit = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 1},
        "keep": {"type": "tool_uses", "value": 0},
    }
    first = answered(client, asking(user(say=CALL), tools=[RUN], thread=CREATE))
    answer = asking(user(result(first, "a long line " * 50)), thread=onto(first))
    second = answered(client, answer)
    management = {"context_management": {"edits": [edit]}}
    third = answered(client, asking(user(say="on"), thread=onto(second), **management))
    (applied,) = third["context_management"]["applied_edits"]
    assert applied["cleared_tool_uses"] == 1
    fourth = continuing(client, third, say="all of it again").json()
    assert fourth["usage"]["input_tokens"] > third["usage"]["input_tokens"] + 300


def test_a_thread_goes_on_from_a_summary(service: Running, client: httpx.Client) -> None:
    first = begun(client, say="one, at length")
    summarize = {"type": "summarize", "instructions": json.dumps({"say": "They said it."})}
    message = answered(client, asking(user(), thread=onto(first), compaction=summarize))
    assert message["stop_reason"] == "compaction"
    said = answered(client, asking(user(say="on"), thread=onto(message)))
    (block,) = message["content"]
    short = [{"role": "assistant", "content": [block]}, user(say="on")]
    alike = answered(client, asking(*short))
    assert kept(service, said, "prompt")["ids"] == kept(service, alike, "prompt")["ids"]


def test_a_thread_keeps_each_message_once(service: Running, client: httpx.Client) -> None:
    message = begun(client, say="0")
    for number in range(1, 6):
        message = continuing(client, message, say=str(number)).json()
        (said,) = kept(service, message, "thread")["messages"]
        assert json.loads(said["content"][0]["text"]) == {"say": str(number)}
        assert kept(service, message, "request")["messages"] == [said]


def test_a_message_is_continued_once(client: httpx.Client) -> None:
    first = begun(client)
    assert continuing(client, first, say="two").status_code == 200
    assert code(continuing(client, first, say="three")) == (400, "thread_already_continued")


def test_of_many_that_continue_a_message_at_once_one_does(
    service: Running, client: httpx.Client, go: Path
) -> None:
    first = begun(client)
    before = len(service.runs())
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(continuing, client, first, say="x", hold_at=1, hold_file=str(go))
            for _ in range(8)
        ]
        until(lambda: sum(each.done() for each in asked) == 7)
        go.touch()
        answers = [each.result() for each in asked]
    (won,) = [each for each in answers if each.status_code == 200]
    lost = [each for each in answers if each is not won]
    assert {code(each) for each in lost} == {(400, "thread_continue_in_flight")}
    assert len(service.runs()) == before + 1
    assert continuing(client, won.json(), say="on").status_code == 200


def test_the_same_request_again_has_the_same_answer(
    service: Running, client: httpx.Client, go: Path
) -> None:
    first = begun(client)
    request = asking(user(say="x", hold_at=1, hold_file=str(go)), thread=onto(first))

    def ask() -> httpx.Response:
        headers = {"idempotency-key": first["id"]}
        return client.post("/v1/messages", json=request, headers=headers)

    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(ask) for _ in range(4)]
        until(lambda: len(recorded_events(service, newest_run(service), "joined")) == 3)
        go.touch()
        answers = [each.result().raise_for_status().json() for each in asked]
    assert [each["id"] for each in answers] == [answers[0]["id"]] * 4
    assert ask().json() == answers[0]


def test_a_message_whose_answer_is_not_there_yet_is_in_flight(
    service: Running, client: httpx.Client, go: Path
) -> None:
    script = {"say": "x", "hold_at": 1, "hold_file": str(go)}
    request = asking(user(**script), thread=CREATE, stream=True)
    with Connection(service.url, request, **service.headers) as first:
        message = {"id": first.run_id().replace("run_", "msg_")}
        assert code(continuing(client, message)) == (400, "thread_continue_in_flight")
        go.touch()
        first.read_to_end()
    assert continuing(client, message).status_code == 200


def test_what_came_to_nothing_leaves_the_message_as_it_was(
    service: Running, client: httpx.Client
) -> None:
    first = begun(client)
    refused = client.post("/v1/messages", json=asking({"role": "user"}, thread=onto(first)))
    assert refused.status_code == 400
    assert continuing(client, first, then="fail").status_code == 500
    request = asking(user(say="x", then="wait"), thread=onto(first), stream=True)
    with Connection(service.url, request, **service.headers) as gone:
        run = gone.run_id()
    assert ended(service, run)["state"] == "cancelled"
    cancelled = {"id": run.replace("run_", "msg_")}
    assert code(continuing(client, cancelled)) == (404, "thread_not_found")
    assert continuing(client, first, say="two").status_code == 200


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_thread_goes_on_after_a_restart(service: Running, how: str) -> None:
    with service.client() as client:
        first = begun(client)
        second = continuing(client, first, say="two").json()
    request = asking(user(say="x", then="wait"), thread=onto(second), stream=True)
    with Connection(service.url, request, **service.headers) as cut:
        cut.read_until(b"content_block_delta")
        end(service, how)
    with service.client() as client:
        assert code(continuing(client, first)) == (400, "thread_already_continued")
        third = continuing(client, second, say="three")
        assert third.status_code == 200
        whole = [json.loads(kept(service, each, "thread")["messages"][0]["content"][0]["text"])
                 for each in (first, second, third.json())]  # fmt: skip
        assert whole == [{"say": "one"}, {"say": "two"}, {"say": "three"}]


def test_what_is_no_message_of_the_callers_threads_is_not_found(
    client: httpx.Client, keys: tuple[Path, str, str]
) -> None:
    unheld = answered(client, asking(user(say="x")))
    for message in (unheld, {"id": "msg_" + "0" * 24}, {"id": "x"}, {"id": "x" * 1000}):
        answer = continuing(client, message)
        assert code(answer) == (404, "thread_not_found")
        assert len(answer.json()["error"]["message"]) < 300
    first = begun(client)
    request = asking(user(say="x"), thread=onto(first))
    answer = client.post("/v1/messages", json=request, headers={"x-api-key": keys[2]})
    assert code(answer) == (404, "thread_not_found")
    assert continuing(client, first).status_code == 200


def test_a_thread_of_which_a_record_is_gone_is_not_found(
    service: Running, client: httpx.Client, tmp_path: Path
) -> None:
    first = begun(client)
    second = continuing(client, first, say="two").json()
    record = service.data_dir / service.run(first["id"].replace("msg_", "run_"))["record"]
    aside = record.rename(tmp_path / "aside")
    assert code(continuing(client, second)) == (404, "thread_not_found")
    shutil.move(aside, record)
    assert continuing(client, second).status_code == 200


def test_a_thread_that_was_pruned_is_not_found(model: Path, tmp_path: Path) -> None:
    async def pruned() -> None:
        async with Database.open(service.data_dir / "mererun.db") as db:
            await prune(db, service.data_dir, Keep(days=0))

    with scripted_service(model, tmp_path / "data") as service, service.client() as client:
        first = begun(client)
        anyio.run(pruned)
        assert code(continuing(client, first)) == (404, "thread_not_found")
        assert_stops_well(service)


def test_where_no_content_is_recorded_there_are_no_threads(model: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with scripted_service(model, data) as service, service.client() as client:
        first = begun(client)
    with (
        scripted_service(model, data, record_content=False) as service,
        service.client() as client,
    ):
        for thread in (CREATE, onto(first)):
            answer = client.post("/v1/messages", json=asking(user(say="x"), thread=thread))
            assert code(answer) == (400, "thread_unsupported_request")
        answered(client, asking(user(say="x"), thread=None))
        assert not list(data.glob(f"runs/*/*/*/{newest_run(service)['id']}/thread.json"))
        assert_stops_well(service)


def test_a_request_in_a_batch_has_no_thread(service: Running) -> None:
    batch = create_batch(service, asking(user(say="x"), thread=CREATE))
    (line,) = results(service, batch)
    assert line["error"]["error"]["message"].startswith("params.thread: ")


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"system": "another"}, "system: "),
        ({"tools": [RUN, {**RUN, "name": "other"}]}, "tools: "),
        ({"system": "another", "tools": []}, "system and tools: "),
    ],
    ids=["system", "tools", "both"],
)
def test_system_and_tools_stay_what_they_were(
    client: httpx.Client, more: dict[str, Any], named: str
) -> None:
    fixed = {"system": "be brief", "tools": [RUN]}
    first = answered(client, asking(user(say="x"), **fixed, thread=CREATE))
    request = asking(user(say="y"), thread=onto(first))
    answer = client.post("/v1/messages", json={**request, **more})
    assert code(answer) == (400, "thread_fingerprint_mismatch")
    assert answer.json()["error"]["message"].startswith(named)
    answered(client, {**request, **fixed})  # the same again


def test_a_fault_is_told_with_its_place_in_the_request(client: httpx.Client) -> None:
    first = answered(client, asking(user(say=CALL), tools=[RUN], thread=CREATE))

    def said(*messages: Any) -> str:
        answer = client.post("/v1/messages", json=asking(*messages, thread=onto(first)))
        assert answer.status_code == 400
        return answer.json()["error"]["message"]

    assert said({"role": "user", "content": 1}).startswith("messages.0.content: ")
    done, wrong = user(result(first)), {**result(first), "tool_use_id": "x"}
    assert said(done, user(wrong)).startswith("messages.1.content.0.tool_use_id: ")
    assert said(user(say="x")).startswith("thread.messages.1.content.2: tool_use ids were found")


@pytest.mark.parametrize(
    ("thread", "said"),
    [
        ("create", "thread: Input should be an object"),
        ({}, "thread.type: Field required"),
        ({"type": "x"}, "thread.type: Input should be 'create' or 'continue'"),
        ({"type": "continue"}, "thread.previous_message_id: Field required"),
        (
            {"type": "continue", "previous_message_id": 1},
            "thread.previous_message_id: Input should be a valid string",
        ),
    ],
)
def test_a_thread_of_another_shape_is_refused(client: httpx.Client, thread: Any, said: str) -> None:
    answer = client.post("/v1/messages", json=asking(user(say="x"), thread=thread))
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, said)


def test_an_answer_that_was_cut_short_goes_on_without_a_new_message(client: httpx.Client) -> None:
    request = {**asking(user(say="one two"), thread=CREATE), "max_tokens": 3}
    first = answered(client, request)
    assert first["stop_reason"] == "max_tokens"
    answered(client, asking(thread=onto(first)))
    request = asking(thread=onto(begun(client)), messages=None)
    assert client.post("/v1/messages", json=request).status_code == 400
