"""A run that was interrupted goes on from its last token, to the answer it would have had."""

import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import anyio
import pytest

from storage.answer_pieces import CallArguments, CallStart, pieces_in
from storage.database import Database
from storage.jobs import Jobs
from tests.support.batches import create_batch, results, runs_of, text_in
from tests.support.endless import without_end
from tests.support.lives import (
    Connection,
    assert_answers,
    assert_one_at_a_time,
    assert_stops_well,
    end,
    ended,
    moves,
    newest_run,
    recorded_events,
    until,
)
from tests.support.messages import body, scripted
from tests.support.random_weights import write_random_weights
from tests.support.running import Running, real_service, scripted_service
from tests.support.tiny_checkpoint import byte_tokenizer, write_tiny_checkpoint
from tests.support.tiny_qwen import write_tiny_qwen

RESUMED = ["queued", "running", "queued", "running", "succeeded"]


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data, drain_seconds=0.1) as running:
        yield running
        assert_one_at_a_time(data)
        assert_stops_well(running)


@pytest.fixture
def go(tmp_path: Path) -> Path:
    return tmp_path / "go"


def generated(service: Running, run: dict[str, Any]) -> list[int]:
    return [id for event in recorded_events(service, run, "tokens") for id in event["ids"]]


def has_spoken(service: Running, run: dict[str, Any], attempt: int) -> bool:
    """Whether it has tokens of that attempt."""
    claims = recorded_events(service, run, "claimed")[attempt - 1 :]
    tokens = recorded_events(service, run, "tokens")
    return bool(claims and tokens) and tokens[-1]["seq"] > claims[0]["seq"]


def resume(service: Running, run_id: str) -> None:
    """As another process does."""

    async def ask() -> bool:
        async with Database.open(service.data_dir / "mererun.db") as db:
            return await Jobs(db).resume(run_id)

    assert anyio.run(ask)


def ids_of(text: str) -> list[int]:
    return byte_tokenizer().encode(text).ids


def assert_decoded_once(service: Running, run: dict[str, Any], text: str) -> None:
    """The record has each token of `text`, and the end of the turn, once; and its text."""
    ids = generated(service, run)
    assert len(ids) == run["output_tokens"]
    assert ids[:-1] == ids_of(text)
    events = recorded_events(service, run, "tokens")
    assert "".join(each["text"] for each in events) == text


@pytest.mark.parametrize("how", ["kill", "stop", "engine"])
@pytest.mark.parametrize("at", [0, 1, 4, 9], ids=["in prefill", "at one", "between", "at the end"])
def test_a_batch_goes_on_from_its_last_token(service: Running, go: Path, how: str, at: int) -> None:
    """The places in the text lie within a character and within a stop sequence as well."""
    text = "é€😀"  # 2, 3 and 4 tokens
    assert list(accumulate(len(each.encode()) for each in text)) == [2, 5, 9]
    batch = create_batch(service, scripted(say=text, hold_at=at, hold_file=str(go)))
    [run] = runs_of(service, batch)
    kind = "tokens" if at else "prefill"
    until(lambda: len(recorded_events(service, run, kind)) >= max(at, 1))
    end(service, how)
    go.touch()
    [result] = results(service, batch)
    assert text_in(result) == text
    run = ended(service, run["id"])
    assert moves(run) == RESUMED
    assert (run["lost_leases"], run["engine_deaths"]) == (how == "kill", how == "engine")
    assert_decoded_once(service, run, text)


@pytest.mark.parametrize("at", range(1, 5))
def test_a_stop_sequence_may_lie_on_both_sides_of_an_interruption(
    service: Running, go: Path, tmp_path: Path, at: int
) -> None:
    script = {"die_at": 2 + at, "die_once_file": str(tmp_path / "died")}
    request = {**scripted(say="abSTOPcd", **script), "stop_sequences": ["STOP", "TOC"]}
    [result] = results(service, create_batch(service, request))
    assert (text_in(result), result["message"]["stop_sequence"]) == ("ab", "STOP")
    assert result["message"]["usage"]["output_tokens"] == len("abSTOP")


@pytest.mark.parametrize(
    ("how", "state"), [("client", "cancelled"), ("kill", "interrupted"), ("stop", "interrupted")]
)
@pytest.mark.parametrize("at", [4, 8], ids=["half a character", "half a stop sequence"])
def test_an_operator_resumes_what_had_a_connection(
    service: Running, go: Path, how: str, state: str, at: int
) -> None:
    text = "ab😀ENDE"
    request = {**scripted(say=text, hold_at=at, hold_file=str(go)), "stream": True}
    with Connection(service.url, {**request, "stop_sequences": ["ENDING"]}) as connection:
        run_id = connection.run_id()
        until(lambda: len(generated(service, service.run(run_id))) == at)
        if how == "client":
            connection.close()
        else:
            end(service, how)
    run = ended(service, run_id)
    assert run["state"] == state
    assert len(generated(service, run)) == at
    go.touch()
    resume(service, run_id)
    run = ended(service, run_id)
    assert moves(run) == ["queued", "running", state, *RESUMED[2:]]
    assert_decoded_once(service, run, text)
    assert_answers(service)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("model")
    data = tmp_path_factory.mktemp("data")
    with real_service(without_end(write_tiny_checkpoint(folder / "endless")), data) as running:
        yield running
        assert_one_at_a_time(data)
        assert_stops_well(running)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 7}], ids=["greedy", "sampled"])
def test_the_model_says_what_it_would_have_said(real: Running, sampling: dict[str, Any]) -> None:
    """Interrupted by the death of the engine, and then by that of the service. What is asked has
    not been computed for another test."""
    request = {**body(f"{sampling} go on", **sampling), "max_tokens": 3_000}
    with real.client() as client:
        expected = client.post("/v1/messages", json=request).raise_for_status().json()
    batch = create_batch(real, request)
    [run] = runs_of(real, batch)
    for attempt, how in enumerate(("engine", "kill"), 1):
        until(lambda attempt=attempt: has_spoken(real, run, attempt))
        end(real, how)
    [result] = results(real, batch)
    message = result["message"]
    assert message["content"] == expected["content"]
    assert message["usage"] == expected["usage"]
    run = ended(real, run["id"])
    assert moves(run) == [*RESUMED[:-1], *RESUMED[2:]]
    assert len(generated(real, run)) == run["output_tokens"]


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Over a model that knows nothing and calls as it must."""
    folder = write_tiny_qwen(tmp_path_factory.mktemp("models") / "tiny", "qwen3")
    model = write_random_weights(folder)
    data = tmp_path_factory.mktemp("data")
    with real_service(model, data) as running:
        yield running
        assert_stops_well(running)


def test_a_guided_call_goes_on_as_it_would_have(guided: Running) -> None:
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 2000}
    schema = {"type": "object", "properties": {"numbers": numbers}, "required": ["numbers"]}
    request = {
        **body("go on", seed=7),
        "tools": [{"name": "add", "input_schema": schema}],
        "tool_choice": {"type": "any"},
        "max_tokens": 1_600,
    }
    with guided.client() as client:
        client.post("/v1/messages", json=request).raise_for_status()
    expected = arguments(guided, newest_run(guided))
    assert re.match(r'\s*{\s*"numbers"\s*:\s*\[[\s\d,.eE+-]{100}', expected)
    batch = create_batch(guided, request)
    [run] = runs_of(guided, batch)
    for attempt, how in enumerate(("engine", "kill"), 1):
        until(lambda attempt=attempt: has_spoken(guided, run, attempt))
        end(guided, how)
    [result] = results(guided, batch)
    assert result["message"]["stop_reason"] == "max_tokens"
    assert arguments(guided, run) == expected
    assert moves(ended(guided, run["id"])) == [*RESUMED[:-1], *RESUMED[2:]]


def arguments(service: Running, run: dict[str, Any]) -> str:
    """What was shown of the call of a run."""
    pieces = [
        piece for event in recorded_events(service, run, "tokens") for piece in pieces_in(event)
    ]
    assert [type(each) for each in pieces].count(CallStart) == 1
    return "".join(each.text for each in pieces if isinstance(each, CallArguments))
