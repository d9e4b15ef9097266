"""With the prompt cache every model answers as without, whatever its layers keep of a prompt."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import Any

import pytest

from models.boundary import Boundary
from models.engine.protocol import CacheUse, JobEvent, Run, Stats
from tests.models.engine.events import ending, prefilled, prompt_of, tokens_of
from tests.models.engine.on_mlx import (
    OnMlx,
    cache_facts,
    generate,
    in_chunks_of,
    logit_gaps,
    run_of,
    segments,
)
from tests.support.random_weights import write_random_weights
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tests.support.tiny_gemma import write_tiny_gemma3, write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer
from tests.support.tiny_hybrid import write_tiny_hybrid

# Windows of the tiny models are 32 tokens long, so that prompts go past them.
CHUNK, PROMPT = 16, prompt_of(75)
# Around the ends of chunks, of the window, and of the prompt.
PLACES = (1, 15, 16, 17, 31, 32, 33, 47, 48, 49, 74)
ACCURACY = 1e-4  # of float32 products in another order
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.9, "top_p": 0.95, "top_k": 40, "seed": 5}


def _random(write: Callable[[Path], Path], folder: Path) -> Path:
    return write_random_weights(write(folder))


ARCHITECTURES: dict[str, Callable[[Path], Path]] = {
    "llama": write_tiny_checkpoint,
    "gemma3": partial(_random, write_tiny_gemma3),
    "gemma4": partial(_random, write_tiny_gemma4),
    "glimmer": partial(_random, write_tiny_glimmer),
    "hybrid": write_tiny_hybrid,
}
can_be_cut = {"llama"}


@pytest.fixture(scope="module", params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(mlx: OnMlx, architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = ARCHITECTURES[architecture](tmp_path_factory.mktemp("models") / architecture)
    return mlx(in_chunks_of, CHUNK, written)


@pytest.fixture
def scope(request: pytest.FixtureRequest) -> str:
    """Nothing that other tests left is of use to this one."""
    return request.node.nodeid


def marked(prompt: Sequence[int], *tokens: int, max_tokens: int = 4, **more: Any) -> Run:
    return run_of(prompt, max_tokens, boundaries=tuple(Boundary(n, 300) for n in tokens), **more)


def use(events: Sequence[JobEvent]) -> tuple[int, int]:
    first = events[0]
    assert isinstance(first, CacheUse)
    return first.read_tokens, first.kept_tokens


def alone(run: Run) -> Run:
    return replace(run, scope="")


def turned_off(at: int) -> list[int]:
    """A prompt that begins as `PROMPT` does."""
    return [*PROMPT[:at], (PROMPT[at] + 1) % 256, *prompt_of(9)]


@pytest.mark.parametrize("marks", [(), (20, 48)], ids=["unmarked", "marked"])
def test_prompts_that_begin_alike_are_answered_as_if_they_were_alone(
    mlx: OnMlx, folder: Path, scope: str, marks: tuple[int, ...]
) -> None:
    first = mlx(generate, folder, marked(PROMPT, *marks, scope=scope))
    longer = [*PROMPT, *tokens_of(first), *prompt_of(20)]
    for prompt in (PROMPT, longer, *(turned_off(place) for place in PLACES), PROMPT, longer):
        run = marked(prompt, *marks, scope=scope)
        warm = mlx(generate, folder, run)
        assert tokens_of(warm) == tokens_of(mlx(generate, folder, alone(run)))
        if marks:
            read = max((mark for mark in marks if prompt[:mark] == PROMPT[:mark]), default=0)
            assert use(warm) == (read, min(48, len(prompt) - 1))
            assert read <= ending(warm).stats.reused_tokens <= 48


def test_what_is_brought_back_after_any_token_gives_the_same_logits(
    mlx: OnMlx, folder: Path, architecture: str, scope: str
) -> None:
    mlx(generate, folder, marked(PROMPT, 7, 30, 50, scope=scope))
    runs = [run_of(turned_off(place), 4, scope=scope) for place in range(len(PROMPT) - 1)]
    for place, (reused, gap) in enumerate(mlx(logit_gaps, folder, runs)):
        points = [point for point in (0, 7, 30, 50) if point <= place]
        assert reused == (place if architecture in can_be_cut else points[-1])
        assert gap < ACCURACY


@pytest.mark.parametrize("marks", [(), (20, 48)], ids=["unmarked", "marked"])
def test_what_a_run_leaves_that_is_cancelled_anywhere_is_right(
    mlx: OnMlx, folder: Path, scope: str, marks: tuple[int, ...]
) -> None:
    run = marked(PROMPT, *marks, max_tokens=5)
    longer = replace(run, prompt=run.prompt + run.prompt[:9])
    whole, of_longer = mlx(generate, folder, run), mlx(generate, folder, longer)
    for cut in range(len(whole) - 1):
        here = f"{scope} {cut}"
        stats = ending(mlx(generate, folder, replace(run, scope=here), cut)).stats
        again = mlx(generate, folder, replace(run, scope=here))
        assert tokens_of(again) == tokens_of(whole)
        computed = min(stats.prefilled_tokens, 48 if marks else len(PROMPT) - 1)
        assert ending(again).stats.reused_tokens == computed
        if marks:
            kept = [mark for mark in marks if mark <= stats.prefilled_tokens]
            assert use(again) == (max(kept, default=0), 48)
        assert tokens_of(mlx(generate, folder, replace(longer, scope=here))) == tokens_of(of_longer)


@pytest.mark.parametrize(
    ("marks", "settings"), [((), GREEDY), ((20, 48), SAMPLED)], ids=["greedy", "sampled, marked"]
)
def test_a_run_suspended_anywhere_goes_on_just_there(
    mlx: OnMlx, folder: Path, scope: str, marks: tuple[int, ...], settings: dict[str, Any]
) -> None:
    run = marked(PROMPT, *marks, max_tokens=5, **settings)
    whole = mlx(generate, folder, run)
    for cut in range(len(whole) - 1):
        here = replace(run, scope=f"{scope} {cut}")
        other = marked(PROMPT[:40], 30, scope=here.scope, job="other")
        parts = mlx(segments, folder, here, [cut], [(other, None, "cancelled")])
        assert [token for part in parts for token in tokens_of(part)] == tokens_of(whole)
        total = reduce(Stats.plus, (ending(part).stats for part in parts))
        assert total.prefilled_tokens <= len(PROMPT)


def test_a_marker_moved_earlier_limits_what_is_reused(mlx: OnMlx, folder: Path, scope: str) -> None:
    mlx(generate, folder, marked(PROMPT, 10, 30, 60, scope=scope))
    for mark, read in ((60, 60), (59, 30), (30, 30), (29, 10), (9, 0)):
        events = mlx(generate, folder, marked(PROMPT, mark, scope=scope))
        assert use(events) == (read, mark)
        assert read <= ending(events).stats.reused_tokens <= mark
        assert tokens_of(events) == tokens_of(mlx(generate, folder, marked(PROMPT)))


def test_nothing_is_decoded_to_warm_the_cache(mlx: OnMlx, folder: Path, scope: str) -> None:
    cold = mlx(generate, folder, marked(PROMPT, 20, 200, max_tokens=0, scope=scope))
    assert use(cold) == (0, 74)
    assert tokens_of(cold) == []
    assert prefilled(cold)[-1] == (74, 75)
    warm = mlx(generate, folder, marked(PROMPT, 20, 200, scope=scope))
    assert use(warm) == (74, 74)
    assert ending(warm).stats.prefilled_tokens == 1
    assert tokens_of(warm) == tokens_of(mlx(generate, folder, marked(PROMPT)))


def test_a_conversation_computes_what_is_new_in_each_turn(
    mlx: OnMlx, folder: Path, scope: str
) -> None:
    prompt = list(PROMPT)
    for turn in range(5):
        run = marked(prompt, 20, len(prompt) - 3, scope=scope)
        events = mlx(generate, folder, run)
        new = len(prompt) if turn == 0 else 31  # and the last of the answer, which was not sent
        assert ending(events).stats.prefilled_tokens == new
        assert tokens_of(events) == tokens_of(mlx(generate, folder, alone(run)))
        prompt += [*tokens_of(events), *prompt_of(30)]


def test_an_answer_that_is_written_down_otherwise_costs_no_more_than_itself(
    mlx: OnMlx, folder: Path, scope: str
) -> None:
    mlx(generate, folder, replace(marked(PROMPT, scope=scope), answer_from=70))
    other = run_of([*PROMPT[:72], *prompt_of(9)], 4, scope=scope)
    events = mlx(generate, folder, other)
    assert ending(events).stats.reused_tokens >= 70
    assert tokens_of(events) == tokens_of(mlx(generate, folder, alone(other)))


def test_in_little_memory_answers_are_the_same(mlx: OnMlx, folder: Path, scope: str) -> None:
    mlx(generate, folder, marked(PROMPT, 48, scope=scope))
    limit = mlx(cache_facts, folder)["memory"]["held_bytes"] // 40
    mlx(in_chunks_of, CHUNK, folder, limit)
    chance = random.Random(0)
    for _ in range(12):
        run = marked(turned_off(chance.choice(PLACES)), *chance.choice([(), (20,), (48, 60)]))
        warm = mlx(generate, folder, replace(run, scope=scope), None, "cancelled", limit)
        assert tokens_of(warm) == tokens_of(mlx(generate, folder, run))
        assert mlx(cache_facts, folder, limit)["memory"]["held_bytes"] <= limit


def test_nothing_is_kept_where_the_cache_is_off(mlx: OnMlx, folder: Path, scope: str) -> None:
    for _ in range(2):
        run = marked(PROMPT, 48, scope=scope)
        events = mlx(generate, folder, run, None, "cancelled", 0)
        assert use(events) == (0, 0)
        assert ending(events).stats.reused_tokens == 0
        assert mlx(cache_facts, folder, 0)["memory"]["held_bytes"] == 0
