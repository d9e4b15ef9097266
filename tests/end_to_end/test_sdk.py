"""The official SDK, as it is and as it was, strictly validating the answers of a real model."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest

from service.auth import add_key
from tests.end_to_end.sdk_scenarios import SCENARIOS, Place, as_argument
from tests.support.messages import body, check_order, parse_events
from tests.support.running import REPOSITORY, real_service

OLDER = "1.17.0"  # the last one with x-api-key and version 2023-06-01
OLDER_SDK = REPOSITORY / "build" / f"anthropic-{OLDER}"


@pytest.fixture(scope="module")
def place(smollm2: Path, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    data = tmp_path_factory.mktemp("data")
    _, key = add_key(data / "keys")
    with pytest.MonkeyPatch.context() as patch:
        # Two engines whose threads wait for each other by spinning share the machine badly.
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        with (
            real_service(smollm2, data / "open") as served,
            real_service(tiny, data / "keyed", "--api-key-file", str(data / "keys")) as keyed,
        ):
            yield Place(served.url, smollm2.name, keyed.url, tiny.name, key)


@pytest.fixture(scope="module")
def older(place: Place) -> dict[str, Any]:
    """What became of each scenario with the older SDK, which lies beside the environment."""
    if not (OLDER_SDK / f"anthropic-{OLDER}.dist-info").exists():
        package = [f"anthropic=={OLDER}", "--no-deps", "--upgrade", "--target", str(OLDER_SDK)]
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", *package], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "tests.end_to_end.sdk_scenarios", as_argument(place)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(OLDER_SDK)},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def test_the_two_sdks_are_of_different_ages(older: dict[str, Any]) -> None:
    assert older["version"] == OLDER
    assert int(anthropic.__version__.partition(".")[0]) >= 2


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_current_sdk_is_served(place: Place, scenario: str) -> None:
    SCENARIOS[scenario](place)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_older_sdk_is_served(older: dict[str, Any], scenario: str) -> None:
    assert older[scenario] is None, older[scenario]


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21", None])
@pytest.mark.parametrize("query", ["", "?beta=true"])
def test_plain_http_is_served_in_both_versions(
    place: Place, version: str | None, query: str
) -> None:
    headers = {"x-api-key": place.key}
    if version:
        headers["anthropic-version"] = version
    request = body(model=place.keyed_model, max_tokens=3)
    url = f"{place.keyed_url}/v1/messages"
    with httpx.Client(headers=headers, timeout=60) as client:
        answer = client.post(url + query, json=request)
        assert answer.status_code == 200
        assert answer.headers["request-id"].startswith("req_")
        with client.stream("POST", url + query, json={**request, "stream": True}) as response:
            check_order(list(parse_events(response.iter_lines())))
        count = client.post(f"{url}/count_tokens{query}", json=body(model=place.keyed_model))
        assert count.json() == {"input_tokens": answer.json()["usage"]["input_tokens"]}


def test_plain_http_without_a_key_is_refused(place: Place) -> None:
    refused = httpx.post(f"{place.keyed_url}/v1/messages", json=body(), timeout=60)
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
