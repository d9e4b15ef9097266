"""A client that gave up and asks again is not made to wait for the same prefill twice."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from service.auth import add_key
from tests.support.lives import Connection, assert_stops_well, ended, recorded_events, until
from tests.support.messages import body, check_order
from tests.support.running import Running, real_service
from tests.support.tiny_checkpoint import write_tiny_checkpoint


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    return file, add_key(file)[1], add_key(file)[1]


@pytest.fixture(scope="module")
def service(
    tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, str, str]
) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("model") / "tiny"
    write_tiny_checkpoint(folder, context_tokens=8192)
    data = tmp_path_factory.mktemp("data")
    with real_service(folder, data, "--api-key-file", str(keys[0])) as running:
        yield running
        assert_stops_well(running)


@pytest.mark.parametrize("again", [1, 2], ids=["the same key", "another key"])
def test_what_a_cancelled_run_has_computed_is_its_keys_own(
    service: Running, keys: tuple[Path, str, str], again: int
) -> None:
    service.headers["x-api-key"] = keys[1]
    # A text of its own, of which nothing is computed yet.
    long = {**body(f"{again} " + "lorem ipsum " * 450), "stream": True, "max_tokens": 2}
    with Connection(service.url, long, **service.headers) as first:
        first_id = first.run_id()
        until(lambda: len(recorded_events(service, service.run(first_id), "prefill")) > 1)
        engine = psutil.Process(service.engine_pid())
        engine.suspend()  # so that it cannot be done before it is told
        first.close()
        until(lambda: service.run(first_id)["cancel_requested_at"])
        engine.resume()
        cancelled = ended(service, first_id)
    done = recorded_events(service, cancelled, "prefill")[-1]["done"]
    assert 0 < done < cancelled["input_tokens"]
    service.headers["x-api-key"] = keys[again]
    with Connection(service.url, long, **service.headers) as second:
        check_order(second.read_to_end())
        run = ended(service, second.run_id())
    reused = done if again == 1 else 0
    assert run["telemetry"]["prefilled_tokens"] == run["input_tokens"] - reused
