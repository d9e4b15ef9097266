"""Draws have exactly the distribution that was asked for."""

from collections.abc import Sequence
from functools import partial
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from tests.models.engine.on_mlx import OnMlx, draw

LOGITS = (0.5, 2.0, -0.25, 1.5, 0.0, 1.0, 0.25, -0.1)
BEST = 1
DRAWS = 1200
PLAIN = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def draws(
    mlx: OnMlx, places: Sequence[tuple[int, int]], logits: Sequence[float] = LOGITS, **settings: Any
) -> list[int]:
    return mlx(partial(draw, logits, places, **{**PLAIN, **settings}))


def exact(temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> np.ndarray:
    """The probability of each token: temperature, then the best k, then the nucleus."""
    weights = np.exp(np.array(LOGITS, np.float64) / temperature)
    order = np.argsort(-weights)
    if top_k:
        weights[order[top_k:]] = 0
    weights /= weights.sum()
    mass_before = np.cumsum(weights[order]) - weights[order]
    weights[order[mass_before >= top_p]] = 0
    return weights / weights.sum()


def check_distribution(drawn: list[int], probabilities: np.ndarray) -> None:
    """Pearson's chi-square test at 0.1 %; the seeds are fixed, and with them the outcome."""
    counts = np.bincount(drawn, minlength=len(probabilities))
    possible = probabilities > 0
    assert counts[~possible].sum() == 0
    expected = probabilities[possible] * len(drawn)
    assert expected.min() > 5
    statistic = ((counts[possible] - expected) ** 2 / expected).sum()
    freedom = int(possible.sum()) - 1
    z = NormalDist().inv_cdf(0.999)  # Wilson and Hilferty's approximation of the quantile
    assert statistic < freedom * (1 - 2 / (9 * freedom) + z * (2 / (9 * freedom)) ** 0.5) ** 3


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.8},
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
    ],
    ids=str,
)
def test_draws_of_many_seeds_follow_the_exact_distribution(
    mlx: OnMlx, settings: dict[str, Any]
) -> None:
    drawn = draws(mlx, [(seed, 0) for seed in range(DRAWS)], **settings)
    check_distribution(drawn, exact(**settings))


def test_draws_along_one_answer_follow_the_exact_distribution(mlx: OnMlx) -> None:
    check_distribution(draws(mlx, [(7, index) for index in range(DRAWS)]), exact())


def test_draws_of_random_places_are_independent_of_their_neighbours(mlx: OnMlx) -> None:
    """Over (this draw, the next one), all pairs are as likely as the product says."""
    drawn = draws(mlx, [(7, index) for index in range(2 * DRAWS)], top_k=3)
    size, single = len(LOGITS), exact(top_k=3)
    pairs = [size * one + other for one, other in zip(drawn[::2], drawn[1::2], strict=True)]
    check_distribution(pairs, np.outer(single, single).ravel())


def test_temperature_zero_takes_the_best(mlx: OnMlx) -> None:
    assert draws(mlx, [(seed, seed) for seed in range(20)], temperature=0) == [BEST] * 20


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": 1e-9},
        {"temperature": 1e-40},
        {"temperature": 5e-324},
        {"temperature": 5e-324, "top_p": 0.5, "top_k": 3},
        {"top_p": 0.0},
        {"top_p": 1e-12},
        {"top_k": 1},
        {"top_k": 1, "top_p": 0.0, "temperature": 1e-9},
    ],
    ids=str,
)
def test_settings_that_leave_one_token_give_the_best(mlx: OnMlx, settings: dict[str, Any]) -> None:
    places = [(seed, 0) for seed in range(50)]
    assert draws(mlx, places, **settings) == [BEST] * 50
    extreme = [-1e30, 1e30, 0.0, -2e30]
    assert draws(mlx, places, extreme, **settings) == [BEST] * 50


@pytest.mark.parametrize("top_k", [0, len(LOGITS), len(LOGITS) + 1, 10**9, 2**63 - 1])
def test_a_top_k_that_limits_nothing_changes_no_draw(mlx: OnMlx, top_k: int) -> None:
    places = [(seed, 0) for seed in range(200)]
    assert draws(mlx, places, top_k=top_k) == draws(mlx, places)


def test_the_draw_depends_on_seed_and_index_alone(mlx: OnMlx) -> None:
    places = [(seed, index) for seed in range(10) for index in range(10)]
    forward, backward = draws(mlx, places), draws(mlx, places[::-1])
    assert forward == backward[::-1]


def test_rounding_of_logits_changes_no_draw(mlx: OnMlx) -> None:
    """As between a pass of one row and one of many; a draw may differ only where two tie."""
    random = np.random.default_rng(3)
    logits = random.normal(0, 2, 32768)
    rounded = logits + random.normal(0, 1e-5, logits.shape)
    places = [(seed, 0) for seed in range(400)]
    assert draws(mlx, places, logits.tolist()) == draws(mlx, places, rounded.tolist())


def test_neighbouring_seeds_share_no_draws(mlx: OnMlx) -> None:
    """No answer is another's, shifted: draws from 65,536 equal tokens hardly ever meet."""
    places = [(seed, index) for seed in range(20) for index in range(20)]
    drawn = draws(mlx, places, [0.0] * 65536)
    assert len(set(drawn)) > len(places) - 6  # 1.2 meetings are to be expected


def test_the_largest_seed_and_index_are_as_good_as_any(mlx: OnMlx) -> None:
    drawn = draws(mlx, [(2**63 - 1 - i, 2**31 + i) for i in range(DRAWS)])
    check_distribution(drawn, exact())
