"""SIGTERM under load: some answers end in time, the others are told, and a batch goes on later."""

from pathlib import Path

import psutil
import pytest

from tests.faults.fragile import LONG, assert_whole, fragile_service, long_only, texts
from tests.support.lives import Connection, assert_quiet_log, until
from tests.support.messages import check_order, scripted

DRAIN_SECONDS = 1.5
# What the service promises beyond the drain, and what a busy machine may add.
BEYOND_SECONDS = 2.0 + 3.0
QUICK = {**scripted(say="abc", step_ms=100), "stream": True}
WAITING = {**scripted(say="a", then="wait"), "stream": True}
ITEMS = {"first": scripted(say="abcdefghij", step_ms=100), "second": scripted(say="two")}
RIGHT = {"first": "abcdefghij", "second": "two"}


@pytest.mark.parametrize("time", range(3 if LONG else 1))
def test_the_streams_of_fifty_readers(tiny: Path, tmp_path: Path, time: int) -> None:
    with fragile_service(tiny, tmp_path / "data", drain_seconds=DRAIN_SECONDS) as service:
        batch = service.create_batch(ITEMS)
        until(lambda: service.runs("running"))
        streams = [Connection(service.url, QUICK)]
        streams[0].read_until(b"content_block_delta")
        streams += [Connection(service.url, WAITING) for _ in range(49)]
        for each in streams:
            each.run_id()
        service.process.terminate()
        check_order(streams[0].read_to_end())
        for each in streams[1:]:
            last = each.read_to_end()[-1]
            assert (last["type"], last["error"]["type"]) == ("error", "overloaded_error")
            each.close()
        streams[0].close()
        assert service.process.wait(DRAIN_SECONDS + BEYOND_SECONDS) == 0
        assert psutil.wait_procs(service.engines, 5)[1] == []
        assert_quiet_log(service)
        service.start()
        states = [run["state"] for run in service.runs() if not run["batch_id"]]
        assert sorted(states) == ["interrupted"] * 49 + ["succeeded"]
        assert texts(service.results(batch)) == RIGHT
        assert_whole(service)


@long_only
def test_a_batchs_request_is_queued_again(tiny: Path, tmp_path: Path) -> None:
    with fragile_service(tiny, tmp_path / "data") as service:
        batch = service.create_batch(ITEMS)
        run = until(lambda: service.runs("running"))[0]
        assert service.stop() == 0
        service.start()
        assert texts(service.results(batch)) == RIGHT
        assert service.moves(run["id"]) == "queued running queued running succeeded"
        assert service.run(run["id"])["lost_leases"] == 0
        assert_whole(service)
