"""What the disk adds to the prompt cache in memory."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from models.boundary import Boundary
from tests.models.prefix_cache.disk_on_mlx import uses_over_restarts
from tests.models.prefix_cache.fake_model import TOKEN_BYTES, Kinds, Step
from tests.models.prefix_cache.test_prompt_cache import ALL_KINDS, histories
from tests.support.reference_cache import ReferenceCache

OnMlx = Callable[..., Any]
PROMPT = tuple(range(1, 21))
every_kind = pytest.mark.parametrize("kinds", ALL_KINDS)


@every_kind
@pytest.mark.parametrize("lasts", [1, 3])
@given(steps=histories())
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_random_histories_are_told_the_same_over_restarts(
    mlx: OnMlx,
    tmp_path_factory: pytest.TempPathFactory,
    kinds: Kinds,
    lasts: int,
    steps: list[Step],
) -> None:
    """Where states cannot be cut, no more than that: they are where some run has stopped."""
    steps = [replace(step, answer=()) for step in steps]
    reference = ReferenceCache()
    told = mlx(uses_over_restarts, kinds, tmp_path_factory.mktemp("disk"), steps, lasts)
    for (read, kept, reused), step in zip(told, steps, strict=True):
        expected = reference.use(
            step.scope, step.prompt, step.boundaries, step.now, reused + step.computes
        )
        if kinds == "growing":
            assert (read, kept) == expected
        else:
            assert read <= expected[0]
            assert kept == expected[1]


@every_kind
def test_a_restart_costs_nothing_of_a_prompt_that_comes_again(
    mlx: OnMlx, tmp_path: Path, kinds: Kinds
) -> None:
    marked = Step(PROMPT, (Boundary(6, 300), Boundary(15, 300)))
    longer = replace(marked, prompt=(*PROMPT, 30, 31, 32))

    assert mlx(uses_over_restarts, kinds, tmp_path, [marked, longer, marked], 1) == [
        (0, 15, 0),
        (15, 15, 15),
        (15, 15, 15),
    ]


@every_kind
def test_a_prompt_without_boundaries_is_kept_to_its_last_token(
    mlx: OnMlx, tmp_path: Path, kinds: Kinds
) -> None:
    first = Step(PROMPT)
    longer = Step((*PROMPT, 30, 31, 32))

    uses = mlx(uses_over_restarts, kinds, tmp_path, [first, longer, first], 1)
    assert [reused for _, _, reused in uses] == [0, 19, 19]


@every_kind
def test_what_memory_had_no_room_for_any_more_comes_back(
    mlx: OnMlx, tmp_path: Path, kinds: Kinds
) -> None:
    prompts = [
        Step((place, *range(2000)), (Boundary(2000, 300),), chunk=500) for place in range(100, 108)
    ]
    limit = 3 * 2000 * TOKEN_BYTES
    uses = mlx(uses_over_restarts, kinds, tmp_path, [*prompts, *prompts], 8, limit)

    assert uses == [(0, 2000, 0)] * 8 + [(2000, 2000, 2000)] * 8


@every_kind
def test_an_earlier_boundary_is_read_from_disk_and_nothing_beyond_it(
    mlx: OnMlx, tmp_path: Path, kinds: Kinds
) -> None:
    steps = [
        Step(PROMPT, (Boundary(6, 300), Boundary(15, 3600)), now=0.0),
        Step(PROMPT, (Boundary(6, 300),), now=200.0),
        Step(PROMPT, (Boundary(6, 300),), now=450.0),
        Step(PROMPT, (Boundary(6, 300),), now=800.0),
        Step(PROMPT, (Boundary(15, 3600),), now=3599.0),
    ]

    uses = mlx(uses_over_restarts, kinds, tmp_path, steps, 1)
    assert [use[:2] for use in uses] == [(0, 15), (6, 6), (6, 6), (0, 6), (15, 15)]
