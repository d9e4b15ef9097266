"""Prompts that outlive the service: the next one answers them from disk."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.cached import split
from tests.support.lives import assert_stops_well, newest_run, until
from tests.support.messages import body
from tests.support.running import Running, real_service
from tests.support.tiny_checkpoint import write_tiny_checkpoint

LONG = "A long prompt, of which every word is worth keeping. " * 40
ASKED = {
    **body(LONG, temperature=0, cache_control={"type": "ephemeral", "ttl": "1h"}),
    "max_tokens": 8,
}


@contextmanager
def serving(model: Path, data: Path) -> Iterator[Running]:
    with real_service(model, data, "--cache-disk-gib", "1") as service:
        yield service
        assert_stops_well(service)


def asked(service: Running) -> tuple[dict[str, Any], Any]:
    """The answer, and how many tokens of its prompt were computed."""
    with service.client() as client:
        answer = client.post("/v1/messages", json=ASKED).raise_for_status().json()
    run = service.run(newest_run(service)["id"])
    return answer, run["telemetry"]["prefilled_tokens"]


def files(service: Running) -> list[Path]:
    return list((service.data_dir / "prompt-cache").glob("*/*.safetensors"))


def until_written(service: Running, count: int = 1) -> None:
    until(lambda: len([file for file in files(service) if file.parent.name != "incoming"]) == count)


def disk(service: Running) -> dict[str, Any]:
    with service.client() as client:
        return client.get("/v1/runtime").json()["engine"]["cache"]["disk"]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda end: end.name)
def test_the_first_long_prompt_of_a_second_start_comes_from_disk(
    tiny: Path, tmp_path: Path, end: signal.Signals
) -> None:
    with serving(tiny, tmp_path / "data") as service:
        first, computed = asked(service)
        creation = first["usage"]["cache_creation_input_tokens"]
        assert creation > len(LONG) / 2
        assert computed > creation
        if end is signal.SIGKILL:
            until_written(service)  # an ordinary end waits for that
        service.process.send_signal(end)
        service.process.wait()
        service.start()
        assert disk(service)["files"] == 1
        second, computed = asked(service)

        assert second["content"] == first["content"]
        assert second["usage"]["cache_read_input_tokens"] == creation
        assert computed == second["usage"]["input_tokens"]
        until(lambda: disk(service)["read"] == 1)


def test_a_harmed_file_costs_a_prefill_and_is_written_anew(tiny: Path, tmp_path: Path) -> None:
    with serving(tiny, tmp_path / "data") as service:
        first, _ = asked(service)
        until_written(service)
        service.stop()
        (file,) = files(service)
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        service.start()
        second, computed = asked(service)

        assert second["content"] == first["content"]
        assert split(second["usage"]) == split(first["usage"])
        assert computed > second["usage"]["cache_creation_input_tokens"]
        until(lambda: disk(service)["dropped"] == 1)
        assert f"dropped from the prompt cache: {file}" in service.log.read_text()
        until_written(service)


def test_each_model_has_its_own_and_finds_it_again(tiny: Path, tmp_path: Path) -> None:
    other = write_tiny_checkpoint(tmp_path / "other", context_tokens=4000)
    reads: list[int] = []
    for place, model in enumerate((tiny, other, tiny, other)):
        with serving(model, tmp_path / "data") as service:
            answer, _ = asked(service)
            reads.append(answer["usage"]["cache_read_input_tokens"])
            until_written(service, min(place + 1, 2))

    assert reads[:2] == [0, 0]
    assert reads[2] == reads[3] > 0


def test_a_folder_that_cannot_be_used_is_said_and_harms_nothing(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prompt-cache").write_text("in the way")
    with serving(tiny, tmp_path / "data") as service:
        asked(service)
        again, _ = asked(service)

        assert again["usage"]["cache_read_input_tokens"] > 0
        assert not disk(service)["on"]
        with service.client() as client:
            optional = client.get("/v1/runtime").json()["optional"]
        assert optional["prompt_cache_disk"]["on"] is False
        assert "cannot be used" in optional["prompt_cache_disk"]["why"]
        assert "cannot be used" in service.log.read_text()
