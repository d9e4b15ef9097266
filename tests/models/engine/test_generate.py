"""Prefill and decode of a real model, on the device at hand."""

from pathlib import Path

import pytest

from models.engine.protocol import Stats, Tokens
from tests.models.engine.events import ending, prefilled, prompt_of, tokens_of
from tests.models.engine.on_mlx import (
    OnMlx,
    dequantise,
    facts,
    generate,
    greedy,
    progress,
    quantise,
    redraw,
    run_of,
)

SAMPLED = {"temperature": 0.9, "top_p": 0.95, "top_k": 40}


def counts(stats: Stats) -> tuple[int, int]:
    return stats.prefilled_tokens, stats.generated_tokens


@pytest.mark.parametrize("chunks", [0, 1, 2])
@pytest.mark.parametrize("more", [1, 2, 3, 4, 50])
def test_greedy_tokens_are_those_of_a_plain_loop(
    mlx: OnMlx, tiny: Path, chunk: int, chunks: int, more: int
) -> None:
    """Short lengths, and those around one and two chunks."""
    length = max(1, chunks * chunk + more - 2) if chunks else more
    events = mlx(generate, tiny, run_of(prompt_of(length), 8))
    assert tokens_of(events) == mlx(greedy, tiny, prompt_of(length), 8)
    assert ending(events).reason == "length"
    assert counts(ending(events).stats) == (length, 8)


def test_prefill_is_told_chunk_by_chunk(mlx: OnMlx, tiny: Path, chunk: int) -> None:
    total = 2 * chunk + 10
    events = mlx(generate, tiny, run_of(prompt_of(total), 2))
    assert prefilled(events) == [(done, total) for done in (0, chunk, 2 * chunk, total - 1)]
    assert [len(event.ids) for event in events if isinstance(event, Tokens)] == [1, 1]


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_max_tokens_0_prefills_all_but_the_last_token_and_generates_nothing(
    mlx: OnMlx, tiny: Path, chunk: int, beyond: int
) -> None:
    total = chunk + beyond
    events = mlx(generate, tiny, run_of(prompt_of(total), 0))
    assert tokens_of(events) == []
    assert prefilled(events)[-1] == (total - 1, total)
    assert ending(events).reason == "length"
    assert counts(ending(events).stats) == (total - 1, 0)
    assert ending(events).stats.first_token_seconds is None


def test_a_stop_id_is_sent_and_ends_the_run(mlx: OnMlx, tiny: Path) -> None:
    whole = tokens_of(mlx(generate, tiny, run_of(prompt_of(20), 30)))
    last = whole[5]
    events = mlx(generate, tiny, run_of(prompt_of(20), 30, stop_ids=(299, last)))
    assert tokens_of(events) == whole[: whole.index(last) + 1]
    assert ending(events).reason == "stop"
    assert ending(events).stats.generated_tokens == whole.index(last) + 1


def test_a_stop_id_in_the_last_place_is_a_stop(mlx: OnMlx, tiny: Path) -> None:
    (first,) = tokens_of(mlx(generate, tiny, run_of(prompt_of(20), 1)))
    events = mlx(generate, tiny, run_of(prompt_of(20), 1, stop_ids=(first,)))
    assert ending(events).reason == "stop"
    assert counts(ending(events).stats) == (20, 1)


def test_a_run_is_cancelled_before_its_first_chunk(mlx: OnMlx, tiny: Path, chunk: int) -> None:
    events = mlx(generate, tiny, run_of(prompt_of(3 * chunk), 8), 0)
    assert ending(events).reason == "cancelled"
    assert counts(ending(events).stats) == (0, 0)


def test_a_run_is_cancelled_between_chunks(mlx: OnMlx, tiny: Path, chunk: int) -> None:
    events = mlx(generate, tiny, run_of(prompt_of(3 * chunk), 8), 2)
    assert prefilled(events) == [(0, 3 * chunk), (chunk, 3 * chunk)]
    assert ending(events).reason == "cancelled"
    assert counts(ending(events).stats) == (chunk, 0)


def test_a_run_is_cancelled_between_prefill_and_decode(mlx: OnMlx, tiny: Path) -> None:
    events = mlx(generate, tiny, run_of(prompt_of(10), 8), 2)
    assert ending(events).reason == "cancelled"
    assert counts(ending(events).stats) == (9, 0)


def test_a_run_is_cancelled_between_steps(mlx: OnMlx, tiny: Path) -> None:
    whole = tokens_of(mlx(generate, tiny, run_of(prompt_of(10), 8)))
    events = mlx(generate, tiny, run_of(prompt_of(10), 8), 2 + 3)
    assert tokens_of(events) == whole[:3]
    assert ending(events).reason == "cancelled"
    assert counts(ending(events).stats) == (10, 3)


def test_a_run_leaves_nothing_to_the_next(mlx: OnMlx, tiny: Path, chunk: int) -> None:
    alone = mlx(greedy, tiny, prompt_of(30), 8)
    mlx(generate, tiny, run_of(prompt_of(chunk + 5), 8), 1)
    mlx(generate, tiny, run_of(prompt_of(chunk + 5), 8))
    assert tokens_of(mlx(generate, tiny, run_of(prompt_of(30), 8))) == alone


def test_the_same_seed_gives_the_same_tokens(mlx: OnMlx, tiny: Path) -> None:
    first, again, other = (
        tokens_of(mlx(generate, tiny, run_of(prompt_of(10), 24, seed=seed, **SAMPLED)))
        for seed in (5, 5, 6)
    )
    assert first == again
    assert first != other


def test_a_run_taken_up_at_any_token_draws_the_same(mlx: OnMlx, tiny: Path, chunk: int) -> None:
    run = run_of(prompt_of(chunk + 3), 16, seed=5, **SAMPLED)
    generated = tokens_of(mlx(generate, tiny, run))
    assert mlx(redraw, tiny, run, generated) == generated


def test_what_was_measured_is_told(mlx: OnMlx, tiny: Path, chunk: int) -> None:
    stats = ending(mlx(generate, tiny, run_of(prompt_of(2 * chunk), 16))).stats
    total = stats.prefill_seconds + stats.decode_seconds
    assert stats.first_token_seconds is not None
    assert 0 < stats.prefill_seconds < stats.first_token_seconds < total
    assert 0 < stats.longest_step_seconds < total
    assert stats.peak_memory_bytes > mlx(facts, tiny)["size_bytes"]


def test_a_load_is_told_byte_by_byte_up_to_all(mlx: OnMlx, tiny: Path) -> None:
    told = mlx(progress, tiny)
    total = mlx(facts, tiny)["size_bytes"]
    assert told == sorted(told)
    assert told[0] == (0, total)
    assert told[-1] == (total, total)


@pytest.fixture(scope="session")
def quantised(mlx: OnMlx, tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mlx(quantise, tiny, tmp_path_factory.mktemp("quantised") / "tiny-8bit")


def test_a_quantised_checkpoint_is_dense_float32_on_a_cpu(
    mlx: OnMlx, tiny: Path, quantised: Path
) -> None:
    loaded = mlx(facts, quantised)
    if loaded["device"] != "cpu":
        pytest.skip("a GPU keeps weights as they are stored")
    assert loaded["stored_as"] == "8-bit, groups of 32"
    assert loaded["dtype"] == "float32"
    assert loaded["size_bytes"] == mlx(facts, tiny)["size_bytes"]
    assert mlx(facts, tiny)["stored_as"] is None


def test_a_quantised_checkpoint_answers_as_its_dequantised_model(
    mlx: OnMlx, quantised: Path, tmp_path: Path, chunk: int
) -> None:
    dense = mlx(dequantise, quantised, tmp_path / "dense")
    prompt = prompt_of(chunk + 7)
    answer = tokens_of(mlx(generate, quantised, run_of(prompt, 12)))
    assert answer == mlx(greedy, dense, prompt, 12)
