"""Drafts change how fast an answer comes, and never what it is: for each kind of layer, within and
past their windows, whatever is drafted and however many of the drafts are right."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from models.engine.protocol import Run, ids_of
from models.grammar.guide_spec import Constrained, Ended, Forced, Free, GuideSpec
from models.grammar.json_grammar import json_calls_grammar
from tests.models.engine.events import ending, prompt_of, tokens_of
from tests.models.engine.on_mlx import OnMlx, drafted, generate, run_of, segments, serially
from tests.models.engine.test_guided import TOOLS
from tests.support.random_weights import write_random_weights
from tests.support.tiny_gemma import write_tiny_gemma3, write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer
from tests.support.tiny_hybrid import write_tiny_hybrid
from tests.support.tiny_qwen import write_tiny_qwen
from tests.support.wide_context import with_context

ARCHITECTURES: dict[str, Callable[[Path], Path]] = {
    "qwen3": partial(write_tiny_qwen, generation="qwen3"),
    "qwen3.5": write_tiny_hybrid,
    "gemma3": write_tiny_gemma3,
    "gemma4": write_tiny_gemma4,
    "glimmer": write_tiny_glimmer,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "seed": 3},
}
# Drafted and right: none, all, and all kinds in turns.
ROUNDS = [[(3, 0)], [(5, 5)], [(4, 0), (4, 4), (2, 1), (7, 6), (1, 0)]]
STOP = 258


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    write = ARCHITECTURES[request.param]
    made = with_context(write(tmp_path_factory.mktemp("models") / "tiny"), 1 << 12)
    return made if write is write_tiny_hybrid else write_random_weights(made)


@pytest.mark.parametrize("prompt", [3, 60])  # windows are 32 tokens long
@pytest.mark.parametrize("settings", sorted(SETTINGS))
def test_whatever_is_drafted_the_answer_is_that_of_single_steps(
    mlx: OnMlx, folder: Path, settings: str, prompt: int
) -> None:
    run = run_of(prompt_of(prompt), 50, **SETTINGS[settings])
    answer = tokens_of(mlx(serially, folder, run))
    assert len(answer) == 50
    for rounds in ROUNDS:
        events = mlx(drafted, folder, run, answer, rounds)
        assert tokens_of(events) == answer, rounds
        stats = ending(events).stats
        assert stats.generated_tokens == 50
        assert stats.verified_rounds > 0
        assert stats.accepted_tokens <= stats.drafted_tokens
        assert (stats.accepted_tokens == 0) == (rounds == [(3, 0)])


def test_a_text_that_repeats_itself_is_drafted_from(mlx: OnMlx, folder: Path) -> None:
    run = run_of(prompt_of(40), 120, temperature=1.0, top_k=1)  # random models soon go in circles
    answer = tokens_of(mlx(serially, folder, run))
    events = mlx(generate, folder, run)
    assert tokens_of(events) == answer
    assert ending(events).stats.drafted_tokens > 0


def test_a_draft_beyond_the_end_is_not_in_the_answer(mlx: OnMlx, folder: Path) -> None:
    run = run_of(prompt_of(20), 30, temperature=1.0)
    answer = tokens_of(mlx(serially, folder, run))
    place = next(i for i in range(3, 30) if answer[i] not in answer[:i])
    stopped = replace(run, stop_ids=(answer[place],))
    for rounds in ([(7, 7)], [(3, 3)], [(2, 1)]):
        events = mlx(drafted, folder, stopped, answer, rounds)
        assert tokens_of(events) == answer[: place + 1]
        assert ending(events).reason == "stop"


@pytest.mark.parametrize("tokens", [1, 2, 5])
def test_no_more_is_generated_than_asked_for(mlx: OnMlx, folder: Path, tokens: int) -> None:
    run = run_of(prompt_of(20), 30)
    answer = tokens_of(mlx(serially, folder, run))
    events = mlx(drafted, folder, replace(run, max_tokens=tokens), answer, [(9, 9)])
    assert tokens_of(events) == answer[:tokens]
    assert ending(events).reason == "length"


def test_what_a_speculating_run_leaves_is_right(
    mlx: OnMlx, folder: Path, request: pytest.FixtureRequest
) -> None:
    """Its state is kept for the next prompt, which goes on from its answer."""
    scope = request.node.nodeid
    run = run_of(prompt_of(40), 25, scope=scope)
    answer = tokens_of(mlx(serially, folder, replace(run, scope="")))
    for number, rounds in enumerate(ROUNDS):
        first = replace(run, scope=f"{scope} {number}")
        mlx(drafted, folder, first, answer, rounds)
        following = replace(first, prompt=run.prompt + ids_of(answer) + ids_of(prompt_of(7)))
        alone = mlx(serially, folder, replace(following, scope=""))
        warm = mlx(serially, folder, following)
        assert ending(warm).stats.reused_tokens >= 40
        assert tokens_of(warm) == tokens_of(alone), rounds


def test_a_speculating_run_suspended_anywhere_goes_on_just_there(
    mlx: OnMlx, folder: Path, request: pytest.FixtureRequest
) -> None:
    run = run_of(prompt_of(40), 100, scope=request.node.nodeid, temperature=1.0, top_k=2)
    answer = tokens_of(mlx(serially, folder, replace(run, scope="")))
    parts = mlx(segments, folder, run, [4, 9, 20, 3, 2])
    assert [token for part in parts for token in tokens_of(part)] == answer


CALL = GuideSpec((Constrained(json_calls_grammar(TOOLS), 1), Ended()))
THINKS = GuideSpec(
    (
        Free({256: 1}, close=(7, 256)),
        Forced((9, 8, 7), 2),
        Constrained(json_calls_grammar(TOOLS), 3),
        Ended(),
    ),
    thinking_budget=6,
)


@pytest.mark.parametrize("spec", [CALL, THINKS], ids=["call", "thinking, then a call"])
@pytest.mark.parametrize("settings", sorted(SETTINGS))
def test_a_guided_answer_is_the_same_with_drafts(
    mlx: OnMlx, tiny: Path, settings: str, spec: GuideSpec
) -> None:
    run: Run = run_of(
        prompt_of(12), 400, guide=spec.as_json(), stop_ids=(STOP,), **SETTINGS[settings]
    )
    answer = tokens_of(mlx(serially, tiny, run))
    assert answer[-1] == STOP
    for rounds in ROUNDS:
        assert tokens_of(mlx(drafted, tiny, run, answer, rounds)) == answer, rounds
    events = mlx(generate, tiny, run)
    assert tokens_of(events) == answer
    assert ending(events).stats.accepted_tokens > 0  # what the grammar forces, at least
