"""The prompt cache of the real engine, as the official SDK sees it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import pytest

from tests.support.cached import marked, split, total
from tests.support.lives import assert_stops_well, newest_run, until
from tests.support.running import Running, real_service

RULES = " ".join(f"Rule {number}: be brief, be kind, and be right." for number in range(1, 13))
EXAMPLES = " ".join(f"Example {number}: two and two are four." for number in range(1, 5))
HEADER = "x-anthropic-billing-header: cc_version=2.1.200.abc; cc_entrypoint=cli; cch={};"


@dataclass
class Served:
    service: Running
    model: str

    @property
    def sdk(self) -> anthropic.Anthropic:
        return anthropic.Anthropic(
            base_url=self.service.url,
            api_key="any",
            max_retries=0,
            _strict_response_validation=True,
        )

    def asked(
        self, system: Any, text: str = "What is the capital of France?", **more: Any
    ) -> anthropic.types.Message:
        """The answer, whose usage adds up to what is counted."""
        request: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "system": system,
        }
        answer = self.sdk.messages.create(
            **request, **{"max_tokens": 8, "extra_body": {"temperature": 0}, **more}
        )
        counted = self.sdk.messages.count_tokens(**request).input_tokens
        assert total(answer.usage.model_dump()) == counted
        return answer

    def computed(self) -> int:
        """How many tokens of the last prompt the engine really computed."""
        run = self.service.run(newest_run(self.service)["id"])
        return run["telemetry"]["prefilled_tokens"]

    def cache(self) -> dict[str, Any]:
        """What operators are told of it."""
        with self.service.client() as client:
            return client.get("/v1/runtime").json()["engine"]["cache"]


@contextmanager
def serving(model: Path, data_dir: Path) -> Iterator[Served]:
    with real_service(model, data_dir, "--cache-disk-gib", "1") as service:
        yield Served(service, model.name)
        assert_stops_well(service)


@pytest.fixture(scope="module")
def served(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(smollm2, tmp_path_factory.mktemp("data")) as served:
        yield served


@pytest.fixture(scope="module")
def qwen_served(qwen: Path, qwen_service: Running) -> Served:
    return Served(qwen_service, qwen.name)


def usage(answer: anthropic.types.Message) -> tuple[int, int, int]:
    return split(answer.usage.model_dump())


@pytest.mark.parametrize("which", ["served", "qwen_served"])
def test_a_prompt_is_kept_then_read_and_the_answer_is_the_same(
    request: pytest.FixtureRequest, which: str
) -> None:
    served: Served = request.getfixturevalue(which)
    system = [marked(RULES, "1h"), marked(EXAMPLES)]
    cold = served.asked(system)
    read, five, hour = usage(cold)
    assert read == 0
    assert hour > 4 * five > 0
    assert served.computed() == total(cold.usage.model_dump())
    warm = served.asked(system)
    assert usage(warm) == (five + hour, 0, 0)
    assert warm.content == cold.content
    assert 0 < served.computed() <= warm.usage.input_tokens
    earlier = served.asked([marked(RULES, "1h"), {"type": "text", "text": EXAMPLES}])
    assert usage(earlier) == (hour, 0, 0)
    assert earlier.content == cold.content


def test_a_header_that_changes_with_each_request_changes_nothing(served: Served) -> None:
    system = marked("Attribution. " + RULES)
    first, second = (
        served.asked([{"type": "text", "text": HEADER.format(number)}, system])
        for number in ("11111", "22222")
    )
    assert usage(second) == (usage(first)[1], 0, 0)


def test_warming_takes_no_answer(served: Served) -> None:
    system = [marked("Warm. " + RULES)]
    warming = served.asked(system, max_tokens=0)
    assert (warming.content, warming.stop_reason) == ([], "max_tokens")
    assert warming.usage.output_tokens == 0
    assert usage(served.asked(system)) == (usage(warming)[1], 0, 0)


def test_what_is_reused_without_being_asked_for_is_told_to_operators_only(served: Served) -> None:
    system = "Silence. " + RULES
    before = served.cache()["tokens"]["reused"]
    cold = served.asked(system)
    length = cold.usage.input_tokens
    assert length - 8 < served.computed() <= length  # all prompts begin with the same few tokens
    again = served.asked(system)
    assert (usage(again), again.usage.input_tokens) == ((0, 0, 0), length)
    assert again.content == cold.content
    assert served.computed() < length / 10
    until(lambda: served.cache()["tokens"]["reused"] - before > 0.9 * length)


def test_what_was_kept_is_read_after_a_restart(smollm2: Path, tmp_path: Path) -> None:
    system = [marked(RULES)]

    def is_written() -> bool:
        served.asked("Say how much is on disk.", max_tokens=1)
        return served.cache()["disk"]["written"] > 0

    with serving(smollm2, tmp_path) as served:
        cold = served.asked(system)
        until(is_written)
        assert served.service.stop() == 0
        served.service.start()
        warm = served.asked(system)
        assert usage(warm) == (usage(cold)[1], 0, 0)
        assert warm.content == cold.content
        assert served.computed() <= warm.usage.input_tokens
