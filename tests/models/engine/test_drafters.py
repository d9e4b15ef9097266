"""Drafters with weights: what they draft is what they should, and no answer depends on it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.engine.protocol import Run, ids_of
from models.grammar.guide_spec import Constrained, Ended, GuideSpec
from models.grammar.json_grammar import json_calls_grammar
from tests.models.engine.eagerly import (
    Drafted,
    by_constants,
    eagerly,
    gap_after_going_back,
    next_probabilities,
    states_of,
)
from tests.models.engine.events import ending, prompt_of, tokens_of
from tests.models.engine.on_mlx import OnMlx, generate, resumed, run_of, serially
from tests.models.engine.test_guided import TOOLS
from tests.models.engine.test_sampling import check_distribution
from tests.models.engine.test_speculation import ARCHITECTURES, SETTINGS, STOP
from tests.support.plain_dflash import PlainDFlash
from tests.support.random_weights import write_random_weights
from tests.support.tiny_companion import write_tiny_companion

Companions = Callable[..., Path]
Eagerly = Callable[..., Any]
KINDS: dict[str, dict[str, Any]] = {
    "DFlash": {},
    "DFlash with frequent tokens": {"draft_ids": range(1, 200, 3)},
    "DFlash with a window": {"window": 12},
    "DFlash with windows alone": {"window": 12, "everywhere": True},
    "causal DFlash": {"window": 30, "causal": True},
    "DFlash2": {"second": True},
    "DFlash2 with frequent tokens and windows": {
        "second": True,
        "draft_ids": range(0, 250, 2),
        "window": 9,
        "everywhere": True,
    },
}


@pytest.fixture(scope="module")
def companion(tmp_path_factory: pytest.TempPathFactory) -> Companions:
    made: dict[str, Path] = {}

    def write(target: Path, kind: str) -> Path:
        name = f"{target} {kind}"
        if name not in made:
            folder = tmp_path_factory.mktemp("companions") / "companion"
            made[name] = write_tiny_companion(folder, target, **KINDS[kind])
        return made[name]

    return write


@pytest.fixture(params=[False, True], ids=["", "ahead"])
def drafting(request: pytest.FixtureRequest) -> Eagerly:
    """With drafts made once the last round is known, and with those begun before that."""
    return partial(eagerly, ahead=request.param)


def check_drafts(
    mlx: OnMlx, target: Path, companion: Path, drafted: list[Drafted], first: int = 0
) -> None:
    """They are those that the network makes of the states of all tokens from `first` on, when it
    is computed as plainly as possible."""
    network = PlainDFlash(companion, target)
    layers = network.own["target_layer_ids"]
    for each in drafted:
        *before, known = each.tokens
        states = mlx(states_of, target, before, layers)[first:]
        assert list(each.drafts) == network.draft(states, first, known)[: len(each.drafts)]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_companion_drafts_what_its_network_makes_of_the_states(
    mlx: OnMlx, drafting: Eagerly, tiny: Path, companion: Companions, kind: str
) -> None:
    run = run_of(prompt_of(30), 120, temperature=1.0, top_k=20)
    answer = tokens_of(mlx(serially, tiny, run))
    events, drafted = mlx(partial(drafting, answer=answer), tiny, companion(tiny, kind), run)
    assert tokens_of(events) == answer
    assert ending(events).stats.accepted_tokens > 30
    assert len(drafted) > 30
    check_drafts(mlx, tiny, companion(tiny, kind), drafted)


@pytest.mark.parametrize("kept", [20, 8])
def test_a_companion_goes_on_where_its_last_run_and_the_prompt_part(
    mlx: OnMlx,
    drafting: Eagerly,
    tiny: Path,
    companion: Companions,
    request: pytest.FixtureRequest,
    kept: int,
) -> None:
    folder = companion(tiny, "DFlash")
    first = run_of(prompt_of(30), 20, scope=request.node.nodeid)
    answer = tokens_of(mlx(drafting, tiny, folder, first)[0])
    following = run_of(prompt_of(30) + answer[:kept] + prompt_of(7), 20, scope=first.scope)
    events, drafted = mlx(drafting, tiny, folder, following)
    assert ending(events).stats.reused_tokens >= 29 + kept
    check_drafts(mlx, tiny, folder, drafted)


def test_without_the_states_of_what_was_cached_a_companion_begins_after_it(
    mlx: OnMlx, tiny: Path, companion: Companions, request: pytest.FixtureRequest
) -> None:
    folder = companion(tiny, "DFlash2")
    first = run_of(prompt_of(40), 1, scope=request.node.nodeid)
    mlx(eagerly, tiny, folder, first)
    mlx(eagerly, tiny, folder, run_of(prompt_of(20), 3, scope="another"))
    following = replace(first, prompt=first.prompt + ids_of(prompt_of(9)), max_tokens=20)
    events, drafted = mlx(eagerly, tiny, folder, following)
    reused = ending(events).stats.reused_tokens
    assert reused >= 40
    check_drafts(mlx, tiny, folder, drafted, first=reused)


def test_a_run_that_was_suspended_is_drafted_for_from_where_it_goes_on(
    mlx: OnMlx, drafting: Eagerly, tiny: Path, companion: Companions, request: pytest.FixtureRequest
) -> None:
    folder = companion(tiny, "DFlash")
    run = run_of(prompt_of(30), 40, scope=request.node.nodeid, temperature=1.0)
    answer = tokens_of(mlx(serially, tiny, replace(run, scope="")))
    part, _ = mlx(drafting, tiny, folder, run, 12)
    rest, drafted = mlx(drafting, tiny, folder, resumed(run, part))
    assert tokens_of(part) + tokens_of(rest) == answer
    check_drafts(mlx, tiny, folder, drafted)


@pytest.fixture(scope="module", params=sorted(ARCHITECTURES))
def architecture(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = ARCHITECTURES[request.param](tmp_path_factory.mktemp("targets") / request.param)
    return made if request.param == "qwen3.5" else write_random_weights(made)


@pytest.mark.parametrize("settings", sorted(SETTINGS))
def test_whatever_the_target_is_a_companion_changes_no_answer(
    mlx: OnMlx, drafting: Eagerly, architecture: Path, companion: Companions, settings: str
) -> None:
    """Windows of the targets are 32 tokens long."""
    kind = {"greedy": "DFlash with a window", "sampled": "DFlash2"}[settings]
    run = run_of(prompt_of(60), 24, **SETTINGS[settings])
    events, drafted = mlx(drafting, architecture, companion(architecture, kind), run)
    assert tokens_of(events) == tokens_of(mlx(serially, architecture, run))
    assert drafted


def test_whatever_a_draft_model_drafts_changes_no_answer(
    mlx: OnMlx, architecture: Path, tiny: Path
) -> None:
    """Whichever of the two it is, and they differ in how many rows their vocabularies have."""
    run = run_of(prompt_of(60), 24, **SETTINGS["sampled"])
    for target, draft in ((tiny, architecture), (architecture, tiny)):
        events, drafted = mlx(eagerly, target, draft, run)
        assert tokens_of(events) == tokens_of(mlx(serially, target, run))
        assert drafted


def test_a_model_that_drafts_for_itself_is_right_past_all_windows(
    mlx: OnMlx, architecture: Path
) -> None:
    run = run_of(prompt_of(50), 40)
    events, _ = mlx(eagerly, architecture, architecture, run)
    assert tokens_of(events) == tokens_of(mlx(serially, architecture, run))
    stats = ending(events).stats
    assert stats.accepted_tokens > 0.9 * stats.drafted_tokens > 20


def test_layers_that_go_back_are_what_they_were_past_all_windows(
    mlx: OnMlx, architecture: Path
) -> None:
    assert mlx(gap_after_going_back, architecture, prompt_of(45), prompt_of(9)) == 0


def test_a_draft_model_knows_the_conversation_from_its_last_run(
    mlx: OnMlx, tiny: Path, request: pytest.FixtureRequest
) -> None:
    scope = request.node.nodeid
    first = run_of(prompt_of(30), 20, scope=scope)
    answer = tokens_of(mlx(eagerly, tiny, tiny, first)[0])
    for prompt in (prompt_of(30) + answer + prompt_of(5), prompt_of(30) + answer[:4]):
        following = run_of(prompt, 20, scope=scope)
        events, _ = mlx(eagerly, tiny, tiny, following)
        stats = ending(events).stats
        assert stats.reused_tokens >= 30
        assert stats.accepted_tokens > 0.9 * stats.drafted_tokens > 10


def test_a_guided_answer_that_ends_is_the_same_with_a_companion(
    mlx: OnMlx, drafting: Eagerly, tiny: Path, companion: Companions
) -> None:
    spec = GuideSpec((Constrained(json_calls_grammar(TOOLS), 1), Ended()))
    for settings in SETTINGS.values():
        run = run_of(prompt_of(12), 400, guide=spec.as_json(), stop_ids=(STOP,), **settings)
        events, _ = mlx(drafting, tiny, companion(tiny, "DFlash2"), run)
        assert tokens_of(events) == tokens_of(mlx(serially, tiny, run))
        assert tokens_of(events)[-1] == STOP


def test_what_a_drafter_is_given_while_it_drafts_nothing_is_not_lost(
    mlx: OnMlx, tiny: Path, companion: Companions
) -> None:
    """The policy steps serially at first, and whenever drafts do not pay."""
    run = run_of(prompt_of(300), 150, temperature=1.0, top_k=30)
    answer = tokens_of(mlx(serially, tiny, run))
    for drafter in (companion(tiny, "DFlash"), companion(tiny, "DFlash with a window"), tiny):
        events = mlx(generate, tiny, run, None, "cancelled", None, drafter)
        assert tokens_of(events) == answer
        assert ending(events).stats.drafted_tokens > 0


def sampled(seeds: range) -> Iterator[Run]:
    settings: dict[str, Any] = {"temperature": 2.5, "top_k": 3, "top_p": 0.95}
    return (run_of(prompt_of(20), 4, seed=seed, scope="sampled", **settings) for seed in seeds)


def test_answers_with_wrong_and_right_drafts_have_the_distribution_of_the_target(
    mlx: OnMlx, tiny: Path
) -> None:
    """Over the second and third token after the first, which are drafted."""
    probable = mlx(next_probabilities, tiny, next(sampled(range(1))), [])
    after = {
        first: mlx(next_probabilities, tiny, next(sampled(range(1))), [first]) for first in probable
    }
    pairs = {
        (first, second): chance * other
        for first, chance in probable.items()
        for second, other in after[first].items()
    }
    likely = max(after[max(probable, key=probable.__getitem__)].items(), key=lambda each: each[1])
    runs = mlx(by_constants, tiny, [likely[0], 7, 7], list(sampled(range(250))))
    drawn = [tuple(tokens_of(events)[:2]) for events in runs]
    stats = [ending(events).stats for events in runs]
    accepted = sum(each.accepted_tokens for each in stats)
    assert 0.1 < accepted / sum(each.verified_rounds for each in stats) < 0.9
    names = sorted(pairs)
    assert set(drawn) <= set(names)
    check_distribution([names.index(each) for each in drawn], np.array([pairs[n] for n in names]))
