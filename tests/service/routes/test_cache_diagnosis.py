"""Why a prompt was not in the cache as far as an earlier one, told from that one's record."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import anthropic
import httpx
import pytest

from service.auth import add_key
from tests.support.batches import create_batch, results
from tests.support.cached import marked
from tests.support.lives import assert_quiet_log
from tests.support.messages import body, events_of
from tests.support.running import Running, scripted_service
from tests.support.tiny_qwen import write_tiny_qwen

RUN = {"name": "run", "description": "Runs it.", "input_schema": {"type": "object"}}
NOT_FOUND = {"type": "previous_message_not_found"}
UNAVAILABLE = {"type": "unavailable"}


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    return file, add_key(file)[1], add_key(file)[1]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose prompts have tools."""
    return write_tiny_qwen(tmp_path_factory.mktemp("models") / "qwen", "qwen2.5")


@pytest.fixture(scope="module")
def service(
    model: Path, tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, str, str]
) -> Iterator[Running]:
    with scripted_service(
        model, tmp_path_factory.mktemp("data"), api_key_file=str(keys[0])
    ) as running:
        running.headers["x-api-key"] = keys[1]
        yield running
        assert_quiet_log(running)


@pytest.fixture
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def opening() -> dict[str, Any]:
    return body("first", system=[marked(uuid4().hex)], tools=[RUN])


def answered(client: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/v1/messages", json=request)
    assert answer.status_code == 200, answer.text
    return answer.json()


def compared(client: httpx.Client, request: dict[str, Any], previous: Any) -> Any:
    """The diagnosis of a request compared to the message of that id."""
    asked = {**request, "diagnostics": {"previous_message_id": previous}}
    diagnostics = answered(client, asked)["diagnostics"]
    start = events_of(client, asked)[0]
    assert start["message"]["diagnostics"] == diagnostics
    return diagnostics and diagnostics["cache_miss_reason"]


def grown(request: dict[str, Any], *texts: str) -> dict[str, Any]:
    """The next request of a conversation."""
    roles = ("assistant", "user")
    more = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return {**request, "messages": [*request["messages"], *more]}


def test_nothing_is_missed_where_the_prompt_goes_on(
    client: httpx.Client, opening: dict[str, Any]
) -> None:
    first = answered(client, opening)
    assert first["diagnostics"] is None
    assert compared(client, opening, None) is None
    assert compared(client, opening, first["id"]) is None
    assert compared(client, grown(opening, "ok", "more"), first["id"]) is None


def test_other_system_text_is_the_reason(client: httpx.Client, opening: dict[str, Any]) -> None:
    first = answered(client, opening)
    kept = first["usage"]["cache_creation_input_tokens"]
    reason = compared(client, {**opening, "system": "You are another."}, first["id"])
    assert reason["type"] == "system_changed"
    assert 0 < reason["cache_missed_input_tokens"] <= kept


@pytest.mark.parametrize(
    "tools", [[], [{**RUN, "description": "Runs it?"}], [RUN, {**RUN, "name": "walk"}]]
)
def test_other_tools_are_the_reason(
    client: httpx.Client, opening: dict[str, Any], tools: list[dict[str, Any]]
) -> None:
    first = answered(client, {**opening, "cache_control": {"type": "ephemeral"}})
    reason = compared(client, {**opening, "tools": tools}, first["id"])
    assert reason["type"] == "tools_changed"
    assert reason["cache_missed_input_tokens"] > 0


def test_other_messages_are_the_reason(client: httpx.Client, opening: dict[str, Any]) -> None:
    long = grown(opening, "ok", "more")
    long["messages"][-1] = {"role": "user", "content": [marked("more")]}
    first = answered(client, long)
    edited = {**long, "messages": [{"role": "user", "content": "forst"}, *long["messages"][1:]]}
    reason = compared(client, edited, first["id"])
    assert reason["type"] == "messages_changed"
    kept = first["usage"]["cache_creation_input_tokens"]
    unlike = len("first") - len("f")
    assert unlike < reason["cache_missed_input_tokens"] < kept


def test_marks_that_move_are_no_reason(client: httpx.Client, opening: dict[str, Any]) -> None:
    first = answered(client, opening)
    unmarked = [{"type": "text", "text": opening["system"][0]["text"]}]
    moved = {**opening, "system": unmarked, "cache_control": {"type": "ephemeral"}}
    assert compared(client, moved, first["id"]) is None


@pytest.mark.parametrize("id", ["msg_" + 24 * "0", "msg_", "", "x\0", 500 * "é", "run_1"])
def test_a_message_that_is_not_known_is_not_found(
    client: httpx.Client, opening: dict[str, Any], id: str
) -> None:
    assert compared(client, opening, id) == NOT_FOUND


def test_a_message_of_another_key_is_not_found(
    service: Running, client: httpx.Client, keys: tuple[Path, str, str], opening: dict[str, Any]
) -> None:
    with service.client(headers={"x-api-key": keys[2]}) as other:
        theirs = answered(other, opening)["id"]
    assert compared(client, opening, theirs) == NOT_FOUND


def record_of(service: Running, message_id: str) -> Path:
    [folder] = service.data_dir.glob(f"runs/*/*/*/run_{message_id.removeprefix('msg_')}")
    return folder


def lost(record: Path) -> None:
    shutil.rmtree(record)


def damaged(record: Path) -> None:
    (record / "prompt.json").write_text("{")


def of_an_earlier_version(record: Path) -> None:
    prompt = json.loads((record / "prompt.json").read_text())
    del prompt["boundaries"], prompt["system_sha256"], prompt["tools_sha256"]
    (record / "prompt.json").write_text(json.dumps(prompt))


def odd(record: Path) -> None:
    prompt = json.loads((record / "prompt.json").read_text())
    (record / "prompt.json").write_text(json.dumps({**prompt, "ids": [-1, 1e9, "a"]}))


@pytest.mark.parametrize("damage", [lost, damaged, of_an_earlier_version, odd])
def test_what_cannot_be_read_is_unavailable(
    service: Running, client: httpx.Client, opening: dict[str, Any], damage: Any
) -> None:
    first = answered(client, opening)["id"]
    damage(record_of(service, first))
    assert compared(client, {**opening, "system": "other"}, first) == UNAVAILABLE


def test_another_model_is_the_reason(
    service: Running, client: httpx.Client, opening: dict[str, Any]
) -> None:
    first = answered(client, opening)
    file = record_of(service, first["id"]) / "prompt.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "weights_sha256": "0" * 64}))
    assert compared(client, opening, first["id"]) == {
        "type": "model_changed",
        "cache_missed_input_tokens": first["usage"]["cache_creation_input_tokens"],
    }


def test_without_recorded_content_it_is_unavailable(
    model: Path, tmp_path: Path, opening: dict[str, Any]
) -> None:
    with (
        scripted_service(model, tmp_path, record_content=False) as service,
        service.client() as client,
    ):
        first = answered(client, opening)["id"]
        assert compared(client, opening, first) == UNAVAILABLE
        assert compared(client, opening, "msg_" + 24 * "0") == NOT_FOUND


def test_batches_and_repeated_requests_are_told(
    service: Running, client: httpx.Client, opening: dict[str, Any]
) -> None:
    previous = {"previous_message_id": answered(client, opening)["id"]}
    other = {**opening, "system": "other", "diagnostics": previous}
    [result] = results(service, create_batch(service, other))
    assert result["message"]["diagnostics"]["cache_miss_reason"]["type"] == "system_changed"
    same = {"idempotency-key": uuid4().hex}
    first, again = (client.post("/v1/messages", json=other, headers=same).json() for _ in range(2))
    assert first["diagnostics"] == result["message"]["diagnostics"]
    assert again == first


def test_the_official_client_is_told(service: Running, opening: dict[str, Any]) -> None:
    sdk = anthropic.Anthropic(
        base_url=service.url,
        api_key=service.headers["x-api-key"],
        max_retries=0,
        _strict_response_validation=True,
    )
    opening["model"] = "qwen"
    first = sdk.messages.create(**opening)
    asked: Any = {
        **opening,
        "system": "other",
        "diagnostics": {"previous_message_id": first.id},
        "betas": ["cache-diagnosis-2026-04-07"],
    }
    diagnostics = sdk.beta.messages.create(**asked).diagnostics
    assert diagnostics is not None
    assert diagnostics.cache_miss_reason is not None
    assert diagnostics.cache_miss_reason.type == "system_changed"
    assert diagnostics.cache_miss_reason.cache_missed_input_tokens > 0
