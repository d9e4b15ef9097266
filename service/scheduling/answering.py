"""One claimed job on the engine: its events to the journal and the readers, its end as a value."""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from anyio import to_thread

from models.engine.host import EngineHost, EngineUnavailable
from models.engine.link import EngineDied, EngineError
from models.engine.protocol import CacheUse, Failed, Finished, Loading, Prefill, Tokens
from service.errors import ApiError
from service.preparation import Preparation
from service.scheduling.live_job import Ending, LiveJob
from service.scheduling.recorded import as_event
from service.scheduling.relay import Answered
from service.scheduling.rounds import NextRound
from service.tool_search.results import results_of
from service.wire.responses import PromptUsage
from storage.answer_pieces import Piece
from storage.failpoints import failpoint
from storage.jobs import JobState

logger = logging.getLogger("mererun.answering")

# Endings that change nothing once the answer is complete.
_TOO_LATE = frozenset({JobState.CANCELLED, JobState.INTERRUPTED, JobState.QUEUED})
_YIELDED = ApiError.internal("the run makes room for another")


class Fault(Enum):
    """What of a failure is the engine's own."""

    ENGINE_DIED = auto()
    ENGINE_UNAVAILABLE = auto()


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job left the engine: with an answer, or with an ending that says why there is none."""

    answered: Answered | None
    ending: Ending | None
    fault: Fault | None = None

    @property
    def state(self) -> JobState:
        """The state to be written. Raises when the lease is lost: then none may be."""
        if self.ending is None:
            return JobState.SUCCEEDED
        assert self.ending.state is not None
        return self.ending.state


class Answering:
    """Takes one answer further, as far as the engine gets this time: through as many rounds as the
    message has.

    `make_room` is called between the steps of a prefill: it gives the job an ending when another
    is to run before it goes on.
    """

    def __init__(
        self,
        engine: EngineHost,
        live: LiveJob,
        preparation: Preparation,
        make_room: Callable[[], object],
    ) -> None:
        self._engine = engine
        self._live = live
        self._preparation = preparation
        self._make_room = make_room
        self._failure: Ending | None = None
        self._fault: Fault | None = None

    async def run(self) -> None:
        """Until the engine has said its last word; what came of it is the `outcome`."""
        try:
            await self._generate_or_fail()
        except Exception:
            # A fault of ours in one answer costs that answer, and no other.
            logger.exception("run %s failed", self._live.id)
            error = ApiError.internal("an internal fault; the service's log has it under this run")
            self._failure = Ending(JobState.FAILED, error)

    async def _generate_or_fail(self) -> None:
        live = self._live
        try:
            while not live.answer.is_complete:
                if not live.answer.is_over:
                    await self._generate()
                if not live.answer.is_over or live.ending is not None:
                    return
                await self._go_on()
        except EngineError as error:
            self._failure = Ending(JobState.FAILED, ApiError.internal(str(error)))
            if isinstance(error, EngineDied):
                self._fault = Fault.ENGINE_DIED
            elif isinstance(error, EngineUnavailable):
                self._fault = Fault.ENGINE_UNAVAILABLE
        except ApiError as error:  # the next round cannot be what the request asked for
            self._failure = Ending(JobState.FAILED, error)

    async def _generate(self) -> None:
        live, started = self._live, time.perf_counter()
        loaded_before = live.load_seconds
        async with aclosing(self._engine.generate(live.rest)) as events:
            async for event in events:
                if isinstance(event, Prefill | Tokens):
                    live.tell(live.rounds[-1].usage.prompt)  # whoever says nothing keeps nothing
                match event:
                    case Loading(done, total):
                        live.load_seconds = loaded_before + time.perf_counter() - started
                        live.journal.write("loading", done=done, total=total)
                        self._make_room()
                        if live.ending is not None:
                            return
                    case Prefill(_, done, total):
                        failpoint("prefill")
                        live.prefilled_tokens = done
                        live.journal.write("prefill", done=done, total=total)
                        self._make_room()
                        if live.ending is not None:
                            # Perhaps asked for when this engine had not heard of the run.
                            await leave(self._engine, live)
                    case Tokens(_, ids):
                        await self._take(ids.tolist())
                    case Finished():
                        if event.reason == "length":  # perhaps of no tokens at all
                            self._show([], live.answer.cut())
                        live.stats = live.stats.plus(event.stats)
                    case CacheUse(_, read, kept):
                        self._tell_use(read, kept)
                    case Failed():  # raised by the engine host
                        pass

    async def _go_on(self) -> None:
        """Run what the model called here, and begin the next round, if there is to be one."""
        live, answer = self._live, self._live.answer
        if answer.unanswered:
            done = sum(len(each.answer.results) for each in live.rounds)
            results = await to_thread.run_sync(
                results_of, answer.unanswered, answer.plan.findable, done
            )
            failpoint("searched")
            answer.answer_calls(results)
            live.journal.write_results(results)
            self._publish(results)
        if answer.goes_on:
            next_one = await to_thread.run_sync(self._preparation.next_round, live.rounds[-1])
            if isinstance(next_one, NextRound):
                live.journal.write_round(next_one)
                begun = partial(self._preparation.begun, next_one, live.rounds[-1], live.message_id)
                live.begin(await to_thread.run_sync(begun))
                failpoint("next round")
            else:
                answer.end_for(next_one)

    def _tell_use(self, read: int, kept: int) -> None:
        live = self._live
        if live.rounds[-1].told is None:
            usage = PromptUsage.of(live.input_tokens, live.run.boundaries, read, kept)
            live.journal.write("cache", **as_event(usage))
            live.tell(usage)

    async def _take(self, ids: list[int]) -> None:
        failpoint("tokens")
        live = self._live
        live.prefilled_tokens = live.input_tokens
        thought = live.answer.thinking_tokens
        taken, shown = live.answer.take(ids)
        self._show(taken, shown, live.answer.thinking_tokens - thought)
        if live.answer.ended_early:
            await self._engine.cancel(live.id)
        elif live.quantum is not None and live.generated >= live.quantum:
            live.quantum = None
            live.ending = live.ending or Ending(JobState.QUEUED, _YIELDED)
            await leave(self._engine, live)

    def _show(self, ids: list[int], shown: Sequence[Piece], thinking: int = 0) -> None:
        if ids or shown:
            self._live.journal.write_tokens(ids, shown, thinking)
        self._publish(shown)

    def _publish(self, shown: Sequence[Piece]) -> None:
        for piece in shown:
            self._live.relay.publish(piece)

    def outcome(self) -> Outcome:
        live, answer = self._live, self._live.answer
        ending = live.ending or self._failure
        if answer.is_complete and (live.ending is None or live.ending.state in _TOO_LATE):
            if answer.fault is not None:
                return Outcome(None, Ending(JobState.FAILED, answer.fault))
            assert answer.stop_reason is not None
            answered = Answered(
                answer.stop_reason,
                answer.stop_sequence,
                live.usage,
            )
            return Outcome(answered, None)
        if ending is None:
            error = ApiError.internal("the engine ended the run without being asked to")
            ending = Ending(JobState.FAILED, error)
        return Outcome(None, ending, self._fault if live.ending is None else None)


async def leave(engine: EngineHost, live: LiveJob) -> None:
    """Have the engine let go of a run: for good, or so that it can go on where it was."""
    if live.ending is not None and live.ending.state is JobState.QUEUED:
        await engine.suspend(live.id)
    else:
        await engine.cancel(live.id)
