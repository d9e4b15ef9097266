"""`GET /v1/models` says what can be asked for, and all of it is true."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.fake_language import write_fake_checkpoint
from tests.support.messages import body
from tests.support.refusals import refused
from tests.support.running import scripted_service

NO, YES = {"supported": False}, {"supported": True}


def capabilities(client: httpx.Client) -> dict[str, Any]:
    (model,) = client.get("/v1/models").json()["data"]
    assert client.get(f"/v1/models/{model['id']}").json() == model
    return model["capabilities"]


def test_a_model_of_text_can_be_held_to_a_format_and_no_more(client: httpx.Client) -> None:
    can = capabilities(client)
    assert can["structured_outputs"] == YES
    assert can["effort"] == {
        "supported": False,
        **dict.fromkeys(("low", "medium", "high", "xhigh", "max"), NO),
    }
    assert can["thinking"] == {
        "supported": False,
        "types": {"disabled": YES, "adaptive": NO, "enabled": NO, "between_tools": NO},
    }
    assert can["image_input"] == can["pdf_input"] == NO
    enabled = {"type": "enabled", "budget_tokens": 1024}
    refused(client.post("/v1/messages", json=body(thinking=enabled, max_tokens=2000)))


@pytest.fixture(scope="module")
def loose(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A service that thinks and calls, with no grammar, and that ignores hints."""
    model: Path = write_fake_checkpoint(tmp_path_factory.mktemp("models") / "tiny")
    options = {"grammar": False, "ignore_unsupported_hints": True}
    with (
        scripted_service(model, tmp_path_factory.mktemp("loose"), **options) as running,
        running.client() as client,
    ):
        yield client


def test_what_the_family_has_is_there(loose: httpx.Client) -> None:
    assert capabilities(loose)["thinking"] == {
        "supported": True,
        "types": {"disabled": YES, "adaptive": YES, "enabled": YES, "between_tools": YES},
    }


def test_without_the_grammar_there_is_no_structured_output(loose: httpx.Client) -> None:
    assert capabilities(loose)["structured_outputs"] == NO
    assert loose.get("/v1/runtime").json()["optional"]["grammar"] == {
        "on": False,
        "why": "the service was started with --grammar off",
    }
    tool = {"name": "run", "input_schema": {"type": "object"}, "strict": True}
    assert refused(loose.post("/v1/messages", json=body(tools=[tool]))).startswith("tools.0.strict")


def test_the_grammar_is_on_by_default(client: httpx.Client) -> None:
    assert client.get("/v1/runtime").json()["optional"]["grammar"] == {
        "on": True,
        "why": "the default",
    }


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_service_may_ignore_an_effort_and_says_so(loose: httpx.Client, path: str) -> None:
    response = loose.post(path, json=body(output_config={"effort": "high"}))
    assert response.status_code == 200
    assert response.headers["mererun-ignored"] == "output_config.effort"
