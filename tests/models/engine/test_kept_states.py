"""An interrupted run goes on where it was, and gives the tokens that it would have given."""

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
    survivors,
    windowed,
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
        parts = mlx(segments, tiny, run, [cut])
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
        assert whole_of(mlx(segments, tiny, run, [cut])) == whole


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
def test_a_run_whose_state_was_dropped_or_taken_prefills_again(
    mlx: OnMlx, tiny: Path, chunk: int, scope: str, settings: dict[str, Any]
) -> None:
    prompt = prompt_of(chunk + 9)
    run = run_of(prompt, 8, scope=scope, **settings)
    whole = mlx(generate, tiny, replace(run, scope=""))
    newer = [
        (run_of(prompt_of(20 + i), 4, job=f"{i}", scope=scope), 3, "suspended") for i in range(3)
    ]
    same = [(replace(run, job="same"), None, "cancelled")]
    for others in (newer, same):
        for cut in range(2, len(whole) - 1):
            parts = mlx(segments, tiny, run, [cut], others)
            assert whole_of(parts) == whole_of([whole])
            assert ending(parts[1]).stats.reused_tokens == 0


@settings_of_draws
def test_a_run_goes_on_in_a_new_engine(
    mlx: OnMlx, tiny: Path, chunk: int, scope: str, settings: dict[str, Any]
) -> None:
    run = run_of(prompt_of(chunk + 9), 6, scope=scope, **settings)
    whole = mlx(generate, tiny, run)
    for cut in range(len(whole) - 1):
        parts = mlx(in_a_new_engine, tiny, run, cut)
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
        first = ending(mlx(generate, tiny, run, cut)).stats
        again = mlx(generate, tiny, replace(run, job="run_2"))
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


@pytest.mark.parametrize("common", [19, 20, 39])
def test_what_a_cancelled_run_left_goes_to_one_that_uses_half_of_its_prompt(
    mlx: OnMlx, tiny: Path, scope: str, common: int
) -> None:
    mlx(generate, tiny, run_of(prompt_of(40), 8, scope=scope), 5)
    prompt = prompt_of(40)[:common] + prompt_of(50)
    events = mlx(generate, tiny, run_of(prompt, 8, job="run_2", scope=scope))
    assert ending(events).stats.reused_tokens == (common if common >= 20 else 0)
    assert tokens_of(events) == tokens_of(mlx(generate, tiny, run_of(prompt, 8)))


def test_nothing_is_shared_between_scopes(mlx: OnMlx, tiny: Path, scope: str) -> None:
    run = run_of(prompt_of(40), 8, scope=scope)
    mlx(generate, tiny, run, 5)
    for other in (f"{scope} ", ""):
        events = mlx(generate, tiny, replace(run, scope=other))
        assert ending(events).stats.reused_tokens == 0
    assert ending(mlx(generate, tiny, run)).stats.reused_tokens == 39


@pytest.mark.parametrize("change", [{"seed": 6}, {"temperature": 0.8}, {"first_index": 0}], ids=str)
def test_a_drawn_token_is_only_for_the_same_draw(
    mlx: OnMlx, tiny: Path, scope: str, change: dict[str, Any]
) -> None:
    run = run_of(prompt_of(40), 8, scope=scope, **SAMPLED)
    changed = replace(resumed(run, mlx(generate, tiny, run, 5, "suspended")), **change)
    events = mlx(generate, tiny, changed)
    assert ending(events).stats.reused_tokens == len(changed.prompt) - 1
    assert tokens_of(events) == tokens_of(mlx(generate, tiny, replace(changed, scope="")))


def test_a_state_is_taken_by_one_run_only(mlx: OnMlx, tiny: Path, scope: str) -> None:
    run = run_of(prompt_of(40), 8, scope=scope)
    mlx(generate, tiny, run, 5)
    reused = [ending(mlx(generate, tiny, run)).stats.reused_tokens for _ in range(2)]
    assert reused == [39, 0]


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
    for cut in range(1, 5):
        parts = mlx(segments, tiny, run, [cut])
        assert whole_of(parts) == ([], "length")
        assert prefilled(parts[-1])[-1] == (total, total)
        assert stats_of(parts).prefilled_tokens == total
    mlx(generate, tiny, replace(run, max_tokens=8), 6)
    everything = mlx(generate, tiny, run)
    assert prefilled(everything) == [(total, total)]
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


def test_a_cache_that_forgets_is_never_cut(
    mlx: OnMlx, tiny: Path, tmp_path: Path, scope: str
) -> None:
    """Its run can go on, but another cannot have a part of it."""
    window = 16
    folder = mlx(windowed, tiny, tmp_path / "windowed", window)
    for length, cuttable in ((8, True), (40, False)):
        run = run_of(prompt_of(length), 8, scope=f"{scope} {length}", **SAMPLED)
        whole = tokens_of(mlx(generate, folder, replace(run, scope="")))
        for cut in range(2, 9):
            assert whole_of(mlx(segments, folder, run, [cut]))[0] == whole
        mlx(generate, folder, run, 4)
        again = mlx(generate, folder, replace(run, job="run_2"))
        assert tokens_of(again) == whole
        assert ending(again).stats.reused_tokens == (length - 1 if cuttable else 0)


ROOM = 256 * 8


@pytest.mark.parametrize(
    ("limit_bytes", "token_counts", "left"),
    [
        (100 * ROOM, [5, 5, 5], [0, 1, 2]),
        (100 * ROOM, [5, 5, 5, 5, 5], [2, 3, 4]),
        (100 * ROOM, [5, 0, 5, 0, 5], [0, 2, 4]),
        (3 * ROOM, [257, 5, 5], [1, 2]),
        (3 * ROOM, [5, 5, 257], [1, 2]),
        (ROOM, [5, 256], [1]),
        (ROOM, [5, 257], []),
        (0, [5], []),
    ],
)
def test_few_states_are_kept_and_the_oldest_goes_first(
    mlx: OnMlx, limit_bytes: int, token_counts: list[int], left: list[int]
) -> None:
    assert mlx(survivors, limit_bytes, token_counts) == left


@pytest.mark.parametrize(
    ("limit_bytes", "suspended", "left"),
    [
        (100 * ROOM, [0], [0, 2, 3]),
        (100 * ROOM, [0, 1, 2], [1, 2, 3]),
        (2 * ROOM, [0], [0, 3]),
        (2 * ROOM, [0, 1], [0, 1]),
    ],
)
def test_suspended_runs_keep_theirs_longer_but_never_keep_all_others_out(
    mlx: OnMlx, limit_bytes: int, suspended: list[int], left: list[int]
) -> None:
    assert mlx(survivors, limit_bytes, [5, 5, 5, 5], suspended) == left


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
