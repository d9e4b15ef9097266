"""A real engine that dies at any point of a run: it costs a reader the answer, and a batch time."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.fragile import (
    LONG,
    Fragile,
    answers,
    assert_sound,
    fragile_service,
    long_only,
    text_of,
    texts,
)
from tests.faults.points import ENGINE_POINTS, FAILED, EnginePoint
from tests.support.lives import Connection, ended, until
from tests.support.messages import body

# Greedy, since a random model would end a sampled answer soon. Four chunks of prompt.
ASKED = {**body("hi" * 450), "max_tokens": 24, "temperature": 0}
OTHER = {**body("other"), "max_tokens": 5, "temperature": 0}
DIED = "the engine process was ended by SIGKILL"


class Mortal:
    """A service, and the death of its engine."""

    def __init__(self, service: Fragile, file: Path) -> None:
        self.service = service
        self._file = file
        self.right = answers(service, ASKED)
        self.others = answers(service, OTHER)

    def dies(self, message: str, number: int, times: int = 1) -> None:
        waiting = self._file.with_suffix(".new")
        waiting.write_text(f"{message} {number} {times}")
        waiting.rename(self._file)

    def has_died(self) -> bool:
        return not self._file.exists()


@pytest.fixture(scope="module")
def mortal(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mortal]:
    folder = tmp_path_factory.mktemp("mortal")
    file = folder / "death"
    engine = ["tests.faults.mortal_engine", "models.engine.worker", str(file)]
    with fragile_service(tiny, folder / "data", engine=engine) as service:
        yield Mortal(service, file)
        assert_sound(service)


def points() -> list[Any]:
    return [
        pytest.param(point, id=point.name.replace(" ", "-"))
        for point in ENGINE_POINTS
        if point.short or LONG
    ]


@pytest.mark.parametrize("point", points())
def test_an_answers_engine_dies(mortal: Mortal, point: EnginePoint) -> None:
    service = mortal.service
    mortal.dies(point.message, point.number)
    with Connection(service.url, {**ASKED, "stream": True}) as connection:
        run_id = connection.run_id()
        last = connection.read_to_end()[-1]
    assert mortal.has_died()
    ended(service, run_id)
    assert service.moves(run_id) == point.interactive
    assert last.get("error", {}).get("message") == (DIED if point.interactive == FAILED else None)
    assert answers(service, ASKED) == mortal.right


@pytest.mark.parametrize("point", points())
def test_the_engine_of_a_batchs_request_dies(mortal: Mortal, point: EnginePoint) -> None:
    service = mortal.service
    mortal.dies(point.message, point.number)
    batch = service.create_batch({"first": ASKED, "second": OTHER})
    results = service.results(batch)
    assert mortal.has_died()
    assert texts(results) == {"first": mortal.right, "second": mortal.others}
    assert results["first"]["message"]["usage"]["output_tokens"] == 24
    first = service.runs()[1]
    assert service.moves(first["id"]) == point.batch_item
    assert answers(service, OTHER) == mortal.others


@long_only
def test_a_request_that_ends_every_engine_ends_two(mortal: Mortal) -> None:
    service = mortal.service
    mortal.dies("Tokens", 6, times=2)
    results = service.results(service.create_batch({"first": ASKED, "second": OTHER}))
    assert mortal.has_died()
    assert results["first"]["type"] == "errored"
    assert "quarantined" in results["first"]["error"]["error"]["message"]
    assert text_of(results["second"]["message"]) == mortal.others


@long_only
def test_an_engine_that_dies_while_it_loads_costs_a_batch_nothing(mortal: Mortal) -> None:
    service = mortal.service
    batch = service.create_batch({"first": {**ASKED, "max_tokens": 500}, "second": OTHER})
    until(lambda: service.runs("running"))
    first = service.runs("running")[0]["id"]
    mortal.dies("Loading", 1)
    os.kill(service.engine_pid(), signal.SIGKILL)
    until(mortal.has_died)
    assert text_of(service.results(batch)["second"]["message"]) == mortal.others
    run = service.run(first)
    assert (run["state"], run["engine_deaths"], run["output_tokens"]) == ("succeeded", 1, 500)
