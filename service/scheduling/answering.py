"""One claimed job on the engine: its events to the journal and the readers, its end as a value."""

import logging
import time
from contextlib import aclosing
from dataclasses import dataclass

from models.engine.host import EngineError, EngineHost
from models.engine.protocol import Failed, Finished, Loading, Prefill, Stats, Tokens
from service.errors import ApiError
from service.scheduling.live_job import Ending, LiveJob
from service.scheduling.relay import Answered, TextDelta
from service.wire.responses import StopReason
from storage.jobs import JobState

logger = logging.getLogger("mererun.answering")

# Endings that change nothing once the answer is complete.
_TOO_LATE = frozenset({JobState.CANCELLED, JobState.INTERRUPTED})
_STOP_REASONS: dict[str, StopReason] = {"stop": "end_turn", "length": "max_tokens"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended: with an answer, or with an ending that says why there is none."""

    answered: Answered | None
    ending: Ending | None
    text: str
    output_tokens: int
    load_seconds: float
    stats: Stats

    @property
    def state(self) -> JobState:
        """The state to be written. Raises when the lease is lost: then none may be."""
        if self.ending is None:
            return JobState.SUCCEEDED
        assert self.ending.state is not None
        return self.ending.state


class Answering:
    """Collects one answer while the engine generates it."""

    def __init__(self, engine: EngineHost, live: LiveJob) -> None:
        self._engine = engine
        self._live = live
        self._parts: list[str] = []
        self._output_tokens = 0
        self._stop_sequence: str | None = None
        self._load_seconds = 0.0
        self._finished: Finished | None = None
        self._failure: Ending | None = None

    async def run(self) -> None:
        """Until the engine has said its last word; what came of it is the `outcome`."""
        try:
            await self._generate()
        except EngineError as error:
            self._failure = Ending(JobState.FAILED, ApiError.internal(str(error)))
        except Exception:
            # A fault of ours in one answer costs that answer, and no other.
            logger.exception("run %s failed", self._live.id)
            error = ApiError.internal("an internal fault; the service's log has it under this run")
            self._failure = Ending(JobState.FAILED, error)

    async def _generate(self) -> None:
        started = time.perf_counter()
        async with aclosing(self._engine.generate(self._live.run)) as events:
            async for event in events:
                match event:
                    case Loading(done, total):
                        self._load_seconds = time.perf_counter() - started
                        self._live.journal.write("loading", done=done, total=total)
                        if self._live.ending is not None:
                            return
                    case Prefill(_, done, total):
                        self._live.journal.write("prefill", done=done, total=total)
                        if self._live.ending is not None:
                            # Asked for when this engine had not heard of the run.
                            await self._engine.cancel(self._live.id)
                    case Tokens(_, ids):
                        await self._take(ids.tolist())
                    case Finished():
                        self._finished = event
                    case Failed():  # raised by the engine host
                        pass
        if self._stop_sequence is None:
            last = self._live.parser.flush()
            self._stop_sequence = last.stop_sequence
            self._show([], last.text)

    async def _take(self, ids: list[int]) -> None:
        """Show the text of the ids; those after the one that completed a stop sequence were
        decoded in vain, and count for nothing."""
        if self._stop_sequence is not None:
            return
        taken: list[int] = []
        texts: list[str] = []
        for token in ids:
            taken.append(token)
            if token in self._live.run.stop_ids:
                break
            parsed = self._live.parser.feed(token)
            texts.append(parsed.text)
            self._stop_sequence = parsed.stop_sequence
            if self._stop_sequence is not None:
                await self._engine.cancel(self._live.id)
                break
        self._output_tokens += len(taken)
        self._show(taken, "".join(texts))

    def _show(self, ids: list[int], text: str) -> None:
        if ids or text:
            self._live.journal.write_tokens(ids, text)
        if text:
            self._parts.append(text)
            self._live.relay.publish(TextDelta(text))

    def outcome(self) -> Outcome:
        ending = self._live.ending or self._failure
        answered = None
        if self._finished is not None:
            reason = _STOP_REASONS.get(self._finished.reason)
            if self._stop_sequence is not None:
                reason = "stop_sequence"
            if reason and (ending is None or ending.state in _TOO_LATE):
                answered = Answered(reason, self._stop_sequence, self._output_tokens)
        if answered is None and ending is None:
            error = ApiError.internal("the engine ended the run without being asked to")
            ending = Ending(JobState.FAILED, error)
        return Outcome(
            answered,
            None if answered else ending,
            "".join(self._parts),
            self._output_tokens,
            self._load_seconds,
            self._finished.stats if self._finished else Stats(),
        )
