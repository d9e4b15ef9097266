"""Who can be done soon goes first, and who made room goes on where it was."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.scheduling.preemption import QUANTUM_TOKENS
from tests.support.batches import create_batch, results, runs_of, text_in
from tests.support.lives import (
    Connection,
    assert_answers,
    assert_one_at_a_time,
    assert_stops_well,
    assert_stored_well,
    ended,
    moves,
    open_runs,
    recorded_events,
    until,
)
from tests.support.messages import body, check_order, scripted, text_of
from tests.support.running import Running, real_service, scripted_service
from tests.support.tiny_checkpoint import write_tiny_checkpoint

PADDING = "x" * 3000  # one token a letter; beyond what is brief even when a step is done
ONCE_PREEMPTED = ["queued", "running", "queued", "running", "succeeded"]
WAITING = {**scripted(say="a", then="wait"), "stream": True}


@pytest.fixture(scope="module")
def service(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    data = tmp_path_factory.mktemp("data")
    with scripted_service(tiny, data) as running:
        yield running
        assert open_runs(running) == []
        assert_one_at_a_time(data)
        assert_stops_well(running)


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """While it is not there, long prefills stand still."""
    return tmp_path / "go"


def long(go: Path, **script: Any) -> dict[str, Any]:
    """A streamed request whose prefill is held in its first step."""
    return {**scripted(hold_file=str(go), prefill_steps=10, pad=PADDING, **script), "stream": True}


def in_prefill(service: Running, connection: Connection) -> str:
    """The id of the run, once it is there."""
    run_id = connection.run_id()
    until(lambda: recorded_events(service, service.run(run_id), "prefill"))
    return run_id


def is_waiting_again(service: Running, run_id: str) -> bool:
    run = service.run(run_id)
    return run["state"] == "queued" and run["attempt"] > 0


def assert_computed_once(run: dict[str, Any]) -> None:
    assert run["telemetry"]["prefilled_tokens"] == run["input_tokens"]


def test_a_brief_request_is_answered_during_a_long_prefill(service: Running, go: Path) -> None:
    with Connection(service.url, long(go, say="long")) as connection:
        run_id = in_prefill(service, connection)
        assert_answers(service)
        assert service.run(run_id)["state"] in ("queued", "running")
        go.touch()
        events = connection.read_to_end()
    check_order(events)
    assert text_of(events) == "long"
    run = ended(service, run_id)
    assert moves(run) == ONCE_PREEMPTED
    assert_computed_once(run)
    assert recorded_events(service, run, "suspended")


def test_every_brief_request_gets_its_turn_during_a_long_prefill(
    service: Running, go: Path
) -> None:
    with Connection(service.url, long(go)) as connection:
        run_id = in_prefill(service, connection)
        briefs = [Connection(service.url, {**body(), "stream": True}) for _ in range(3)]
        for brief in briefs:
            assert text_of(brief.read_to_end()) == "ok"
            brief.close()
        go.touch()
        check_order(connection.read_to_end())
    assert_computed_once(ended(service, run_id))


def test_brief_requests_cannot_starve_a_long_one(service: Running) -> None:
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.is_set():
            assert_answers(service)

    asking = [threading.Thread(target=keep_asking) for _ in range(2)]
    request = scripted(prefill_steps=40, step_ms=10, pad=PADDING)
    with Connection(service.url, {**request, "stream": True}) as connection:
        run_id = in_prefill(service, connection)
        for each in asking:
            each.start()
        try:
            check_order(connection.read_to_end())
        finally:
            stop.set()
            for each in asking:
                each.join()
    run = ended(service, run_id)
    assert moves(run).count("running") > 1
    assert_computed_once(run)


def test_a_brief_request_with_a_long_answer_takes_turns(
    service: Running, go: Path, tmp_path: Path
) -> None:
    answer, more = "b" * 600, tmp_path / "more"
    script = scripted(say=answer, hold_at=QUANTUM_TOKENS, hold_file=str(more))
    with Connection(service.url, long(go, say="long")) as connection:
        long_id = in_prefill(service, connection)
        request = {**script, "max_tokens": 700, "stream": True}
        with Connection(service.url, request) as brief:
            brief_id = brief.run_id()
            until(lambda: service.run(brief_id)["attempt"] > 1)
            assert service.run(long_id)["attempt"] > 1
            more.touch()
            assert text_of(brief.read_to_end()) == answer
        go.touch()
        assert text_of(connection.read_to_end()) == "long"
    run = ended(service, brief_id)
    generated = [each["ids"] for each in recorded_events(service, run, "tokens")]
    assert sum(map(len, generated)) == run["output_tokens"] == len(answer) + 1
    for run_id in (brief_id, long_id):
        assert_computed_once(service.run(run_id))


def test_a_run_that_waits_again_is_cancelled_with_what_it_has(service: Running, go: Path) -> None:
    batch = create_batch(service, scripted(say="background", hold_file=str(go), hold_at=4))
    [run] = runs_of(service, batch)
    until(lambda: len(recorded_events(service, run, "tokens")) == 4)
    with Connection(service.url, WAITING) as other, service.client() as client:
        other.read_until(b"content_block_delta")
        assert is_waiting_again(service, run["id"])
        client.post(f"/v1/runs/{run['id']}/cancel").raise_for_status()
        run = ended(service, run["id"])
    assert moves(run) == ["queued", "running", "queued", "cancelled"]
    assert run["output_tokens"] == 4
    assert results(service, batch) == [{"type": "canceled"}]


def test_a_client_may_go_while_its_run_is_suspended(service: Running, go: Path) -> None:
    with Connection(service.url, long(go)) as connection:
        run_id = in_prefill(service, connection)
        with Connection(service.url, WAITING) as brief:
            brief.read_until(b"content_block_delta")
            assert is_waiting_again(service, run_id)
            connection.close()
            assert moves(ended(service, run_id)) == ["queued", "running", "queued", "cancelled"]
    assert_answers(service)


def test_brief_requests_that_are_given_up_at_once_cost_a_long_one_nothing(
    service: Running, go: Path
) -> None:
    with Connection(service.url, long(go, say="long")) as connection:
        run_id = in_prefill(service, connection)
        for delay_ms in range(15):
            brief = Connection(service.url, WAITING)
            time.sleep(delay_ms / 1000)
            brief.close()
        go.touch()
        assert text_of(connection.read_to_end()) == "long"
    assert_computed_once(ended(service, run_id))


def test_an_engine_that_dies_costs_a_suspended_run_its_prefill_only(
    service: Running, go: Path
) -> None:
    with Connection(service.url, long(go, say="long")) as connection:
        run_id = in_prefill(service, connection)
        with Connection(service.url, {**scripted(then="die"), "stream": True}) as brief:
            assert brief.read_to_end()[-1]["type"] == "error"
        go.touch()
        assert text_of(connection.read_to_end()) == "long"
    run = ended(service, run_id)
    assert moves(run) == ONCE_PREEMPTED
    assert run["telemetry"]["prefilled_tokens"] > run["input_tokens"]


def test_background_work_makes_room_at_any_step(service: Running, go: Path) -> None:
    text = "background"
    for step in ("prefill", "tokens"):
        at = {"hold_at": 4} if step == "tokens" else {}
        batch = create_batch(service, scripted(say=text, hold_file=str(go / step), **at))
        [run] = runs_of(service, batch)
        until(lambda step=step, run=run: recorded_events(service, run, step))
        asked = {**scripted(say="now", pad=PADDING), "stream": True}
        with Connection(service.url, asked) as connection:
            assert text_of(connection.read_to_end()) == "now"
        go.mkdir(exist_ok=True)
        (go / step).touch()
        [result] = results(service, batch)
        assert text_in(result) == text
        run = ended(service, run["id"])
        assert moves(run) == ONCE_PREEMPTED
        assert_computed_once(run)
        generated = [each["ids"] for each in recorded_events(service, run, "tokens")]
        assert sum(map(len, generated)) == run["output_tokens"] == len(text) + 1


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_service_may_end_while_a_run_is_suspended(
    tiny: Path, tmp_path: Path, go: Path, how: str
) -> None:
    with scripted_service(tiny, tmp_path / "data", drain_seconds=0.1) as service:
        with Connection(service.url, long(go)) as connection:
            run_id = in_prefill(service, connection)
            with Connection(service.url, WAITING) as brief:
                brief.read_until(b"content_block_delta")
                assert is_waiting_again(service, run_id)
                if how == "stop":
                    assert service.stop() == 0
                    for each in (connection, brief):
                        assert each.read_to_end()[-1]["error"]["type"] == "overloaded_error"
                    assert_stored_well(service.data_dir)
                else:
                    service.kill()
        service.start()
        run = ended(service, run_id)
        assert moves(run) == ["queued", "running", "queued", "interrupted"]
        assert_answers(service)
        assert_stops_well(service)


LONG_TEXT = "lorem ipsum " * 450  # some twenty steps of the real engine


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_checkpoint(folder, context_tokens=8192)
    data = tmp_path_factory.mktemp("data")
    with real_service(folder, data) as running:
        yield running
        assert_one_at_a_time(data)
        assert_stops_well(running)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 7}], ids=["greedy", "sampled"])
def test_the_model_says_the_same_whether_it_was_suspended_or_not(
    real: Running, sampling: dict[str, Any]
) -> None:
    # A text of its own, so that nothing but what all prompts begin with is computed yet.
    request = {**body(f"{sampling} {LONG_TEXT}", **sampling), "stream": True, "max_tokens": 40}
    with Connection(real.url, request) as connection:
        run_id = in_prefill(real, connection)
        engine = psutil.Process(real.engine_pid())
        engine.suspend()  # so that it cannot be done before it is asked
        with Connection(real.url, {**body("brief"), "stream": True}) as brief:
            brief.run_id()
            engine.resume()
            check_order(brief.read_to_end())
        assert real.run(run_id)["state"] in ("queued", "running")
        said = text_of(connection.read_to_end())
    run = ended(real, run_id)
    assert moves(run) == ONCE_PREEMPTED
    assert 0.99 < run["telemetry"]["prefilled_tokens"] / run["input_tokens"] <= 1
    with Connection(real.url, request) as alone:
        assert text_of(alone.read_to_end()) == said
