"""Layers of all kinds go back to where they were, together."""

import numpy as np

from tests.models.engine.on_mlx import OnMlx


def test_a_window_beside_a_recurrent_layer_goes_on_as_if_nothing_had_been_drafted(
    mlx: OnMlx,
) -> None:
    for before in range(1, 14):  # within a window of 8 tokens, at its edge and past it
        for drafts in (1, 3, 7):
            plain = mlx(after_one_more, before, 0)
            assert np.array_equal(mlx(after_one_more, before, drafts), plain), (before, drafts)


def after_one_more(before: int, drafts: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    """What a window has after so many tokens, a pass over wrong drafts that is taken back, and one
    token more."""
    import mlx.core as mx
    from mlx_lm.models.cache import ArraysCache, RotatingKVCache

    from models.speculation.rollback import Rollback

    window, recurrent = RotatingKVCache(8), ArraysCache(1)

    def read(first: int, count: int) -> mx.array:
        tokens = mx.arange(first, first + count, dtype=mx.float32).reshape(1, 1, count, 1)
        recurrent[0] = tokens[:, 0, -1:]
        seen, _ = window.update_and_fetch(tokens, tokens)
        return seen

    read(0, before)
    if drafts:
        rollback = Rollback([window, recurrent])
        read(1000, 1 + drafts)
        assert rollback.is_whole
        rollback.drop(drafts)
        assert window.offset == before
        assert recurrent[0].item() == before - 1
    return np.sort(np.array(read(before, 1)).reshape(-1))
