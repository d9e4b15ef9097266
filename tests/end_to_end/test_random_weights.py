"""What is promised of an answer holds for any weights: models that know nothing keep to it."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anthropic
import pytest
from anthropic import Anthropic
from pydantic import BaseModel, ConfigDict

from models.catalog import inspect
from models.families import family_of
from models.families.family import Capabilities
from tests.support.lives import assert_stops_well
from tests.support.random_weights import write_random_weights
from tests.support.running import real_service
from tests.support.tiny_gemma import write_tiny_gemma3, write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer
from tests.support.tiny_qwen import write_tiny_qwen

FAMILIES: dict[str, Callable[[Path], Path]] = {
    "qwen3": partial(write_tiny_qwen, generation="qwen3"),
    "qwen3.5": partial(write_tiny_qwen, generation="qwen3.5"),
    "gemma3": write_tiny_gemma3,
    "gemma4": write_tiny_gemma4,
    "glimmer": write_tiny_glimmer,
}


class Step(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["wait", "go on"]
    twice: bool


class Plan(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Literal["é", 'a "b"', "3"]
    step: Step
    last: Step | None


TOOL = {"name": "plan", "input_schema": Plan.model_json_schema(), "strict": True}
OTHER = {"name": "other", "input_schema": {"type": "object"}}


@pytest.fixture(scope="module", params=FAMILIES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Anthropic, Capabilities]]:
    folder = tmp_path_factory.mktemp("served")
    model = write_random_weights(FAMILIES[request.param](folder / "tiny"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        with real_service(model, folder / "data") as service:
            with Anthropic(
                base_url=service.url,
                api_key="any",
                max_retries=0,
                timeout=120,
                http_client=anthropic.DefaultHttpxClient(verify=False),
                _strict_response_validation=True,
            ) as client:
                yield client, family_of(inspect(model)).capabilities
            assert_stops_well(service)


def asking(seed: int, **more: Any) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Plan."}],
        "max_tokens": 1800,
        "extra_body": {"temperature": 1, "seed": seed},
        **more,
    }


@pytest.mark.parametrize("thinks", [False, True], ids=["at once", "after thinking"])
def test_the_call_that_must_come_is_valid(
    served: tuple[Anthropic, Capabilities], thinks: bool
) -> None:
    client, can = served
    if not can.tools:
        pytest.skip("the family has no tools")
    thinking = {"type": "enabled", "budget_tokens": 1024} if thinks else {"type": "disabled"}
    for seed in range(2):
        request = asking(
            seed,
            tools=[OTHER, TOOL],
            tool_choice={"type": "tool", "name": "plan", "disable_parallel_tool_use": True},
            thinking=thinking,
        )
        with client.messages.stream(**request) as stream:
            message = stream.get_final_message()
        *thoughts, call = message.content
        assert (call.type, message.stop_reason) == ("tool_use", "tool_use")
        assert call.name == "plan"
        Plan.model_validate(call.input)
        assert {each.type for each in thoughts} <= ({"thinking"} if thinks else set())
        details = message.usage.output_tokens_details
        assert details is not None
        assert details.thinking_tokens <= (1024 if thinks else 0)


def test_an_answer_in_a_format_is_parsed(served: tuple[Anthropic, Capabilities]) -> None:
    client, _ = served
    for seed in range(2):
        message = client.messages.parse(**asking(seed), output_format=Plan)
        assert isinstance(message.parsed_output, Plan)
        assert message.stop_reason == "end_turn"
