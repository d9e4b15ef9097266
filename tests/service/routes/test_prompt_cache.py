"""What clients are told of the prompt cache, over the scripted engine, whose cache is perfect."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import anthropic
import httpx
import pytest

from service.auth import add_key
from tests.support.batches import create_batch, results
from tests.support.cached import cached, counted, marked, split, total
from tests.support.lives import assert_stops_well
from tests.support.messages import check_order, events_of
from tests.support.running import Running, scripted_service


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    return file, add_key(file)[1], add_key(file)[1]


@pytest.fixture(scope="module")
def service(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory, keys: tuple[Path, str, str]
) -> Iterator[Running]:
    with scripted_service(
        tiny, tmp_path_factory.mktemp("data"), api_key_file=str(keys[0])
    ) as running:
        running.headers["x-api-key"] = keys[1]
        yield running
        assert_stops_well(running)


@pytest.fixture
def client(service: Running) -> Iterator[httpx.Client]:
    with service.client() as client:
        yield client


@pytest.fixture
def text() -> str:
    """That no other test has begun a prompt with."""
    return uuid4().hex


def asked(client: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    """The usage of a whole answer, in which no number is missing."""
    answer = client.post("/v1/messages", json=request)
    assert answer.status_code == 200, answer.text
    usage = answer.json()["usage"]
    assert None not in usage.values()
    assert total(usage) == counted(client, request)
    return usage


def streamed(client: httpx.Client, request: dict[str, Any]) -> dict[str, Any]:
    """The usage that a stream begins with, which its end repeats."""
    events = events_of(client, request)
    check_order(events)
    first, last = events[0]["message"]["usage"], events[-2]["usage"]
    told = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    assert [last[name] for name in told] == [first[name] for name in told]
    assert None not in {**first, **last}.values()
    assert total(first) == counted(client, request)
    return first


@pytest.mark.parametrize("ask", [asked, streamed])
def test_a_prompt_is_kept_and_then_read(client: httpx.Client, text: str, ask: Any) -> None:
    request = cached(marked(text), say="alpha beta", more={"stop_sequences": ["beta"]})
    read, kept, _ = split(ask(client, request))
    assert (read, kept > len(text)) == (0, True)
    assert split(ask(client, request)) == (kept, 0, 0)
    assert split(ask(client, cached(marked(text), say="other"))) == (kept, 0, 0)


def test_a_prompt_without_marks_is_all_input(client: httpx.Client, text: str) -> None:
    asked(client, cached(marked(text)))
    assert split(asked(client, cached(marked(text, None)))) == (0, 0, 0)
    assert split(streamed(client, cached(marked(text, None)))) == (0, 0, 0)


def test_each_part_counts_for_how_long_it_is_kept(client: httpx.Client, text: str) -> None:
    request = cached(marked(text, "1h"), marked("b" * 20), marked("c" * 30))
    read, five, hour = split(asked(client, request))
    assert read == 0
    assert hour > len(text)
    assert five >= 20 + 30
    assert split(asked(client, request)) == (five + hour, 0, 0)
    longer = cached(marked(text, "1h"), marked("b" * 20), marked("d" * 40))
    read, five, hour = split(asked(client, longer))
    assert (read > len(text) + 20, five >= 40, hour) == (True, True, 0)


def test_a_mark_that_moves_to_an_earlier_place_reads_no_further(
    client: httpx.Client, text: str
) -> None:
    both = split(asked(client, cached(marked(text), marked("b" * 50))))
    earlier = asked(client, cached(marked(text), marked("b" * 50, None)))
    assert both[1] - 50 > split(earlier)[0] > len(text)
    assert split(earlier)[1:] == (0, 0)
    assert split(asked(client, cached(marked(text), marked("b" * 50))))[0] == both[1]


def test_a_mark_that_moves_on_reads_what_is_there_and_keeps_the_rest(
    client: httpx.Client, text: str
) -> None:
    first = split(asked(client, cached(marked(text), marked("b" * 50, None))))
    later = split(asked(client, cached(marked(text, None), marked("b" * 50))))
    assert (later[0], later[1] >= 50) == (first[1], True)


def test_what_is_kept_expires_unless_it_is_read(client: httpx.Client, text: str) -> None:
    request = cached(marked(text, "1h"), marked("b" * 50))
    _, five, hour = split(asked(client, request))
    for _ in range(2):
        assert split(asked(client, {**request, **_later(200)})) == (five + hour, 0, 0)
    assert split(asked(client, {**request, **_later(301)})) == (hour, five, 0)
    assert split(asked(client, {**request, **_later(3601)})) == (0, five, hour)


def _later(seconds: int) -> dict[str, Any]:
    return {"messages": cached(later_s=seconds)["messages"]}


@pytest.mark.parametrize("ask", [asked, streamed])
def test_a_prompt_is_kept_without_an_answer(client: httpx.Client, text: str, ask: Any) -> None:
    warming = cached(marked(text), more={"max_tokens": 0})
    usage = ask(client, warming)
    assert usage["output_tokens"] == 0
    assert split(usage)[1] > len(text)
    message = client.post("/v1/messages", json=warming).json()
    assert (message["content"], message["stop_reason"]) == ([], "max_tokens")
    assert split(ask(client, cached(marked(text)))) == (split(usage)[1], 0, 0)


def test_nobody_reads_what_another_key_has_kept(
    service: Running, client: httpx.Client, keys: tuple[Path, str, str], text: str
) -> None:
    request = cached(marked(text))
    kept = split(asked(client, request))[1]
    with service.client(headers={"x-api-key": keys[2]}) as other:
        assert split(asked(other, request)) == (0, kept, 0)
    assert split(asked(client, request)) == (kept, 0, 0)


def test_results_of_a_batch_say_it_too(service: Running, client: httpx.Client, text: str) -> None:
    request = cached(marked(text))
    batch = create_batch(service, request, request)
    usages = [each["message"]["usage"] for each in results(service, batch)]
    assert [total(each) for each in usages] == [counted(client, request)] * 2
    first, second = map(split, usages)
    assert (first[0], second) == (0, (first[1], 0, 0))


def test_the_same_request_is_told_the_same_again(client: httpx.Client, text: str) -> None:
    request, same = cached(marked(text, "1h"), marked("b")), {"idempotency-key": text}
    first, again = (
        client.post("/v1/messages", json=request, headers=same).json() for _ in range(2)
    )
    assert split(first["usage"])[0] == 0
    assert again == first


def test_the_record_and_the_telemetry_say_it_too(
    service: Running, client: httpx.Client, text: str
) -> None:
    request = cached(marked(text, "1h"), marked("b" * 20))
    asked(client, cached(marked(text, "1h")))
    answer = client.post("/v1/messages", json=request)
    read, five, hour = split(answer.json()["usage"])
    assert read > 0
    run = service.run(answer.headers["mererun-run"])
    assert run["telemetry"]["cache_read_tokens"] == read
    assert run["telemetry"]["cache_creation_tokens"] == five + hour
    followed = client.get(f"/v1/runs/{run['id']}/events").text
    assert f'"read":{read},"created_5m":{five},"created_1h":{hour}' in followed


def test_the_official_client_is_told(service: Running, text: str) -> None:
    sdk = anthropic.Anthropic(
        base_url=service.url,
        api_key=service.headers["x-api-key"],
        max_retries=0,
        _strict_response_validation=True,
    )
    system: Any = [marked(text, "1h"), marked("b" * 20)]
    ask: Any = {"model": "tiny", "max_tokens": 9, "messages": [{"role": "user", "content": "?"}]}
    kept = sdk.messages.create(system=system, **ask).usage
    assert kept.cache_creation is not None
    assert kept.cache_creation.ephemeral_1h_input_tokens > len(text)
    assert kept.cache_creation.ephemeral_5m_input_tokens >= 20
    with sdk.messages.stream(system=system, **ask) as stream:
        read = stream.get_final_message().usage
    assert read.cache_read_input_tokens == kept.cache_creation_input_tokens
    assert read.input_tokens == kept.input_tokens
    automatic = sdk.messages.create(cache_control={"type": "ephemeral"}, **ask).usage
    assert automatic.cache_creation_input_tokens


def test_without_memory_for_it_nothing_is_kept(tiny: Path, tmp_path: Path, text: str) -> None:
    with scripted_service(tiny, tmp_path, cache_memory_gib=0.0) as service:
        with service.client() as client:
            for _ in range(2):
                assert split(asked(client, cached(marked(text)))) == (0, 0, 0)
            assert not client.get("/v1/runtime").json()["optional"]["prompt_cache"]["on"]
        assert_stops_well(service)
