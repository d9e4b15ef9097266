"""Codes as any reader of the file understands them: weight = scale x code + bias."""

import numpy as np
import pytest

from tests.models.engine.on_mlx import OnMlx
from tests.models.quantization.coding import coded

GROUP = 64
random = np.random.default_rng(0)
GAUSSIAN = random.normal(0, 0.02, (48, 256))
OUTLIERS = np.where(random.random((48, 256)) < 0.004, 20 * GAUSSIAN, GAUSSIAN)
ONE_SIDED = np.where(random.random((48, 256)) < 0.02, GAUSSIAN + 1, GAUSSIAN)
WEIGHTS = {
    "gaussian": GAUSSIAN,
    "outliers": OUTLIERS,
    "one-sided": ONE_SIDED,
    "huge": GAUSSIAN * 1e30,
    "vanishing": GAUSSIAN * 1e-36,
    "zero": np.zeros((2, 128)),
    "one value": np.full((2, 128), -0.3),
}


def understood(codes: np.ndarray, scales: np.ndarray, biases: np.ndarray) -> np.ndarray:
    groups = codes.reshape(*scales.shape, GROUP).astype(np.float64)
    return (scales[..., None] * groups + biases[..., None]).reshape(codes.shape)


@pytest.mark.parametrize("kind", WEIGHTS)
def test_zero_is_a_code_and_every_weight_is_as_near_as_its_stored_scale_allows(
    mlx: OnMlx, kind: str
) -> None:
    weights = WEIGHTS[kind].astype(np.float32)
    weights[:, ::5] = 0
    codes, scales, biases = mlx(coded, weights, "q8-symmetric")
    assert np.array_equal(biases, -128 * scales)
    assert (scales > 0).all()
    found = understood(codes, scales, biases)
    assert (found[weights == 0] == 0).all()
    steps = np.repeat(scales, GROUP, axis=1)
    clipped = (codes == 255) | (codes == 0)
    assert (np.abs(found - weights) <= steps * 0.5000001)[~clipped].all()
    assert (np.abs(found - weights) <= steps * 1.5)[clipped].all()


def test_the_scale_is_the_best_of_its_neighbours(mlx: OnMlx) -> None:
    weights = GAUSSIAN.astype(np.float32)
    codes, scales, biases = mlx(coded, weights, "q8-symmetric")
    groups = weights.reshape(*scales.shape, GROUP)
    errors = ((understood(codes, scales, biases) - weights) ** 2).reshape(groups.shape).sum(-1)
    for factor in (1 - 2**-8, 1 + 2**-7):  # at least one value of bfloat16 to either side
        other = scales[..., None] * factor
        fitted = np.clip(np.rint(groups / other), -128, 127) * other
        beaten = ((fitted - groups) ** 2).sum(-1)
        assert np.mean(errors <= beaten) > 0.5
        assert errors.sum() <= beaten.sum()


def test_a_scale_is_found_that_meets_the_grid_of_fewer_bits(mlx: OnMlx) -> None:
    steps = random.uniform(0.001, 0.004, (48, 4, 1)).astype(np.float16).astype(np.float32)
    levels = random.integers(-15, 16, (48, 4, GROUP))
    levels[..., 0] = 15  # the largest code: of eight codes a level, it has the 120th
    weights = (steps * levels).astype(np.float32).reshape(48, 256)
    codes, scales, biases = mlx(coded, weights, "q8-symmetric")
    apart = (understood(codes, scales, biases) - weights).reshape(*scales.shape, GROUP)
    assert np.sqrt(np.mean((apart / scales[..., None]) ** 2)) < 0.15  # any rounding: 0.29


def test_groups_are_not_moved_as_affine_ones_are(mlx: OnMlx) -> None:
    def moved(form: str, weights: np.ndarray) -> float:
        """By how many steps a group's mean is off, on average."""
        given = weights.astype(np.float32)
        codes, scales, biases = mlx(coded, given, form)
        apart = (understood(codes, scales, biases) - given).reshape(*scales.shape, GROUP)
        return float(np.mean(np.abs(apart.mean(-1)) / np.abs(scales)))

    for weights in (GAUSSIAN, OUTLIERS, ONE_SIDED):
        assert moved("q8-symmetric", weights) < 0.05 < 0.1 < moved("q8-affine", weights)


def test_large_matrices_and_stacks_of_them_are_coded_as_their_rows_are(mlx: OnMlx) -> None:
    stack = GAUSSIAN.astype(np.float32).reshape(4, 12, 256)
    whole = mlx(coded, stack, "q8-symmetric")
    for part, rows in zip(whole, mlx(coded, stack.reshape(48, 256), "q8-symmetric"), strict=True):
        assert part.shape[:2] == (4, 12)
        assert np.array_equal(part.reshape(rows.shape), rows)
