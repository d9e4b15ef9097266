"""Runs that go on from what others computed give the tokens that they would have given alone."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from models.engine.protocol import JobEvent, Stats
from tests.models.engine.events import ending, prefilled, prompt_of, tokens_of
from tests.models.engine.on_mlx import (
    OnMlx,
    generate,
    in_a_new_engine,
    interleaved,
    resumed,
    run_of,
    segments,
)

GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 5}
settings_of_draws = pytest.mark.parametrize("settings", [GREEDY, SAMPLED], ids=str)


@pytest.fixture
def scope(request: pytest.FixtureRequest) -> str:
    """Nothing that other tests left is of use to this one."""
    return request.node.nodeid


def whole_of(parts: Sequence[list[JobEvent]]) -> tuple[list[int], str]:
    """All tokens, and how the run ended."""
    return [token for part in parts for token in tokens_of(part)], ending(parts[-1]).reason


def stats_of(parts: Sequence[list[JobEvent]]) -> Stats:
    return reduce(Stats.plus, (ending(part).stats for part in parts))


@settings_of_draws
def test_a_run_suspended_at_any_point_goes_on_just_there(
    mlx: OnMlx, tiny: Path, chunk: int, scope: str, settings: dict[str, Any]
) -> None:
    run = run_of(prompt_of(2 * chunk + 9), 8, scope=scope, **settings)
    whole = mlx(generate, tiny, run)
    for cut in range(len(whole) - 1):
        parts = mlx(segments, tiny, replace(run, scope=f"{scope} {cut}"), [cut])
        assert whole_of(parts) == whole_of([whole])
        first, second = ending(parts[0]).stats, ending(parts[1]).stats
        assert second.reused_tokens == first.prefilled_tokens + first.generated_tokens
        assert prefilled(parts[1])[0] == (
            second.reused_tokens,
            len(run.prompt) + len(tokens_of(parts[0])),
        )
        total = stats_of(parts)
        assert (total.prefilled_tokens, total.generated_tokens) == (len(run.prompt), 8)


@settings_of_draws
@pytest.mark.parametrize("events_each_time", [1, 2, 3])
def test_a_run_may_be_suspended_again_and_again(
    mlx: OnMlx, tiny: Path, chunk: int, scope: str, events_each_time: int, settings: dict[str, Any]
) -> None:
    """One event is the report of what was reused: the run has not got on at all."""
    run = run_of(prompt_of(2 * chunk + 9), 8, scope=scope, **settings)
    parts = mlx(segments, tiny, run, [events_each_time] * 12)
    assert whole_of(parts) == whole_of([mlx(generate, tiny, replace(run, scope=""))])
    assert stats_of(parts).prefilled_tokens == len(run.prompt)


def test_a_stop_id_that_was_drawn_but_not_read_still_ends_the_run(
    mlx: OnMlx, tiny: Path, scope: str
) -> None:
    endless = mlx(generate, tiny, run_of(prompt_of(20), 30, **SAMPLED))
    stop = tokens_of(endless)[5]
    run = run_of(prompt_of(20), 30, stop_ids=(stop,), scope=scope, **SAMPLED)
    whole = whole_of([mlx(generate, tiny, replace(run, scope=""))])
    assert whole[1] == "stop"
    for cut in range(2, 2 + len(whole[0])):
        here = replace(run, scope=f"{scope} {cut}")
        assert whole_of(mlx(segments, tiny, here, [cut])) == whole


@settings_of_draws
def test_other_runs_in_between_change_nothing(
    mlx: OnMlx, tiny: Path, chunk: int, scope: str, settings: dict[str, Any]
) -> None:
    """They begin as the suspended run does, in part or in full, and are interrupted themselves."""
    prompt = prompt_of(chunk + 9)
    run = run_of(prompt, 8, **settings)
    whole = mlx(generate, tiny, run)
    for cut in range(2, len(whole) - 1):
        here = f"{scope} {cut}"
        brief = run_of(prompt[:5] + prompt_of(30), 4, job="brief", scope=here)
        similar = run_of(prompt[: chunk - 1] + prompt_of(30), 4, job="similar", scope=here)
        longer = run_of([*prompt, 7], 4, job="longer", scope="elsewhere")
        others = [(brief, None, "cancelled"), (similar, 3, "cancelled"), (longer, 3, "suspended")]
        parts = mlx(segments, tiny, replace(run, scope=here), [cut], others)
        assert whole_of(parts) == whole_of([whole])
        assert stats_of(parts).prefilled_tokens == len(prompt)


@settings_of_draws
def test_a_run_goes_on_in_a_new_engine(
    mlx: OnMlx, tiny: Path, chunk: int, scope: str, settings: dict[str, Any]
) -> None:
    run = run_of(prompt_of(chunk + 9), 6, scope=scope, **settings)
    whole = mlx(generate, tiny, run)
    for cut in range(len(whole) - 1):
        parts = mlx(in_a_new_engine, tiny, replace(run, scope=f"{scope} {cut}"), cut)
        assert whole_of(parts) == whole_of([whole])
        assert ending(parts[1]).stats.reused_tokens == 0


@settings_of_draws
def test_a_cancelled_run_that_is_sent_again_keeps_what_was_computed(
    mlx: OnMlx, tiny: Path, chunk: int, scope: str, settings: dict[str, Any]
) -> None:
    prompt = prompt_of(2 * chunk + 9)
    run = run_of(prompt, 8, scope=scope, **settings)
    whole = mlx(generate, tiny, replace(run, scope=""))
    for cut in range(len(whole) - 1):
        here = replace(run, scope=f"{scope} {cut}")
        first = ending(mlx(generate, tiny, here, cut)).stats
        again = mlx(generate, tiny, replace(here, job="run_2"))
        assert whole_of([again]) == whole_of([whole])
        stats = ending(again).stats
        assert stats.reused_tokens == min(first.prefilled_tokens, len(prompt) - 1)
        assert stats.prefilled_tokens == len(prompt) - stats.reused_tokens


def test_what_a_suspended_run_has_goes_to_one_that_asks_the_same(
    mlx: OnMlx, tiny: Path, scope: str
) -> None:
    """The first client has given up while its run was suspended."""
    run = run_of(prompt_of(40), 8, scope=scope)
    mlx(generate, tiny, run, 5, "suspended")
    again = mlx(generate, tiny, replace(run, job="run_2"))
    assert ending(again).stats.reused_tokens == 39
    assert tokens_of(again) == tokens_of(mlx(generate, tiny, replace(run, scope="")))


def test_a_conversation_goes_on_from_an_answer_that_was_cancelled(
    mlx: OnMlx, tiny: Path, scope: str
) -> None:
    run = run_of(prompt_of(40), 8, scope=scope)
    answer = tokens_of(mlx(generate, tiny, run, 6))
    longer = [*run.prompt, *answer, *prompt_of(10)]
    events = mlx(generate, tiny, run_of(longer, 8, job="run_2", scope=scope))
    assert ending(events).stats.reused_tokens == 40 + len(answer)
    assert tokens_of(events) == tokens_of(mlx(generate, tiny, run_of(longer, 8)))


@pytest.mark.parametrize("common", [1, 19, 39])
def test_whatever_two_prompts_begin_with_is_computed_once(
    mlx: OnMlx, tiny: Path, scope: str, common: int
) -> None:
    mlx(generate, tiny, run_of(prompt_of(40), 8, scope=scope))
    prompt = prompt_of(40)[:common] + prompt_of(50)
    events = mlx(generate, tiny, run_of(prompt, 8, job="run_2", scope=scope))
    assert ending(events).stats.reused_tokens == common
    assert tokens_of(events) == tokens_of(mlx(generate, tiny, run_of(prompt, 8)))


def test_nothing_is_shared_between_scopes(mlx: OnMlx, tiny: Path, scope: str) -> None:
    run = run_of(prompt_of(40), 8, scope=scope)
    mlx(generate, tiny, run, 5)
    for other in (f"{scope} ", ""):
        events = mlx(generate, tiny, replace(run, scope=other))
        assert ending(events).stats.reused_tokens == 0
    assert ending(mlx(generate, tiny, run)).stats.reused_tokens == 39


@pytest.mark.parametrize("change", [{"seed": 6}, {"temperature": 0.8}, {"first_index": 0}], ids=str)
def test_what_comes_next_is_drawn_as_the_run_that_goes_on_would_have_it(
    mlx: OnMlx, tiny: Path, scope: str, change: dict[str, Any]
) -> None:
    run = run_of(prompt_of(40), 8, scope=scope, **SAMPLED)
    changed = replace(resumed(run, mlx(generate, tiny, run, 5, "suspended")), **change)
    events = mlx(generate, tiny, changed)
    assert ending(events).stats.reused_tokens == len(changed.prompt)
    assert tokens_of(events) == tokens_of(mlx(generate, tiny, replace(changed, scope="")))


def test_a_run_that_computed_nothing_leaves_nothing(mlx: OnMlx, tiny: Path, scope: str) -> None:
    run = run_of(prompt_of(40), 8, scope=scope)
    mlx(generate, tiny, run, 5)
    for i in range(5):
        mlx(generate, tiny, run_of(prompt_of(30 + i), 8, job=f"{i}", scope=scope), 0)
    assert ending(mlx(generate, tiny, run)).stats.reused_tokens == 39


def test_max_tokens_0_goes_on_with_the_prefill(
    mlx: OnMlx, tiny: Path, chunk: int, scope: str
) -> None:
    total = 2 * chunk + 9
    run = run_of(prompt_of(total), 0, scope=scope)
    for cut in range(1, 4):
        parts = mlx(segments, tiny, replace(run, scope=f"{scope} {cut}"), [cut])
        assert whole_of(parts) == ([], "length")
        assert prefilled(parts[-1])[-1] == (total - 1, total)
        assert stats_of(parts).prefilled_tokens == total - 1
    mlx(generate, tiny, replace(run, max_tokens=8), 6)
    everything = mlx(generate, tiny, run)
    assert prefilled(everything) == [(total - 1, total)]
    assert ending(everything).stats.prefilled_tokens == 0


@pytest.mark.parametrize("seed", range(6))
def test_runs_in_any_order_give_what_they_give_alone(
    mlx: OnMlx, tiny: Path, chunk: int, scope: str, seed: int
) -> None:
    start = prompt_of(chunk - 20)
    runs = [
        run_of(start + prompt_of(more), 12, job=f"{more}", scope=scope, **{**SAMPLED, "seed": seed})
        for more in (1, 30, 60, 90)
    ]
    alone = [tokens_of(mlx(generate, tiny, replace(run, scope=""))) for run in runs]
    assert [tokens_of(events) for events in mlx(interleaved, tiny, runs, seed)] == alone


@settings_of_draws
def test_the_real_model_goes_on_as_if_nothing_had_been(
    mlx: OnMlx, smollm2: Path, scope: str, settings: dict[str, Any]
) -> None:
    run = run_of([1, *range(1000, 1060)], 6, scope=scope, **settings)
    whole = tokens_of(mlx(generate, smollm2, replace(run, scope="")))
    parts = mlx(segments, smollm2, run, [2, 3])
    assert whole_of(parts) == (whole, "length")
    assert stats_of(parts).prefilled_tokens == len(run.prompt)
    first = mlx(generate, smollm2, run, 4)
    again = mlx(generate, smollm2, replace(run, job="run_2"))
    assert tokens_of(again) == whole
    assert ending(again).stats.reused_tokens == len(run.prompt) - 1
    anew = mlx(generate, smollm2, replace(resumed(run, first), scope=""))
    assert ending(anew).stats.reused_tokens == 0
    assert tokens_of(first) + tokens_of(anew) == whole
