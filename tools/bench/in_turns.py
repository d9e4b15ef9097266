"""The engine with and without speculation, round by round in turns, in a process of its own.

A machine that others use is faster now and slower a second later, by more than what is to be
measured. So both answers are written at the same time: whichever is behind makes the next round,
and each has a clock that stands still while it waits.
"""

# pyright: basic

import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from queue import Queue
from typing import Any

_SIDES = ("drafted", "serial")
_DONE = float("inf")  # tokens: never behind


class InTurns:
    """The parent's side."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def generate(self, prompt: list[int], max_tokens: int, temperature: float) -> dict[str, Any]:
        """For each side its `ids`, and `stats` as the engine tells them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = json.dumps([prompt, max_tokens, temperature])
        print(asked, file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the engines ended; what they said is above")
        return json.loads(line)


@contextmanager
def in_turns(folder: Path, stop_ids: Sequence[int], drafter: Path | None) -> Iterator[InTurns]:
    """Over the model in `folder`; `drafter` are weights that draft for it."""
    asked = json.dumps([str(folder), sorted(stop_ids), drafter and str(drafter)])
    command = [sys.executable, "-m", __name__, asked]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield InTurns(process)  # the end of its input ends it


class _Turns:
    """Of two threads, one works: the one whose answer has fewer tokens."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._tokens = [0.0, 0.0]
        self._turn = 0
        self._waited = [0.0, 0.0]  # seconds
        self._side = threading.local()

    def take_part(self, side: int) -> None:
        self._side.number = side

    def perf_counter(self) -> float:
        """As that of `time`, which stands still while the side that asks waits."""
        return time.perf_counter() - self._waited[self._side.number]

    def over(self, tokens: float) -> None:
        """The side has so many tokens by now, and whichever is behind is to go on."""
        side = self._side.number
        with self._changed:
            self._tokens[side] = tokens
            self._turn = side if tokens < self._tokens[1 - side] else 1 - side
            self._changed.notify_all()

    def wait(self) -> None:
        """Until it is this side's turn."""
        side, started = self._side.number, time.perf_counter()
        with self._changed:
            self._changed.wait_for(lambda: self._turn == side)
        self._waited[side] += time.perf_counter() - started

    def restart(self, first: int) -> None:
        """Both are about to begin an answer."""
        self._tokens, self._turn = [0.0, 0.0], first


class _Side(threading.Thread):
    """One engine, on a thread of its own."""

    def __init__(self, number: int, turns: _Turns, load: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._number, self._turns, self._load = number, turns, load
        self.asked: Queue[Any] = Queue(1)
        self.told: Queue[Any] = Queue(1)

    def run(self) -> None:
        """Ends the process if it fails: nobody would ever end the wait for what it tells."""
        try:
            self._work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _work(self) -> None:
        import mlx.core as mx

        self._turns.take_part(self._number)
        model = self._load()
        self.told.put(model)
        while True:
            run, ids = self.asked.get(), []

            def emit(event: Any, ids: list[int] = ids) -> None:
                ids.extend(getattr(event, "ids", ()))

            def interrupted(ids: list[int] = ids) -> None:
                mx.synchronize()  # a step that is ahead belongs to its own side
                self._turns.over(len(ids))
                self._turns.wait()

            self._turns.wait()
            finished = model.run(run, emit, interrupted)
            model.settle()
            mx.synchronize()
            self._turns.over(_DONE)
            self.told.put({"ids": ids, "stats": asdict(finished.stats)})


def main(folder: str, stop_ids: list[int], drafter: str | None) -> None:
    from models.engine import blas

    blas.preload()
    # Only now, since a BLAS must be loaded before MLX is.
    import models.engine.decoding
    import models.engine.generate
    import models.speculation.speculation
    from models.engine.protocol import Run, ids_of

    turns = _Turns()
    for module in (models.engine.decoding, models.engine.generate, models.speculation.speculation):
        module.time = turns

    def load(**speculation: Any) -> Any:
        path, silent = Path(folder), lambda done, total: None
        model = models.engine.generate.ResidentModel(path, silent, **speculation)
        model.warm_up()
        return model

    weights = drafter and Path(drafter)
    sides = [
        _Side(0, turns, lambda: load(drafter=weights)),
        _Side(1, turns, lambda: load(speculates=False)),
    ]
    loaded = list[Any]()
    for side in sides:
        side.start()
        loaded.append(side.told.get())
    # One copy of the weights: where they lie in memory makes a difference.
    loaded[1]._model.update(loaded[0]._model.parameters())
    for number, line in enumerate(sys.stdin):
        prompt, max_tokens, temperature = json.loads(line)
        run = Run(
            str(number), max_tokens, temperature, 1.0, 0, number, tuple(stop_ids), ids_of(prompt)
        )
        turns.restart(number % 2)
        for side in sides:
            side.asked.put(run)
        told = [side.told.get() for side in sides]
        print(json.dumps(dict(zip(_SIDES, told, strict=True))), flush=True)


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
