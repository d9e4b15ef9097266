"""Which products kernels take over, when, and that answers stay what they were."""

import pytest

from tests.models.engine.on_mlx import OnMlx
from tests.models.kernels import on_mlx


def test_a_kernel_that_is_correct_and_faster_takes_every_product_of_its_shape(mlx: OnMlx) -> None:
    found = mlx(on_mlx.installed)
    assert found["have_kernels"] == [True, True, True]
    shapes = {(each["outputs"], each["inputs"]): each for each in found["facts"]["products"]}
    assert {shape: each["modules"] for shape, each in shapes.items()} == {
        (128, 256): 1,
        (128, 128): 2,
    }
    assert all(each["installed"] for each in shapes.values())
    assert all(set(each["stock"]) == {"1", "4", "8"} for each in shapes.values())


@pytest.mark.parametrize(
    ("wrong_by", "seconds", "why"), [(0.01, 0.5, "relative error"), (0.0, 2.0, "MLX's product")]
)
def test_a_kernel_that_is_wrong_or_slower_takes_none(
    mlx: OnMlx, wrong_by: float, seconds: float, why: str
) -> None:
    found = mlx(on_mlx.installed, wrong_by, seconds)
    assert found["have_kernels"] == [False, False, False]
    assert all(why in each["why"] for each in found["facts"]["products"])


def test_few_rows_go_to_the_kernel_and_more_to_mlx(mlx: OnMlx) -> None:
    assert mlx(on_mlx.rows_taken) == {1: 1, 16: 1, 17: 0}


def test_other_weights_are_not_multiplied_by_what_was_checked(mlx: OnMlx) -> None:
    assert mlx(on_mlx.after_an_update) == (0, 0.0)


def test_dense_weights_are_left_alone(mlx: OnMlx) -> None:
    assert mlx(on_mlx.dense) == ["Linear", "Linear"]


def test_without_a_gpu_nothing_is_paid(mlx: OnMlx) -> None:
    found = mlx(on_mlx.on_this_device)
    if found["facts"]["backend"] is not None:
        pytest.skip("there is a GPU")
    assert found == {
        "facts": {"backend": None, "products": [], "step": None},
        "kind": "QuantizedLinear",
    }


def test_joined_weights_are_the_same_parameters(mlx: OnMlx) -> None:
    assert mlx(on_mlx.same_parameters)


@pytest.mark.parametrize(
    ("prompt", "rows", "drop"),
    [(10, (1, 4, 1, 8, 1), 0), (60, (1, 4, 1, 8, 1, 1, 3), 0), (20, (4, 4, 1, 8, 1, 1, 3), 2)],
    ids=["within the window", "past the window", "over its edge, with drafts taken back"],
)
def test_steps_in_few_launches_are_as_near_to_float32_as_bfloat16_is(
    mlx: OnMlx, prompt: int, rows: tuple[int, ...], drop: int
) -> None:
    apart = mlx(on_mlx.glimmer_steps, prompt, rows, drop)
    assert apart["steps"] < 2 * apart["bfloat16"]


def test_layers_that_steps_do_not_run_tell_what_they_give_all_the_same(mlx: OnMlx) -> None:
    shape, apart = mlx(on_mlx.states_told, [0, 2, 3])
    assert shape == [1, 23, 3 * 256]
    assert apart < 0.05


def test_a_changed_weight_brings_the_plain_step_back(mlx: OnMlx) -> None:
    before, after = mlx(on_mlx.glimmer_after_an_update)
    assert before > 0
    assert after == 0


@pytest.mark.parametrize("bits", [4, 8])
def test_kernels_of_this_gpu_are_correct(mlx: OnMlx, bits: int) -> None:
    products = mlx(on_mlx.products_of_this_gpu, bits)
    if not products:
        pytest.skip("there is no GPU")
    assert all(each["relative_error"] <= 0.005 for each in products)
