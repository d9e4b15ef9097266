"""Batches over ends of the service: every request has one result, and nothing is lost."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic.types.messages import MessageBatch, MessageBatchIndividualResponse

from tests.support.lives import assert_quiet_log, assert_stops_well, assert_stored_well, until
from tests.support.messages import body, scripted
from tests.support.running import Running, real_service, scripted_service

REQUESTS = 20


def sdk(service: Running) -> Anthropic:
    return Anthropic(api_key="any", base_url=service.url, max_retries=0)


def create(service: Running, requests: dict[str, dict[str, Any]]) -> MessageBatch:
    listed: Any = [{"custom_id": name, "params": params} for name, params in requests.items()]
    return sdk(service).messages.batches.create(requests=listed)


def done(service: Running) -> int:
    return sum(run["state"] not in ("queued", "running") for run in service.runs())


def results(service: Running, batch: MessageBatch) -> list[MessageBatchIndividualResponse]:
    """All of them, once the batch has ended."""
    batches = sdk(service).messages.batches
    until(lambda: batches.retrieve(batch.id).processing_status == "ended", 60)
    counts = batches.retrieve(batch.id).request_counts.to_dict()
    found = list(batches.results(batch.id))
    kinds = Counter(each.result.type for each in found)
    assert {name: count for name, count in counts.items() if count} == kinds
    return found


def test_a_batch_survives_kills_at_any_moment(tiny: Path, tmp_path: Path) -> None:
    with scripted_service(tiny, tmp_path / "data") as service:
        work = scripted(say="abcdefgh", prefill_steps=5, step_ms=5)
        requests = {f"n{number}": work for number in range(REQUESTS)}
        requests["n3"] = {"model": 1}
        batch = create(service, requests)
        for ended in (0, 1, 3, 6, 7, 12, REQUESTS - 1):
            until(lambda ended=ended: done(service) >= ended)
            service.kill()
            service.start()
        found = results(service, batch)
        assert [each.custom_id for each in found] == list(requests)
        for each in found:
            if each.custom_id == "n3":
                assert each.result.type == "errored"
                continue
            assert each.result.type == "succeeded"
            (block,) = each.result.message.content
            assert block.type == "text"
            assert block.text == "abcdefgh"
        assert_stops_well(service)


def test_a_cancelled_batch_stays_so_over_a_kill(tiny: Path, tmp_path: Path) -> None:
    with scripted_service(tiny, tmp_path / "data") as service:
        waiting = scripted(say="abc", then="wait")
        batch = create(service, {"done": body(), "running": waiting, "waiting": body()})
        until(lambda: done(service) == 1 and service.runs("running"))
        sdk(service).messages.batches.cancel(batch.id)
        service.kill()
        service.start()
        kinds = [each.result.type for each in results(service, batch)]
        assert kinds == ["succeeded", "canceled", "canceled"]
        assert_stops_well(service)


@pytest.mark.parametrize("content", ["on", "off"])
def test_a_real_model_goes_on_with_its_batch(tiny: Path, tmp_path: Path, content: str) -> None:
    # Greedy, so that the answers are those of an uninterrupted run, token for token.
    requests = {
        f"n{number}": {**body(f"{number} " * 50), "max_tokens": 150, "temperature": 0}
        for number in range(4)
    }
    with real_service(tiny, tmp_path / "data", "--record-content", content) as service:
        batch = create(service, requests)
        until(lambda: service.runs("running"))
        service.kill()
        service.start()
        until(lambda: done(service) >= 1)
        assert service.stop() == 0
        service.start()
        found = results(service, batch)
        with service.client() as client:
            plain = [client.post("/v1/messages", json=each).json() for each in requests.values()]
        for each, answer in zip(found, plain, strict=True):
            assert each.result.type == "succeeded"
            message = each.result.message.to_dict()
            for name in ("content", "stop_reason"):
                assert message[name] == answer[name]
            assert each.result.message.usage.output_tokens == answer["usage"]["output_tokens"]
        assert service.stop() == 0
        assert_quiet_log(service)
        assert_stored_well(service.data_dir)
