"""Long runs of one kind of character: counted exactly, while a stream goes on."""

import base64
import json
import random
import string
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.messages import body, check_order, events_of, text_of
from tests.support.refusals import refused
from tests.support.running import Running, scripted_service

LENGTH = 10_000
_RANDOM = random.Random(0)
PATTERNS = {
    "letter": "a" * LENGTH,
    "dash": "-" * LENGTH,
    "underscore": "_" * LENGTH,
    "space": " " * LENGTH,
    "line break": "\n" * LENGTH,
    "cjk": "\u4f60" * LENGTH,
    "random": "".join(_RANDOM.choices(string.ascii_lowercase, k=LENGTH)),
    "combining": "\u0301" * LENGTH,
    "base64": base64.b64encode(_RANDOM.randbytes(LENGTH))[:LENGTH].decode(),
    "half markers": "<|im" * (LENGTH // 4),
    "markers": "<|im_start|>" * (LENGTH // 12),
}


@pytest.fixture(scope="module")
def real_words(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service with the default model's own tokenizer."""
    with scripted_service(smollm2, tmp_path_factory.mktemp("data")) as running:
        yield running


@pytest.mark.parametrize("name", PATTERNS)
def test_a_long_run_is_counted_as_it_is_used(client: httpx.Client, name: str) -> None:
    text = PATTERNS[name]
    counted = client.post("/v1/messages/count_tokens", json=body(text)).json()["input_tokens"]
    empty = client.post("/v1/messages/count_tokens", json=body("x")).json()["input_tokens"] - 1
    assert counted == empty + len(text.encode())  # the tiny model has one token for each byte
    message = refused(client.post("/v1/messages", json=body(text)))
    assert message == f"prompt is too long: {counted} tokens > 4096 maximum"


def test_long_runs_are_counted_while_an_answer_streams(real_words: Running) -> None:
    def count(text: str) -> int:
        with real_words.client() as client:
            response = client.post("/v1/messages/count_tokens", json=body(text * 10))
            return response.json()["input_tokens"]

    with real_words.client() as client, ThreadPoolExecutor(4) as pool:
        counting = [pool.submit(count, text) for text in PATTERNS.values()]
        story = "once upon a time " * 10
        script = json.dumps({"say": story, "step_ms": 2})
        events = events_of(client, body(script, max_tokens=500))
        check_order(events)
        assert text_of(events) == story
        assert all(each.result() > LENGTH // 10 for each in counting)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_prompt_of_millions_of_characters_is_too_long(
    real_words: Running, streaming: bool
) -> None:
    with real_words.client() as client:
        request = body("a" * 3_000_000, stream=streaming)
        message = refused(client.post("/v1/messages", json=request))
        # It is a single word.
        assert message == refused(client.post("/v1/messages/count_tokens", json=request))
        assert message.startswith("prompt is too long: 250")
        assert message.endswith("(counted in the first 1000000 of 3000000 characters)")


@pytest.mark.parametrize("times", [300_000, 6_000_000])
def test_millions_of_characters_are_counted(real_words: Running, times: int) -> None:
    with real_words.client() as client:
        few, many = (
            client.post("/v1/messages/count_tokens", json=body("word " * each)).json()
            for each in (1000, times)
        )
        assert many["input_tokens"] - few["input_tokens"] == times - 1000
        message = refused(client.post("/v1/messages", json=body("word " * times)))
        assert message.endswith(f"(counted in the first 1000000 of {5 * times} characters)")


def test_a_conversation_of_many_turns_is_counted(client: httpx.Client) -> None:
    turn = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    request = {**body(), "messages": [*turn * 5000, turn[0]]}
    counted = client.post("/v1/messages/count_tokens", json=request).json()["input_tokens"]
    assert counted > 100_000
    refused(client.post("/v1/messages", json=request))
