"""Message Batches as the SDK and plain clients see them."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic import (
    Anthropic,
    AnthropicError,
    BadRequestError,
    NotFoundError,
    RequestTooLargeError,
)
from anthropic.types.messages import MessageBatch

from service.auth import add_key
from tests.support.lives import assert_quiet_log, assert_stored_well, until
from tests.support.messages import body, scripted
from tests.support.refusals import refused
from tests.support.running import Running, scripted_service

PATH = "/v1/messages/batches"
LIMIT = 20
WAITING = scripted(say="abc", then="wait")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    return file, add_key(file)[1], add_key(file)[1]


@pytest.fixture(scope="module")
def service(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, str, str]
) -> Iterator[Running]:
    settings: dict[str, Any] = {
        "api_key_file": str(keys[0]),
        "batch_requests_limit": LIMIT,
        "batch_body_limit_bytes": 3 << 20,
        "body_limit_bytes": 1 << 20,
        "ping_seconds": 0.1,
    }
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data, **settings) as running:
        yield running
        assert running.stop() == 0
        assert_quiet_log(running)
        assert_stored_well(data)


@pytest.fixture(scope="module")
def sdk(service: Running, keys: tuple[Path, str, str]) -> Iterator[Anthropic]:
    with Anthropic(api_key=keys[1], base_url=service.url, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def other(service: Running, keys: tuple[Path, str, str]) -> Iterator[Anthropic]:
    with Anthropic(api_key=keys[2], base_url=service.url, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def client(service: Running, keys: tuple[Path, str, str]) -> Iterator[httpx.Client]:
    with service.client(headers={"x-api-key": keys[1]}) as client:
        yield client


@pytest.fixture
def blocked(sdk: Anthropic) -> Iterator[MessageBatch]:
    """A batch that does not end by itself, with one request running and one waiting."""
    batch = create(sdk, running=WAITING, waiting=body())
    yield batch
    if sdk.messages.batches.retrieve(batch.id).processing_status != "ended":
        sdk.messages.batches.cancel(batch.id)
        ended(sdk, batch)


def create(sdk: Anthropic, **requests: dict[str, Any]) -> MessageBatch:
    listed: Any = [{"custom_id": name, "params": params} for name, params in requests.items()]
    return sdk.messages.batches.create(requests=listed)


def ended(sdk: Anthropic, batch: MessageBatch) -> MessageBatch:
    def found() -> MessageBatch | None:
        now = sdk.messages.batches.retrieve(batch.id)
        if now.processing_status == "ended":
            return now
        assert counts(now) == {"processing": total(batch)}
        return None

    now = until(found)
    assert now is not None
    assert total(now) == total(batch)
    return now


def counts(batch: MessageBatch) -> dict[str, int]:
    return {name: count for name, count in batch.request_counts.to_dict().items() if count}


def total(batch: MessageBatch) -> int:
    return sum(batch.request_counts.to_dict().values())


def outcomes(sdk: Anthropic, batch: MessageBatch) -> dict[str, str]:
    return {each.custom_id: each.result.type for each in sdk.messages.batches.results(batch.id)}


def until_running(client: httpx.Client, batch: MessageBatch, custom_id: str) -> None:
    with client.stream("GET", f"{PATH}/{batch.id}/events") as response:
        for event in parse_progress(response):
            if (event.get("custom_id"), event.get("state")) == (custom_id, "running"):
                return
    raise AssertionError("it has ended")


def parse_progress(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The events, each with its id."""
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/event-stream")
    id = None
    for line in response.iter_lines():
        if line.startswith("id: "):
            id = int(line.removeprefix("id: "))
        elif line.startswith("data: "):
            yield {"id": id, **json.loads(line.removeprefix("data: "))}
            id = None


def post(client: httpx.Client, requests: Any, **headers: str) -> httpx.Response:
    return client.post(PATH, json={"requests": requests}, headers=headers)


def test_a_batch_is_created_polled_and_read(sdk: Anthropic) -> None:
    batch = create(sdk, one=body("first"), two=scripted(say="second"))
    assert batch.id.startswith("msgbatch_")
    assert (batch.type, batch.processing_status) == ("message_batch", "in_progress")
    assert counts(batch) == {"processing": 2}
    assert (batch.expires_at - batch.created_at).total_seconds() == 24 * 3600
    assert (batch.ended_at, batch.results_url, batch.cancel_initiated_at) == (None, None, None)
    done = ended(sdk, batch)
    assert counts(done) == {"succeeded": 2}
    assert done.ended_at is not None
    assert done.ended_at >= done.created_at
    assert done.results_url == f"{str(sdk.base_url).rstrip('/')}{PATH}/{batch.id}/results"
    one, two = sdk.messages.batches.results(batch.id)
    assert (one.custom_id, two.custom_id) == ("one", "two")
    assert two.result.type == "succeeded"
    message = two.result.message
    assert (message.type, message.role, message.stop_reason) == ("message", "assistant", "end_turn")
    assert [block.text for block in message.content if block.type == "text"] == ["second"]
    assert message.usage.output_tokens > 0


def test_a_bad_request_among_good_ones_is_errored_alone(sdk: Anthropic) -> None:
    bad: dict[str, tuple[dict[str, Any], str]] = {
        "empty": ({}, "model: Field required"),
        "stream": (body(stream=True), "params.stream: "),
        "model": (body(model="gpt-4"), "model: gpt-4 is not served here"),
        "roles": (body(messages=[{"role": "robot", "content": "x"}]), "messages.0.role: "),
        "long": (body(max_tokens=10**9), "input length and `max_tokens` exceed"),
    }
    batch = create(sdk, a=body(), **{name: params for name, (params, _) in bad.items()}, z=body())
    assert counts(ended(sdk, batch)) == {"succeeded": 2, "errored": len(bad)}
    results = {each.custom_id: each.result for each in sdk.messages.batches.results(batch.id)}
    assert list(results) == ["a", *bad, "z"]
    for name, (_, message) in bad.items():
        result = results[name]
        assert result.type == "errored"
        assert result.error.type == "error"
        kind = "not_found_error" if name == "model" else "invalid_request_error"
        assert result.error.error.type == kind
        assert result.error.error.message.startswith(message)
        assert result.error.request_id is not None


def test_results_are_lines_of_json(sdk: Anthropic, client: httpx.Client) -> None:
    batch = ended(sdk, create(sdk, a=body("line\n\nbreaks"), b={}))
    response = client.get(f"{PATH}/{batch.id}/results")
    assert response.headers["content-type"] == "application/x-jsonl"
    assert response.text.endswith("}\n")
    lines = [json.loads(line) for line in response.text.splitlines()]
    assert [line.keys() for line in lines] == [{"custom_id", "result"}] * 2
    assert lines[1]["result"].keys() == {"type", "error"}
    assert lines[1]["result"]["error"].keys() == {"type", "error", "request_id"}


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "requests: Input should not be empty"),
        ({}, "requests: Input should be a list"),
        ([1], "requests.0 must be a JSON object"),
        (
            [{"custom_id": "a", "params": body()}] * 2,
            "requests.1.custom_id: 'a' is that of requests.0 already",
        ),
        ([{"custom_id": "bad id!", "params": body()}], "requests.0.custom_id: Input should be"),
        ([{"custom_id": "a", "params": "x"}], "requests.0.params: Input should be an object"),
    ],
)
def test_a_wrong_shape_refuses_the_whole_batch(sdk: Anthropic, requests: Any, message: str) -> None:
    before = [batch.id for batch in sdk.messages.batches.list().data]
    with pytest.raises(BadRequestError) as caught:
        sdk.messages.batches.create(requests=requests)
    assert caught.value.type == "invalid_request_error"
    assert message in str(caught.value)
    assert [batch.id for batch in sdk.messages.batches.list().data] == before


def test_a_batch_over_a_limit_is_refused_by_its_name(sdk: Anthropic, client: httpx.Client) -> None:
    many = {f"n{number}": body() for number in range(LIMIT + 1)}
    with pytest.raises(RequestTooLargeError, match=f"a batch may have at most {LIMIT}"):
        create(sdk, **many)
    with pytest.raises(RequestTooLargeError, match=r"the request body is too large: .* 3 MiB"):
        create(sdk, a=body("x" * (4 << 20)))
    with pytest.raises(RequestTooLargeError, match=r"requests\.1 is too large: the limit is 1 MiB"):
        create(sdk, a=body(), b=body("x" * (2 << 20)))

    def pieces() -> Iterator[bytes]:
        yield b'{"requests":['
        for _ in range(4):
            yield b" " * (1 << 20)

    headers = {"content-type": "application/json"}
    message = refused(
        client.post(PATH, content=pieces(), headers=headers), 413, "request_too_large"
    )
    assert message == "the request body is too large: the limit is 3 MiB"
    # Other routes keep theirs.
    message = refused(client.post("/v1/messages", json=body("x" * (2 << 20))), 413,
                      "request_too_large")  # fmt: skip
    assert message.endswith("the limit is 1 MiB")


def test_a_body_of_several_requests_may_be_larger_than_one(sdk: Anthropic) -> None:
    large = body("x" * 900_000)
    batch = create(sdk, a=large, b=large, c=body())
    assert counts(ended(sdk, batch)) == {"errored": 2, "succeeded": 1}


def test_a_body_that_is_no_json_is_refused(client: httpx.Client) -> None:
    headers = {"content-type": "application/json"}
    for data, message in [
        (b"", "the request body is empty"),
        (b"[]", "the request body must be a JSON object"),
        (b'{"requests":[{"custom_id"', "the request body is not valid JSON"),
        (b'{"requests":[{"custom_id":"a","params":{"x":1e999}}]}', "requests.0 holds 1e999"),
        (gzip.compress(b"{}"), "the request body is not valid"),
    ]:
        assert refused(client.post(PATH, content=data, headers=headers)).startswith(message)
    assert refused(client.post(PATH, content=b"{}")).startswith("content-type: ")


def test_the_same_idempotency_key_makes_one_batch(sdk: Anthropic, client: httpx.Client) -> None:
    requests = [{"custom_id": "a", "params": body()}]
    first = post(client, requests, **{"idempotency-key": "k1"})
    again = post(client, requests, **{"idempotency-key": "k1"})
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json()["id"] == first.json()["id"]
    changed = post(client, [{"custom_id": "b", "params": body()}], **{"idempotency-key": "k1"})
    assert refused(changed).startswith("idempotency-key: another batch was sent with it")
    assert refused(post(client, requests, **{"idempotency-key": "x" * 300})).startswith(
        "idempotency-key: "
    )
    assert post(client, requests).json()["id"] != first.json()["id"]


def test_lists_are_newest_first_with_stable_cursors(sdk: Anthropic, client: httpx.Client) -> None:
    ids = [create(sdk, a=body()).id for _ in range(5)][::-1]
    page = client.get(PATH, params={"limit": 2}).json()
    assert [each["id"] for each in page["data"]] == ids[:2]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (ids[0], ids[1], True)
    create(sdk, a=body())
    page = client.get(PATH, params={"limit": 2, "after_id": ids[1]}).json()
    assert [each["id"] for each in page["data"]] == ids[2:4]
    page = client.get(PATH, params={"limit": 2, "before_id": ids[4]}).json()
    assert [each["id"] for each in page["data"]] == ids[2:4]
    found = [batch.id for batch in sdk.messages.batches.list(limit=2)]
    assert found[1:6] == ids
    assert len(found) == len(set(found))
    older = [batch.id for batch in sdk.messages.batches.list(limit=2, before_id=ids[4])]
    assert set(ids[:4]) <= set(older)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"limit": "0"}, "limit: "),
        ({"limit": "1001"}, "limit: "),
        ({"limit": "x"}, "limit: "),
        ({"limit": "-1"}, "limit: Input should be an integer from 1 to 1000"),
        ({"limit": "\u0663"}, "limit: "),
        ({"before_id": "a", "after_id": "b"}, "before_id: "),
    ],
)
def test_a_wrong_question_for_a_list_is_refused(
    client: httpx.Client, query: dict[str, str], message: str
) -> None:
    assert refused(client.get(PATH, params=query)).startswith(message)


def test_a_client_that_deletes_while_it_lists_is_told_that_its_place_is_gone(
    sdk: Anthropic, client: httpx.Client
) -> None:
    for _ in range(3):
        ended(sdk, create(sdk, a=body()))
    page = sdk.messages.batches.list(limit=2)
    for batch in page.data:
        sdk.messages.batches.delete(batch.id)
    with pytest.raises(NotFoundError, match=f"after_id: the batch {page.last_id} is not known"):
        page.get_next_page()
    for name in ("after_id", "before_id"):
        for cursor in ("msgbatch_x", "", "\x00", "'; DROP TABLE batches; --"):
            answer = client.get(PATH, params={name: cursor})
            assert refused(answer, 404, "not_found_error").startswith(f"{name}: ")


def test_what_needs_the_end_is_refused_before_it(
    sdk: Anthropic, client: httpx.Client, blocked: MessageBatch
) -> None:
    with pytest.raises(AnthropicError, match=r"No `?results_url"):
        sdk.messages.batches.results(blocked.id)
    message = refused(client.get(f"{PATH}/{blocked.id}/results"))
    assert message.startswith(f"batch: {blocked.id} has not ended")
    with pytest.raises(BadRequestError, match="has not ended; cancel it"):
        sdk.messages.batches.delete(blocked.id)
    assert sdk.messages.batches.retrieve(blocked.id).processing_status == "in_progress"


def test_cancellation_ends_what_runs_and_waits_and_spares_what_is_done(
    sdk: Anthropic, client: httpx.Client
) -> None:
    batch = create(sdk, done=body(), running=WAITING, waiting=body(), waits=body())
    until_running(client, batch, "running")
    cancelled = sdk.messages.batches.cancel(batch.id)
    assert cancelled.cancel_initiated_at is not None
    assert cancelled.processing_status in ("canceling", "ended")
    again = sdk.messages.batches.cancel(batch.id)
    assert again.cancel_initiated_at == cancelled.cancel_initiated_at
    done = ended(sdk, batch)
    assert counts(done) == {"succeeded": 1, "canceled": 3}
    assert outcomes(sdk, batch) == {
        "done": "succeeded", "running": "canceled", "waiting": "canceled", "waits": "canceled",
    }  # fmt: skip
    assert sdk.messages.batches.cancel(batch.id) == done


def test_an_ended_batch_is_not_cancelled_any_more(sdk: Anthropic) -> None:
    batch = ended(sdk, create(sdk, a=body()))
    assert sdk.messages.batches.cancel(batch.id) == batch
    assert batch.cancel_initiated_at is None


def test_a_deleted_batch_is_gone_with_its_records(sdk: Anthropic, service: Running) -> None:
    batch = ended(sdk, create(sdk, a=body("to be forgotten"), b=body()))
    records = {path.name for path in service.data_dir.glob("runs/*/*/*/*")}
    deleted = sdk.messages.batches.delete(batch.id)
    assert (deleted.id, deleted.type) == (batch.id, "message_batch_deleted")
    for use in (
        sdk.messages.batches.retrieve,
        sdk.messages.batches.cancel,
        sdk.messages.batches.delete,
        sdk.messages.batches.results,
    ):
        with pytest.raises(NotFoundError):
            use(batch.id)
    assert len(records - {path.name for path in service.data_dir.glob("runs/*/*/*/*")}) == 2


def test_a_batch_of_another_key_is_not_found(
    sdk: Anthropic, other: Anthropic, service: Running, keys: tuple[Path, str, str]
) -> None:
    batch = ended(sdk, create(sdk, a=body()))
    for use in (
        other.messages.batches.retrieve,
        other.messages.batches.cancel,
        other.messages.batches.delete,
        other.messages.batches.results,
    ):
        with pytest.raises(NotFoundError) as caught:
            use(batch.id)
        assert caught.value.type == "not_found_error"
    with service.client(headers={"x-api-key": keys[2]}) as theirs:
        for what in ("results", "events"):
            assert theirs.get(f"{PATH}/{batch.id}/{what}").status_code == 404
    assert batch.id not in [each.id for each in other.messages.batches.list()]
    assert outcomes(sdk, batch) == {"a": "succeeded"}


def test_unknown_batches_and_methods_are_refused(client: httpx.Client) -> None:
    for path in (f"{PATH}/x", f"{PATH}/x/results", f"{PATH}/x/events"):
        assert refused(client.get(path), 404, "not_found_error") == "batch: x is not known here"
    assert refused(client.post(f"{PATH}/x/cancel"), 404, "not_found_error")
    assert refused(client.delete(f"{PATH}/x"), 404, "not_found_error")
    for method, path in [("PUT", PATH), ("POST", f"{PATH}/x"), ("GET", f"{PATH}/x/cancel")]:
        response = client.request(method, path)
        assert refused(response, 405)
        assert response.headers["allow"]
    assert client.head(PATH).status_code == 200


def test_results_are_offered_at_the_address_that_was_asked(
    sdk: Anthropic, service: Running, keys: tuple[Path, str, str]
) -> None:
    batch = ended(sdk, create(sdk, a=body()))
    with service.client(headers={"x-api-key": keys[1], "host": "box.local:1234"}) as client:
        url = client.get(f"{PATH}/{batch.id}").json()["results_url"]
    assert url == f"http://box.local:1234{PATH}/{batch.id}/results"


def test_progress_is_followed_live_and_from_any_event_on(
    sdk: Anthropic, client: httpx.Client, blocked: MessageBatch
) -> None:
    path = f"{PATH}/{blocked.id}/events"
    events: list[dict[str, Any]] = []
    with client.stream("GET", path) as response:
        for event in parse_progress(response):
            events.append(event)
            if event["type"] == "ping" and events[-2]["type"] == "ping":
                sdk.messages.batches.cancel(blocked.id)
    told = [event for event in events if event["type"] == "progress"]
    assert [(event["custom_id"], event["state"]) for event in told[:3]] == [
        ("running", "queued"), ("waiting", "queued"), ("running", "running"),
    ]  # fmt: skip
    assert {(event["custom_id"], event["state"]) for event in told[3:]} == {
        ("waiting", "cancelled"), ("running", "cancelled"),
    }  # fmt: skip
    assert told[0]["counts"]["processing"] == 2
    assert told[0]["run_id"].startswith("run_")
    assert events[-1]["type"] == "ended"
    assert events[-1]["counts"] == {
        "processing": 0, "succeeded": 0, "errored": 0, "canceled": 2, "expired": 0,
    }  # fmt: skip
    for after in (told[1]["id"], told[-1]["id"]):
        rest = [event["id"] for event in told if event["id"] > after]
        for more in ({"params": {"after": after}}, {"headers": {"last-event-id": str(after)}}):
            with client.stream("GET", path, **more) as response:
                *again, last = parse_progress(response)
            assert [event["id"] for event in again] == rest
            assert last["type"] == "ended"
    wrong = "Input should be the number of an event, or 0"
    assert refused(client.get(path, params={"after": "x"})) == f"after: {wrong}"
    header = {"last-event-id": "-1"}
    assert refused(client.get(path, headers=header)) == f"Last-Event-ID: {wrong}"
    assert client.head(path).status_code == 200


def test_readers_of_progress_may_go_at_any_time(
    sdk: Anthropic, client: httpx.Client, blocked: MessageBatch
) -> None:
    for _ in range(10):
        with client.stream("GET", f"{PATH}/{blocked.id}/events") as response:
            next(parse_progress(response))
    assert counts(sdk.messages.batches.retrieve(blocked.id)) == {"processing": 2}


def test_interactive_requests_are_answered_while_a_batch_runs(
    sdk: Anthropic, client: httpx.Client, blocked: MessageBatch
) -> None:
    until_running(client, blocked, "running")
    answer = client.post("/v1/messages", json=body())
    assert answer.json()["content"] == [{"type": "text", "text": "ok"}]
    assert sdk.messages.batches.retrieve(blocked.id).processing_status == "in_progress"


def test_the_model_says_that_it_takes_batches(client: httpx.Client) -> None:
    (model,) = client.get("/v1/models").json()["data"]
    assert model["capabilities"]["batch"] == {"supported": True}


def test_a_batch_expires_with_its_time(tiny: Path, tmp_path: Path) -> None:
    settings = {"batch_expiry_seconds": 1.0, "housekeeping_seconds": 0.1}
    with scripted_service(tiny, tmp_path / "data", **settings) as service:
        sdk = Anthropic(api_key="x", base_url=service.url, max_retries=0)
        batch = create(sdk, done=body(), running=WAITING, waiting=body())
        done = ended(sdk, batch)
        assert done.cancel_initiated_at is None
        assert counts(done) == {"succeeded": 1, "expired": 2}
        assert list(outcomes(sdk, batch).values()) == ["succeeded", "expired", "expired"]
        assert service.stop() == 0
        assert_stored_well(service.data_dir)
