"""What the prompt cache promises, reads, brings back and gives up."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.boundary import Boundary
from tests.models.prefix_cache.fake_model import (
    TOKEN_BYTES,
    Kinds,
    Outcome,
    Step,
    found_lengths,
    held_and_active_bytes,
    outcomes,
    reused_after_faults,
)
from tests.support.reference_cache import ReferenceCache

OnMlx = Callable[..., Any]
ALL_KINDS: tuple[Kinds, ...] = ("growing", "windowed", "recurrent", "listed")
AMPLE = 1 << 30
every_kind = pytest.mark.parametrize("kinds", ALL_KINDS)
PROMPT = tuple(range(1, 21))


def for_5_minutes(*tokens: int) -> tuple[Boundary, ...]:
    return tuple(Boundary(each, 300) for each in tokens)


def use(outcome: Outcome) -> tuple[int, int]:
    return outcome.read_tokens, outcome.kept_tokens


@st.composite
def histories(draw: st.DrawFn) -> list[Step]:
    """Runs of three conversations that begin alike: most go on, some turn off, some are cut short,
    and time goes by."""
    choose = random.Random(draw(st.integers(0, 1 << 32)))
    now, steps = 0.0, list[Step]()
    begin = [choose.choices(range(1, 4), k=5) for _ in range(2)]
    so_far = [[*choose.choice(begin)] for _ in range(3)]
    for _ in range(choose.randrange(1, 12)):
        now += choose.choice([0.0, 1.0, 299.0, 301.0, 3601.0])
        prompt = choose.choice(so_far)
        if choose.random() < 0.2:
            del prompt[1 + choose.randrange(len(prompt)) :]
        prompt += choose.choices(range(1, 4), k=choose.randrange(4))
        marks = choose.sample([3, 5, 7, 9, len(prompt) - 1, len(prompt)], choose.randrange(5))
        step = Step(
            tuple(prompt),
            tuple(Boundary(each, choose.choice([300, 3600])) for each in sorted(marks)),
            tuple(choose.choices(range(1, 4), k=choose.randrange(4))),
            choose.choice(["a", "a", "a", "b"]),
            now,
            choose.choice([1 << 30, 1 << 30, choose.randrange(10)]),
            choose.randrange(1, 6),
        )
        prompt += step.answer
        steps.append(step)
    return steps


no_fixture_fault = settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@every_kind
@given(steps=histories())
@no_fixture_fault
def test_random_histories_are_told_what_the_reference_cache_tells(
    mlx: OnMlx, kinds: Kinds, steps: list[Step]
) -> None:
    """Where states cannot be cut, no more than that: they are where some run has stopped."""
    reference = ReferenceCache()
    for step, found in zip(steps, mlx(outcomes, kinds, AMPLE, steps), strict=True):
        read, kept = reference.use(
            step.scope, step.prompt, step.boundaries, step.now, found.computed_to
        )
        if kinds == "growing":
            assert use(found) == (read, kept)
        else:
            assert found.read_tokens <= read
            assert found.kept_tokens == kept
        if step.boundaries:
            assert found.read_tokens <= found.reused_tokens <= found.kept_tokens


@every_kind
@given(steps=histories(), limit=st.integers(0, 40))
@no_fixture_fault
def test_random_histories_in_little_memory_stay_within_it(
    mlx: OnMlx, kinds: Kinds, steps: list[Step], limit: int
) -> None:
    reference = ReferenceCache()
    for step, found in zip(steps, mlx(outcomes, kinds, limit * TOKEN_BYTES, steps), strict=True):
        read, kept = reference.use(step.scope, step.prompt, step.boundaries, step.now)
        assert found.held_bytes == found.counted_bytes <= limit * TOKEN_BYTES
        assert found.read_tokens <= read
        assert found.read_tokens <= found.kept_tokens <= kept


@every_kind
def test_what_was_promised_is_read_and_what_follows_it_is_kept(mlx: OnMlx, kinds: Kinds) -> None:
    first = Step(PROMPT[:10], for_5_minutes(4, 8), (50, 51))
    longer = Step(PROMPT, for_5_minutes(4, 8, 15))
    found = mlx(outcomes, kinds, AMPLE, [first, longer, longer])
    assert [use(each) for each in found] == [(0, 8), (8, 15), (15, 15)]
    assert [each.reused_tokens for each in found] == [0, 10 if kinds == "growing" else 9, 15]


@every_kind
def test_a_boundary_at_the_end_leaves_a_token_to_compute(mlx: OnMlx, kinds: Kinds) -> None:
    step = Step(PROMPT[:10], for_5_minutes(10))
    found = mlx(outcomes, kinds, AMPLE, [step, step])
    assert [use(each) for each in found] == [(0, 9), (9, 9)]


@every_kind
def test_a_prompt_of_one_token_has_nothing_to_keep(mlx: OnMlx, kinds: Kinds) -> None:
    step = Step(PROMPT[:1], for_5_minutes(1), (50,))
    assert [use(each) for each in mlx(outcomes, kinds, AMPLE, [step, step])] == [(0, 0), (0, 0)]


@every_kind
def test_a_marker_moved_earlier_limits_what_is_read_and_reused(mlx: OnMlx, kinds: Kinds) -> None:
    whole = Step(PROMPT, for_5_minutes(6, 15), (50,))
    earlier = [Step(PROMPT, for_5_minutes(tokens), (50,)) for tokens in (14, 6, 3)]
    found = mlx(outcomes, kinds, AMPLE, [whole, *earlier])
    assert [use(each) for each in found[1:]] == [(6, 14), (6, 6), (0, 3)]
    assert all(
        each.reused_tokens <= limit for each, limit in zip(found[1:], (14, 6, 3), strict=True)
    )


def test_without_markers_all_that_is_there_is_used(mlx: OnMlx) -> None:
    marked = Step(PROMPT, for_5_minutes(6), (50, 51))
    longer = Step((*PROMPT, 50, 51, 60), now=10_000)
    found = mlx(outcomes, "growing", AMPLE, [marked, longer, longer])
    assert [each.reused_tokens for each in found] == [0, 22, 22]
    assert use(found[1]) == (0, 0)


@every_kind
def test_a_promise_is_for_its_time_since_the_last_use(mlx: OnMlx, kinds: Kinds) -> None:
    times = (0, 299, 598, 898, 1198)
    found = mlx(outcomes, kinds, AMPLE, [Step(PROMPT, for_5_minutes(9), now=now) for now in times])
    assert [each.read_tokens for each in found] == [0, 9, 9, 0, 0]
    assert [each.reused_tokens for each in found] == [0, 9, 9, 9, 9]


@every_kind
def test_of_two_times_for_one_place_the_longer_counts(mlx: OnMlx, kinds: Kinds) -> None:
    hour, minutes = (Boundary(9, 3600),), for_5_minutes(9)
    steps = [
        Step(PROMPT, marks, now=now)
        for marks, now in ((hour, 0), (minutes, 10), (minutes, 3500), (minutes, 7200), (hour, 7501))
    ]
    found = mlx(outcomes, kinds, AMPLE, [*steps, Step(PROMPT, hour, now=11_102)])
    assert [each.read_tokens for each in found] == [0, 9, 9, 0, 0, 0]


@every_kind
def test_scopes_know_nothing_of_each_other(mlx: OnMlx, kinds: Kinds) -> None:
    steps = [Step(PROMPT, for_5_minutes(9), scope=scope) for scope in ("a", "b", "", "a")]
    found = mlx(outcomes, kinds, AMPLE, steps)
    assert [each.reused_tokens for each in found] == [0, 0, 0, 9]


@every_kind
def test_what_a_cancelled_run_did_not_reach_is_not_there(mlx: OnMlx, kinds: Kinds) -> None:
    cancelled = Step(PROMPT, for_5_minutes(4, 12), computes=9)
    found = mlx(outcomes, kinds, AMPLE, [cancelled, Step(PROMPT, for_5_minutes(4, 12))])
    assert use(found[0]) == (0, 12)
    assert (use(found[1]), found[1].reused_tokens) == ((4, 12), 9)


def reads(mlx: OnMlx, tokens: int, kept: list[Step], sought: list[Step]) -> list[int]:
    """How much of each prompt sought is reused after the others went through a memory for so many
    tokens. Each is sought after the same history, since seeking is use."""
    return [
        mlx(outcomes, "growing", tokens * TOKEN_BYTES, [*kept, each])[-1].reused_tokens
        for each in sought
    ]


def prompt(first: int, length: int) -> tuple[int, ...]:
    return tuple(range(first, first + length))


def test_what_nothing_promises_goes_first_then_what_was_not_used_for_longest(mlx: OnMlx) -> None:
    promised = Step(prompt(100, 11), for_5_minutes(10), now=0)
    older, newer = Step(prompt(200, 11), now=1), Step(prompt(300, 11), now=2)
    sought = [Step(each.prompt, now=4) for each in (promised, older, newer)]
    more = Step(prompt(400, 11), now=3)
    assert reads(mlx, 30, [promised, older, newer, more], sought) == [10, 0, 10]
    expired = Step(prompt(400, 11), now=301)
    late = [Step(each.prompt, now=302) for each in (promised, older, newer)]
    assert reads(mlx, 30, [promised, older, newer, expired], late) == [0, 10, 10]


def test_what_several_prompts_begin_with_outlives_their_ends(mlx: OnMlx) -> None:
    shared = prompt(100, 20)
    ends = [Step((*shared, *prompt(first, 6)), now=now) for first, now in ((200, 0), (300, 1))]
    other = Step(prompt(400, 11), now=2)
    sought = [Step(each.prompt, now=4) for each in (*ends, other)]
    assert reads(mlx, 41, [*ends, other, Step(prompt(500, 6), now=3)], sought) == [20, 25, 10]


def test_a_promise_keeps_what_is_above_it(mlx: OnMlx) -> None:
    promised = Step(prompt(100, 11), for_5_minutes(5, 10), now=0)
    steps = [Step(prompt(200 + now, 11), now=now) for now in range(1, 5)]
    assert reads(mlx, 20, [promised, *steps], [promised]) == [10]
    expired = [Step(each.prompt, now=each.now + 300) for each in steps]
    assert reads(mlx, 20, [promised, *expired], [promised]) == [0]


def test_only_what_is_promised_takes_the_room_of_what_is(mlx: OnMlx) -> None:
    first = Step(prompt(100, 11), for_5_minutes(10), now=0)
    implicit, explicit = (
        Step(prompt(200, 11), now=1),
        Step(prompt(200, 11), first.boundaries, now=1),
    )
    for other, left in ((implicit, [10, 0]), (explicit, [0, 10])):
        sought = [Step(each.prompt, now=2) for each in (first, other)]
        assert reads(mlx, 15, [first, other], sought) == left


@every_kind
@pytest.mark.parametrize("tokens", [0, 1, 5])
def test_what_has_no_room_is_not_said_to_be_kept(mlx: OnMlx, kinds: Kinds, tokens: int) -> None:
    small = Step(PROMPT[:3], for_5_minutes(2))  # from which the size of a token is known
    steps = [small, Step(PROMPT, for_5_minutes(19)), Step(PROMPT, for_5_minutes(19))]
    limit = tokens * TOKEN_BYTES
    found = mlx(outcomes, kinds, limit if kinds in ("growing", "windowed") else 0, steps)
    assert [use(each) for each in found[1:]] == [(0, 0), (0, 0)] or tokens == 5
    assert found[-1].reused_tokens <= tokens


def test_memory_is_really_given_back(mlx: OnMlx) -> None:
    for limit in (1 << 30, 300_000):
        held, active = mlx(held_and_active_bytes, limit, 40)
        assert held <= limit
        assert active == held


@every_kind
def test_a_run_goes_on_where_memory_for_its_state_is_wanting(mlx: OnMlx, kinds: Kinds) -> None:
    reused = mlx(reused_after_faults, kinds, PROMPT)
    assert reused[:2] == [0, 0]
    assert reused[2] == reused[4]
    assert reused[3] == 0


def test_many_long_prompts_are_told_apart(mlx: OnMlx) -> None:
    chance = random.Random(0)
    prompts = [chance.choices(range(50_000), k=16_000) for _ in range(64)]
    cuts = [chance.randrange(16_000) for _ in prompts]
    alike = [each[:cut] + [60_000] * 20 for each, cut in zip(prompts, cuts, strict=True)]
    assert mlx(found_lengths, prompts + alike, prompts) == [16_000] * 64
    assert mlx(found_lengths, prompts, alike) == cuts
