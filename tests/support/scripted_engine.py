"""An engine process without a model, for protocol tests: it does what the prompt tells it to.

The last user turn may be a JSON object; anything else is answered with "ok". Its keys:

    say            the text to answer with
    ids            the token ids to answer with, instead of `say`
    then           what comes after them: "stop" (the default), "wait" (to be cancelled), "die",
                   "hang" or "fail"
    prefill_steps  how many prefill events to send
    step_ms        how long each step takes
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from models.engine.protocol import (
    Failed,
    Finished,
    Load,
    Loading,
    Prefill,
    Ready,
    Run,
    Stats,
    Tokens,
    ids_of,
)
from models.engine.worker import Link

_FOR_EVER_SECONDS = 1e6


def main() -> None:
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    load = link.inbox.get()
    assert isinstance(load, Load)
    tokenizer = Tokenizer.from_file(str(Path(load.folder) / "tokenizer.json"))
    link.send(Loading(1, 1))
    link.send(Ready(0.0, {"device": "script", "dtype": "none", "blas": None}))
    while True:
        run = link.inbox.get()
        assert isinstance(run, Run)
        _Play(link, tokenizer, run).play()


class _Play:
    def __init__(self, link: Link, tokenizer: Tokenizer, run: Run) -> None:
        self.link, self.run = link, run
        self.script = _script(tokenizer.decode(run.prompt.tolist(), skip_special_tokens=False))
        self.ids = self.script.get("ids")
        if self.ids is None:
            self.ids = tokenizer.encode(self.script.get("say", "ok")).ids
        self.generated = 0

    def play(self) -> None:
        total, steps = len(self.run.prompt), self.script.get("prefill_steps", 1)
        for step in range(steps + 1):
            self.link.send(Prefill(self.run.job, total * step // steps, total))
            if not self._step():
                return None
        for token in self.ids:
            if self.generated == self.run.max_tokens:
                return self._finish("length")
            self._emit(token)
            if token in self.run.stop_ids:
                return self._finish("stop")
            if not self._step():
                return None
        return self._end()

    def _end(self) -> None:
        match self.script.get("then", "stop"):
            case "wait":
                while self._step():
                    time.sleep(0.005)
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(_FOR_EVER_SECONDS)
            case "fail":
                self.link.send(Failed(self.run.job, "the engine failed: scripted"))
            case _ if self.generated == self.run.max_tokens:
                self._finish("length")
            case _:
                self._emit(max(self.run.stop_ids))
                self._finish("stop")

    def _emit(self, token: int) -> None:
        self.generated += 1
        self.link.send(Tokens(self.run.job, ids_of([token])))

    def _step(self) -> bool:
        """False when the run was cancelled, which is then said."""
        time.sleep(self.script.get("step_ms", 0) / 1000)
        if self.link.is_cancelled(self.run.job):
            self._finish("cancelled")
            return False
        return True

    def _finish(self, reason: Any) -> None:
        stats = Stats(prefilled_tokens=len(self.run.prompt), generated_tokens=self.generated)
        self.link.send(Finished(self.run.job, reason, stats))


def _script(prompt: str) -> dict[str, Any]:
    last = prompt.rpartition("<|im_start|>user\n")[2].partition("<|im_end|>")[0]
    try:
        script = json.loads(last)
    except ValueError:
        return {}
    return script if isinstance(script, dict) else {}


if __name__ == "__main__":
    main()
