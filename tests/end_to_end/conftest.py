"""The official client, by two versions of the API, of the `service` that a module has."""

from collections.abc import Iterator

import anthropic
import pytest

from tests.support.running import Running


@pytest.fixture(scope="module")
def older(service: Running) -> Iterator[anthropic.Anthropic]:
    """By the first version of the API; whole answers are asked for by this one."""
    with _client_of(service, "2023-06-01") as sdk:
        yield sdk


@pytest.fixture(scope="module")
def newer(service: Running) -> Iterator[anthropic.Anthropic]:
    """By the newest version; answers are streamed by this one."""
    with _client_of(service, "2026-10-21") as sdk:
        yield sdk


def _client_of(service: Running, version: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(
        base_url=service.url,
        api_key="none",
        max_retries=0,
        default_headers={"anthropic-version": version},
        _strict_response_validation=True,
    )
