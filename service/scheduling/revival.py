"""A claimed job that is not in memory: from its batch's request, or from its record."""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anyio import to_thread

from models.conversation import AnswerForm
from models.engine.protocol import Run, ids_of
from service.batches.params import check_params
from service.cache_diagnosis import CacheDiagnosis
from service.errors import ApiError
from service.preparation import Preparation
from service.requests.answer_plan import AnswerPlan
from service.scheduling.journal import Journal
from service.scheduling.lease import LeaseLost
from service.scheduling.live_job import Ending, LiveJob
from service.scheduling.recorded import close_unfinished, told_of
from service.scheduling.rounds import NextRound, Round
from service.wire.requests import MessagesRequest
from service.wire.responses import CacheMiss
from storage.answer_pieces import pieces_in
from storage.batches import Batches
from storage.errors import StorageError
from storage.failpoints import failpoint
from storage.jobs import Job, Jobs, JobState
from storage.json_text import from_json
from storage.redaction import redact, shapes
from storage.run_records import RunRecord

logger = logging.getLogger("mererun.revival")

_DAMAGED = "the run's record has not the shape of one"


class Revival:
    """Brings jobs without a connection to where they were when they left the engine."""

    def __init__(
        self,
        jobs: Jobs,
        batches: Batches,
        preparation: Preparation,
        diagnosis: CacheDiagnosis,
        data_dir: Path,
        *,
        content: bool,
    ) -> None:
        self._jobs = jobs
        self._batches = batches
        self._preparation = preparation
        self._diagnosis = diagnosis
        self._data_dir = data_dir
        self._content = content

    async def revive(self, job: Job) -> LiveJob:
        """The job, ready to run; with an `ending` where its request turned out to be wrong.

        Raises ApiError when nothing can be made of it, StorageError when that may change,
        LeaseLost.
        """
        record = RunRecord.at(self._data_dir / job.record)
        if job.batch_id is not None:
            params = await self._batches.params(job.id)
            # A record that was begun when the row was not told of it yet is begun anew.
            begun = job.input_tokens > 0 and await to_thread.run_sync(_can_go_on, record)
            if params is not None and not begun:
                return await self._anew(job, from_json(params), record)
        return await self._again(job, record)

    async def close_record(self, job: Job) -> int:
        """Of a cancelled job that waits and is not in memory. A job that was never claimed may
        have none yet, and one that ran elsewhere has it there. Returns its output tokens."""
        record = RunRecord.at(self._data_dir / job.record)
        if not await to_thread.run_sync(record.path.is_dir):
            return 0
        error = ApiError.cancelled(job.cancel_reason)
        try:
            response = await to_thread.run_sync(
                close_unfinished, job, record, JobState.CANCELLED, error
            )
        except (LookupError, TypeError, ValueError, AttributeError):
            logger.error("%s: %s", job.id, _DAMAGED)
            return 0
        return response["message"]["usage"]["output_tokens"]

    async def _again(self, job: Job, record: RunRecord) -> LiveJob:
        """With the tokens it has already, so that none is generated twice."""
        scope = job.api_key or ""

        def recall() -> tuple[list[Round], CacheMiss | None]:
            try:
                prompt = record.prompt()
                run = self._preparation.recalled(job.id, prompt, scope)
                answer = self._preparation.answer(run, AnswerPlan.recalled(prompt), job.message_id)
                miss = CacheMiss.recalled(prompt.get("cache_miss"))
                record.reopen()
                rounds = self._replayed(Round(run, answer), record.events(), job.message_id)
            except (LookupError, TypeError, ValueError) as error:
                raise ApiError.internal(_DAMAGED) from error
            except StorageError as error:
                raise ApiError.internal(str(error)) from error
            return rounds, miss

        rounds, miss = await to_thread.run_sync(recall)
        live = self._live(job, rounds, record, miss)
        if live.generated:
            live.journal.write("resumed", tokens=live.generated)
        return live

    def _replayed(
        self, first: Round, events: Sequence[dict[str, Any]], message_id: str
    ) -> list[Round]:
        """All rounds, the last as far as the record has it."""
        rounds = [first]
        for event in events:
            last = rounds[-1]
            match event["event"]:
                case "cache":
                    last.told = last.told or told_of(event, len(last.run.prompt))
                case "tokens":
                    last.answer.take(event["ids"])
                case "results":
                    last.answer.answer_calls(pieces_in(event))
                case "round":
                    rounds.append(
                        self._preparation.begun(NextRound.recalled(event), last, message_id)
                    )
                case _:
                    pass
        return rounds

    async def _anew(self, job: Job, params: dict[str, Any], record: RunRecord) -> LiveJob:
        """From the request: the first time, or where the record kept no tokens to go on from."""
        try:
            check_params(params)
            scope = job.api_key or ""
            wire, prepared = await self._preparation.read(params, MessagesRequest, scope)
            prompt = await self._preparation.prompt(prepared, scope)
            run = self._preparation.run(job.id, wire, prompt, scope)
        except ApiError as error:
            plan = AnswerPlan(AnswerForm())
            run = Run(job.id, job.max_tokens, 0.0, 1.0, 0, 0, (), ids_of())
            answer = self._preparation.answer(run, plan, job.message_id)
            live = self._live(job, [Round(run, answer)], record)
            live.ending = Ending(JobState.FAILED, error)
            # Without ids, so that nobody takes it for a prompt to go on with.
            kept = self._preparation.recorded(run, plan, content=False)
            await self._begin_record(record, job, redact(params), kept)
            return live
        cache_miss = await self._diagnosis.of(wire, prompt, job.api_key)
        kept = self._preparation.recorded(
            run,
            prompt.plan,
            content=self._content,
            digests=prompt.digests,
            cache_miss=cache_miss,
        )
        await self._begin_record(record, job, redact(params, prompt.files), kept)
        failpoint("record begun")
        if not await self._jobs.prepared(
            job, input_tokens=len(run.prompt), max_tokens=run.max_tokens
        ):
            raise LeaseLost(f"the lease of {job.id} was lost")
        failpoint("prepared")
        answer = await to_thread.run_sync(
            self._preparation.answer, run, prompt.plan, job.message_id
        )
        return self._live(job, [Round(run, answer)], record, cache_miss)

    async def _begin_record(
        self, record: RunRecord, job: Job, request: dict[str, Any], prompt: dict[str, Any]
    ) -> None:
        """Whatever an earlier attempt left is of no use: it had no tokens, or kept none."""
        kept = request if self._content else shapes(request)

        def create() -> None:
            shutil.rmtree(record.path, ignore_errors=True)
            RunRecord.create(self._data_dir, job.id, job.created_at, request=kept, prompt=prompt)

        await to_thread.run_sync(create)

    def _live(
        self,
        job: Job,
        rounds: list[Round],
        record: RunRecord,
        cache_miss: CacheMiss | None = None,
    ) -> LiveJob:
        return LiveJob(
            rounds=rounds,
            message_id=job.message_id,
            model=job.model,
            journal=Journal(record, content=self._content),
            is_background=True,
            queued_at=job.created_at,
            cache_miss=cache_miss,
        )


def _can_go_on(record: RunRecord) -> bool:
    """Whether the record holds what `_again` needs."""
    if not record.path.is_dir():
        return False
    try:
        return record.prompt()["ids"] is not None
    except (StorageError, LookupError):
        return False
