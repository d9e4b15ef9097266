"""How a prompt's tokens are told: whatever the cache has, they add up."""

from hypothesis import given, settings
from hypothesis import strategies as st

from models.boundary import Boundary
from service.wire.responses import PromptUsage

FIVE_MINUTES, HOUR = 300, 3600


@st.composite
def uses(draw: st.DrawFn) -> tuple[int, list[Boundary], int, int]:
    """A prompt's length, its boundaries, and what a cache reads and keeps of it."""
    tokens = draw(st.integers(1, 60))
    places = sorted(draw(st.lists(st.integers(0, tokens), min_size=1, max_size=4)))
    hours = draw(st.integers(0, len(places)))  # those of an hour come first
    boundaries = [
        Boundary(place, HOUR if number < hours else FIVE_MINUTES)
        for number, place in enumerate(places)
    ]
    limit = min(places[-1], tokens - 1)
    kept = draw(st.sampled_from([0, limit, *(min(each, limit) for each in places)]))
    return tokens, boundaries, draw(st.integers(0, limit)), kept


@settings(max_examples=300)
@given(uses())
def test_each_token_is_told_once(use: tuple[int, list[Boundary], int, int]) -> None:
    tokens, boundaries, read, kept = use
    usage = PromptUsage.of(tokens, boundaries, read, kept)
    ways = ["read"] * read + ["input"] * (tokens - read)
    for place in range(read, kept):
        ttl = next(each.ttl_seconds for each in boundaries if place < each.tokens)
        ways[place] = {FIVE_MINUTES: "5m", HOUR: "1h"}[ttl]
    assert usage == PromptUsage(*map(ways.count, ("input", "read", "5m", "1h")))
    assert usage.total == tokens
    assert usage.input_tokens > 0


def test_segments_count_for_the_boundary_that_they_end_at() -> None:
    boundaries = [Boundary(10, HOUR), Boundary(30, FIVE_MINUTES), Boundary(60, FIVE_MINUTES)]
    assert PromptUsage.of(100, boundaries, 0, 60) == PromptUsage(40, 0, 50, 10)
    assert PromptUsage.of(100, boundaries, 20, 60) == PromptUsage(40, 20, 40, 0)
    assert PromptUsage.of(100, boundaries, 60, 60) == PromptUsage(40, 60)


def test_what_cannot_be_kept_is_input() -> None:
    boundaries = [Boundary(10, HOUR), Boundary(30, FIVE_MINUTES)]
    assert PromptUsage.of(40, boundaries, 0, 0) == PromptUsage(40)
    assert PromptUsage.of(40, boundaries, 10, 0) == PromptUsage(30, 10)
    assert PromptUsage.of(40, boundaries, 0, 10) == PromptUsage(30, 0, 0, 10)
