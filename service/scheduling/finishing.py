"""How a job left the engine, written down: its record first, its row second."""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anyio

from service.answers import Answers
from service.errors import ApiError
from service.scheduling.answering import Outcome
from service.scheduling.lease import LeaseLost
from service.scheduling.live_job import Ending, LiveJob
from service.scheduling.recorded import recorded
from service.wire.responses import Message
from storage.answer_pieces import content_of
from storage.errors import StorageError
from storage.failpoints import failpoint
from storage.jobs import Job, Jobs, JobState
from storage.json_text import to_json
from storage.telemetry import Telemetry

logger = logging.getLogger("mererun.finishing")

RETRY_SECONDS = 1.0  # after the database or the disk refused a write, for instance for want of room


class Finishing:
    """Nothing can be claimed while a row says that the engine is taken, so there is nothing better
    to do than to try until it is written."""

    def __init__(self, jobs: Jobs, answers: Answers) -> None:
        self._jobs = jobs
        self._answers = answers

    async def end(
        self, job: Job, live: LiveJob, outcome: Outcome, tell: Callable[[Outcome], None]
    ) -> Outcome:
        """Close the record, then end the row. Returns what the readers are to be told; when one
        of the two has to wait, `tell` is called before, since they need not."""
        telemetry = _telemetry(live)
        closed = outcome.state is JobState.INTERRUPTED  # such a record may be continued
        if closed:
            with suppress(StorageError):  # what it lacks can be generated again
                await live.journal.flush()
        failpoint("answered")
        while True:
            if not closed:
                try:
                    await live.journal.close(response_of(live, outcome), telemetry)
                    closed = True
                except StorageError as error:
                    logger.error("%s", error)
                    if not (error.may_pass and job.is_background):
                        outcome = _failed(outcome, error)
                    if error.may_pass:
                        tell(outcome)
                        await anyio.sleep(RETRY_SECONDS)
                        continue
            failpoint("closed")
            try:
                if await self._write_end(job, live, outcome, telemetry):
                    return outcome
                return _failed(outcome, LeaseLost(f"the lease of {job.id} was lost"))
            except StorageError as error:
                logger.error("%s", error)
            # The row will say what a closed record says, if need be after the next start.
            tell(outcome)
            await anyio.sleep(RETRY_SECONDS)

    async def put_back(self, job: Job, live: LiveJob | None, *, engine_died: bool = False) -> bool:
        """Queue a claimed job again, with all that it has so far; False when its lease is lost."""
        if live is not None:
            live.journal.write("suspended", tokens=live.generated)
            with suppress(StorageError):  # it waits in memory, too
                await live.journal.flush()
        while True:
            try:
                failpoint("putting back")
                is_back = await self._jobs.requeue(job, engine_died=engine_died)
                failpoint("put back")
                return is_back
            except StorageError as error:
                logger.error("%s", error)
                await anyio.sleep(RETRY_SECONDS)

    async def end_unrun(self, job: Job, ending: Ending) -> None:
        """End a claimed job of which nobody knows enough to run it, or to close its record."""
        assert ending.state is not None
        while True:
            try:
                await self._jobs.finish(
                    job,
                    ending.state,
                    error_type=ending.error.type,
                    error_message=ending.error.message,
                )
                return
            except StorageError as error:
                logger.error("%s", error)
                await anyio.sleep(RETRY_SECONDS)

    async def _write_end(
        self, job: Job, live: LiveJob, outcome: Outcome, telemetry: Telemetry | None
    ) -> bool:
        answered, ending = outcome.answered, outcome.ending
        answers = await self._answers.remember(live.rounds) if answered else []
        kept = answered is not None and job.batch_id is not None
        return await self._jobs.finish(
            job,
            outcome.state,
            stop_reason=answered.stop_reason if answered else None,
            error_type=ending.error.type if ending else None,
            error_message=ending.error.message if ending else None,
            output_tokens=live.generated,
            telemetry=telemetry,
            result=to_json(_message(live, outcome).as_json()) if kept else None,
            answers=answers,
        )


def response_of(live: LiveJob, outcome: Outcome) -> dict[str, Any]:
    """The content of the record's `response.json`."""
    error = outcome.ending.error if outcome.ending else None
    return recorded(outcome.state, _message(live, outcome), error)


def _failed(outcome: Outcome, error: Exception) -> Outcome:
    return replace(
        outcome,
        answered=None,
        ending=Ending(JobState.FAILED, ApiError.internal(str(error))),
    )


def _message(live: LiveJob, outcome: Outcome) -> Message:
    answered = outcome.answered
    return Message(
        id=live.message_id,
        model=live.model,
        content=content_of(live.pieces),
        stop_reason=answered.stop_reason if answered else None,
        stop_sequence=answered.stop_sequence if answered else None,
        usage=live.usage,
        cache_miss=live.cache_miss,
        edits=live.answer.plan.edits,
    )


def _telemetry(live: LiveJob) -> Telemetry:
    stats, usage = live.stats, live.spent
    return Telemetry(
        queue_seconds=live.queue_seconds,
        load_seconds=live.load_seconds,
        prefill_seconds=stats.prefill_seconds,
        decode_seconds=stats.decode_seconds,
        engine_seconds=stats.prefill_seconds + stats.decode_seconds,
        input_tokens=usage.prompt.total,
        output_tokens=usage.output_tokens,
        prefilled_tokens=stats.prefilled_tokens,
        peak_memory_bytes=stats.peak_memory_bytes or None,
        first_token_seconds=stats.first_token_seconds,
        longest_step_seconds=stats.longest_step_seconds or None,
        cache_read_tokens=usage.prompt.cache_read,
        cache_creation_tokens=usage.prompt.cache_creation,
        verified_rounds=stats.verified_rounds,
        drafted_tokens=stats.drafted_tokens,
        accepted_tokens=stats.accepted_tokens,
        draft_pauses=stats.draft_pauses,
    )
