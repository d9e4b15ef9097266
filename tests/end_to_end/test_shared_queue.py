"""Several services, each with its own data folder and engine, on one queue in PostgreSQL."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from anthropic.types.messages import MessageBatch
from click.testing import CliRunner

from tests.support.lives import assert_quiet_log, until
from tests.support.messages import scripted
from tests.support.postgres import Server
from tests.support.running import Running, scripted_service
from tools.inspect_runs import main as inspect_runs


@pytest.fixture(scope="module")
def queue(postgres: Server) -> str:
    return postgres.empty_queue()


@pytest.fixture(scope="module")
def services(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, queue: str
) -> Iterator[list[Running]]:
    folder = tmp_path_factory.mktemp("services")
    shared = {"database_url": queue, "housekeeping_seconds": 0.2}
    with ExitStack() as stack:
        yield [
            stack.enter_context(scripted_service(tiny, folder / name, **shared))
            for name in ("one", "two")
        ]


def sdk(service: Running) -> Anthropic:
    return Anthropic(api_key="any", base_url=service.url, max_retries=0)


def create(service: Running, count: int, **script: Any) -> MessageBatch:
    params: Any = scripted(**script)
    listed = [{"custom_id": f"n{number}", "params": params} for number in range(count)]
    return sdk(service).messages.batches.create(requests=listed)


def answers(service: Running, batch: MessageBatch) -> list[str]:
    """The text of each answer, or what there is instead, once the batch has ended."""
    batches = sdk(service).messages.batches
    until(lambda: batches.retrieve(batch.id).processing_status == "ended", 60)
    found = [each.result for each in batches.results(batch.id)]
    return [it.message.content[0].text if it.type == "succeeded" else it.type for it in found]


def records(service: Running, batch: MessageBatch) -> int:
    """How many of the batch's runs it has begun."""
    ids = {run["id"] for run in service.runs() if run["batch_id"] == batch.id}
    return len(ids & {path.name for path in service.data_dir.glob("runs/*/*/*/*")})


def test_services_share_a_batch_and_each_tells_its_results(
    services: list[Running], tmp_path: Path
) -> None:
    one, two = services
    go = tmp_path / "go"
    batch = create(one, 20, say="abc", hold_file=str(go))
    until(lambda: len(two.runs("running")) == 2)
    go.touch()
    assert answers(one, batch) == answers(two, batch) == ["abc"] * 20
    begun = [records(service, batch) for service in services]
    assert sum(begun) == 20
    assert all(begun)
    for service in services:
        assert_quiet_log(service)


def test_what_one_service_runs_the_other_can_cancel(services: list[Running]) -> None:
    one, two = services
    batch = create(one, 2, say="abc", then="wait")
    until(lambda: len(two.runs("running")) == 2)
    assert [records(service, batch) for service in services] == [1, 1]
    sdk(two).messages.batches.cancel(batch.id)
    assert answers(one, batch) == ["canceled"] * 2


def test_a_killed_services_work_is_done_by_the_other(
    services: list[Running], queue: str, tmp_path: Path
) -> None:
    one, two = services
    held = tmp_path / "held"
    batch = create(one, 2, say="abc", hold_file=str(held))
    until(lambda: len(two.runs("running")) == 2)
    one.kill()
    held.touch()
    assert answers(two, batch) == ["abc"] * 2
    for service in services:
        options = ["--data-dir", str(service.data_dir), "--database-url", queue]
        verified = CliRunner().invoke(inspect_runs, ["verify", *options])
        assert verified.exit_code == 0, verified.output
    one.start()


def test_a_service_outlives_its_database(services: list[Running], postgres: Server) -> None:
    one, two = services
    postgres.stop()
    with one.client() as client:
        answer = client.post("/v1/messages", json=scripted(say="abc"))
        assert answer.status_code == 500
        assert "cannot be reached" in answer.json()["error"]["message"]
    postgres.start()
    assert answers(two, create(one, 4, say="abc")) == ["abc"] * 4
