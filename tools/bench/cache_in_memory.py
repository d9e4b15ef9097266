"""What the prompt cache costs inside the engine: to look a prompt up, and in memory."""

import random
import shutil
import tempfile
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from models.catalog import Checkpoint
from models.engine import blas
from models.engine.protocol import Run, ids_of
from tools.bench.figure import Bar, Figure, centre, p99
from tools.bench.services import Places

_ENTRIES, _ENTRY_TOKENS = 64, 16_384
_LIMIT_BYTES = 64 << 20
_PROMPT_TOKENS = 300


def lookup(places: Places, quick: bool) -> Iterator[Figure]:
    """In the tree and on disk, which a run with a disk does one after the other."""
    entries = 8 if quick else _ENTRIES
    with _with_mlx() as engine:
        seconds = engine.submit(_lookups, places.disk, entries).result()
    milliseconds = [1000 * each for each in seconds]
    yield Figure(
        f"a look-up among {entries} prompts of {_ENTRY_TOKENS} tokens, p99",
        p99(milliseconds),
        "ms",
        f"memory and disk; half of them begin alike; known, parting and new ones in turns: "
        f"{centre(milliseconds)}",
        Bar("<=", 1),
    )


def memory(checkpoint: Checkpoint, places: Places, quick: bool) -> Iterator[Figure]:
    """With many prompts, beside the model."""
    with _with_mlx() as engine:
        held = engine.submit(_active_bytes, checkpoint.path, 4 if quick else 16).result()
    yield Figure(
        f"{checkpoint.id}: memory of kept states / its limit",
        max(held) / _LIMIT_BYTES,
        "",
        f"MLX's active memory over that of the model, after each of {len(held)} prompts of "
        f"{_PROMPT_TOKENS} tokens; limit {_LIMIT_BYTES >> 20} MiB; MB: "
        f"{centre([each / 1e6 for each in held])}",
        Bar("<=", 1),
    )


def _with_mlx() -> ProcessPoolExecutor:
    """A process that loads MLX as the engine does."""
    return ProcessPoolExecutor(1, get_context("spawn"), initializer=blas.preload)


def _lookups(parent: Path, entries: int) -> list[float]:
    from models.prefix_cache.disk import DiskTier, End, Piece
    from models.prefix_cache.tree import PrefixTree

    folder = Path(tempfile.mkdtemp(dir=parent))
    choose = random.Random(0)
    shared = choose.choices(range(50_000), k=_ENTRY_TOKENS // 2)
    prompts: list[array[int]] = []
    for place in range(entries):
        begin = shared if place % 2 else choose.choices(range(50_000), k=len(shared))
        prompts.append(ids_of(begin + choose.choices(range(50_000), k=len(shared))))
    tree = PrefixTree(1 << 30, can_be_cut=True)
    disk = DiskTier(folder, 1 << 30, identity="bench", sliceable=True)
    for ids in prompts:
        _, known = tree.path("", ids)
        parent_node = tree.ending("", ids[:known])
        assert parent_node is not None
        tree.add(parent_node, ids[known:], {}, 0.0)
        disk.store("", ids, [End(len(ids), False)], lambda start, end: Piece(0, dict, {}))
    disk.close()
    parting = [ids[: len(ids) * 3 // 4] + ids_of([50_000] * 4096) for ids in prompts]
    new = [ids_of([50_001]) + ids for ids in prompts]
    seconds: list[float] = []
    for asked in (each for trio in zip(prompts, parting, new, strict=True) for each in trio):
        started = time.perf_counter()
        tree.path("", asked)
        disk.find("", asked, len(asked) - 1)
        seconds.append(time.perf_counter() - started)
    shutil.rmtree(folder)
    return seconds


def _active_bytes(model: Path, prompts: int) -> list[int]:
    import mlx.core as mx

    from models.engine.generate import ResidentModel

    resident = ResidentModel(model, lambda done, total: None, _LIMIT_BYTES)
    resident.warm_up()
    mx.clear_cache()
    before = mx.get_active_memory()
    held: list[int] = []
    for seed in range(prompts):
        ids = random.Random(seed).choices(range(1000, 2000), k=_PROMPT_TOKENS)
        run = Run(f"{seed}", 2, 0.0, 1.0, 0, 0, (), ids_of(ids))
        resident.run(run, lambda event: None, lambda: None)
        resident.settle()
        held.append(mx.get_active_memory() - before)
    return held
