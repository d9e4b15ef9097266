"""An engine process without a model, for protocol tests: it does what the prompt tells it to.

The last user turn, in ChatML, may be a JSON object, or have one as a line (the last counts);
anything else is answered with "ok". Where the environment names a SCRIPT_FILE, that has the object,
whatever the prompt. Its keys:

    say            the text to answer with; markers in it are tokens of their own
    ids            the token ids to answer with, instead of `say`
    answers        such ids, by how often the prompt has the `mark`
    mark           the token ids that each result of a tool begins with
    then           what comes after them: "stop" (the default), "wait" (to be cancelled or
                   suspended), "die", "hang" or "fail"
    die_at         how many generated tokens it dies after, those of earlier segments included
    die_once_file  a file that its first death leaves behind; while it is there, there is no other
    prefill_steps  how many prefill events to send
    prefill_tokens of a step of prefill, instead of `prefill_steps`
    step_ms        how long each step takes
    hold_file      a file without which it does not get further than `hold_at`
    hold_at        a number of generated tokens; 0 (the default) is the first step of prefill
    next           the script of the next round, which the results of this one's calls have begun
    later_s        by how much the clock of the prompt cache is moved on before

A run that was suspended goes on with the step it was at; in another engine process it prefills
again, and goes on with the answer's token at its `first_index`. Of a prompt with boundaries it says
what a prompt cache would that never forgets, unless it was given no memory for one.
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
    CacheUse,
    Failed,
    Finished,
    Load,
    Loading,
    Prefill,
    Ready,
    Reason,
    Run,
    Stats,
    Tokens,
    ids_of,
)
from models.engine.worker import Link
from tests.support.reference_cache import ReferenceCache

_FOR_EVER_SECONDS = 1e6


def main() -> None:
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    load = link.inbox.get()
    assert isinstance(load, Load)
    tokenizer = Tokenizer.from_file(str(Path(load.folder) / "tokenizer.json"))
    link.send(Loading(1, 1))
    facts = {"device": "script", "dtype": "none", "blas": None}
    link.send(Ready(0.0, {**facts, "speculates": False, "drafter": None}))
    suspended_at: dict[str, int] = {}  # job → prefill steps done
    cache = None if load.cache_bytes == 0 else _Cache()
    while isinstance(run := link.inbox.get(), Run):
        _Play(link, tokenizer, run, suspended_at, cache).play()


class _Cache:
    def __init__(self) -> None:
        self.now = 0.0
        self._promises = ReferenceCache()

    def use(self, run: Run) -> CacheUse:
        read, kept = self._promises.use(run.scope, run.prompt, run.boundaries, self.now)
        return CacheUse(run.job, read, kept)


class _Play:
    def __init__(
        self,
        link: Link,
        tokenizer: Tokenizer,
        run: Run,
        suspended_at: dict[str, int],
        cache: _Cache | None,
    ) -> None:
        self.link, self.run, self.suspended_at, self.cache = link, run, suspended_at, cache
        asked = run.prompt[: len(run.prompt) - run.first_index].tolist()
        file = os.environ.get("SCRIPT_FILE")
        self.script = _script(Path(file).read_text()) if file else _asked(tokenizer, asked)
        self.ids = self.script.get("ids")
        if answers := self.script.get("answers"):
            self.ids = answers.get(str(_count(asked, self.script["mark"])))
        if self.ids is None:
            self.ids = tokenizer.encode(self.script.get("say", "ok")).ids
        self.steps = self.script.get("prefill_steps", 1)
        if tokens := self.script.get("prefill_tokens"):
            self.steps = -(-len(run.prompt) // tokens)
        self.reused_steps = self.done_steps = suspended_at.pop(run.job, 0)
        self.generated = 0

    def play(self) -> None:
        if self.cache is not None:
            self.cache.now += self.script.get("later_s", 0)
        if self.run.boundaries:
            use = self.cache.use(self.run) if self.cache else CacheUse(self.run.job, 0, 0)
            self.link.send(use)
        for step in range(self.reused_steps, self.steps + 1):
            self.done_steps = step
            self._say_prefilled()
            if not self._step():
                return None
        for token in self.ids[self.run.first_index :]:
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
                return None
            case "hang":
                time.sleep(_FOR_EVER_SECONDS)
            case "fail":
                return self.link.send(Failed(self.run.job, "the engine failed: scripted"))
            case "die":
                self._die()
            case _:
                pass
        if self.generated == self.run.max_tokens:
            return self._finish("length")
        self._emit(max(self.run.stop_ids))
        return self._finish("stop")

    def _die(self) -> None:
        if file := self.script.get("die_once_file"):
            if Path(file).exists():
                return
            Path(file).touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def _emit(self, token: int) -> None:
        self.generated += 1
        self.link.send(Tokens(self.run.job, ids_of([token])))

    def _step(self) -> bool:
        """False when the run was interrupted, which is then said."""
        if self.script.get("die_at") == self.run.first_index + self.generated:
            self._die()
        time.sleep(self.script.get("step_ms", 0) / 1000)
        while (interruption := self.link.interruption()) is None and self._is_held():
            time.sleep(0.005)
            if not self.generated:
                self._say_prefilled()
        if interruption is None:
            return True
        if interruption == "suspended":
            self.suspended_at[self.run.job] = self.done_steps
        self._finish(interruption)
        return False

    def _is_held(self) -> bool:
        file, at = self.script.get("hold_file"), self.script.get("hold_at", 0)
        here = self.run.first_index + self.generated == at and (at > 0 or self.done_steps == 1)
        return file is not None and here and not Path(file).exists()

    def _say_prefilled(self) -> None:
        done = self._tokens_of(self.done_steps)
        self.link.send(Prefill(self.run.job, done, len(self.run.prompt)))

    def _tokens_of(self, prefill_steps: int) -> int:
        return len(self.run.prompt) * prefill_steps // self.steps

    def _finish(self, reason: Reason) -> None:
        reused = self._tokens_of(self.reused_steps)
        stats = Stats(
            prefilled_tokens=self._tokens_of(self.done_steps) - reused,
            generated_tokens=self.generated,
            reused_tokens=reused,
        )
        self.link.send(Finished(self.run.job, reason, stats))


def _count(ids: list[int], part: list[int]) -> int:
    return sum(ids[place : place + len(part)] == part for place in range(len(ids)))


def _asked(tokenizer: Tokenizer, ids: list[int]) -> dict[str, Any]:
    """The script of the last user turn, or that which an earlier one has for after so many."""
    prompt = tokenizer.decode(ids, skip_special_tokens=False)
    turns = [each.partition("<|im_end|>")[0] for each in prompt.split("<|im_start|>user\n")[1:]]
    scripts = [_script(each) for each in turns]
    place = max((place for place, each in enumerate(scripts) if each), default=0)
    script = scripts[place] if scripts else {}
    for _ in turns[place + 1 :]:
        script = script.get("next", {})
    return script


def _script(text: str) -> dict[str, Any]:
    for each in (text, *reversed(text.splitlines())):
        try:
            script = json.loads(each)
        except ValueError:
            continue
        if isinstance(script, dict) and script.get("type") != "function":  # a tool that was found
            return script
    return {}


if __name__ == "__main__":
    main()
