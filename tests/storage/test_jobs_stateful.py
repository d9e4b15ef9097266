"""Whatever is done to the queue, and in whatever order, it is as a simple model of it says."""

import asyncio
import itertools
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import delete

from storage.batches import Batches, NewBatch, NewRequest, Outcome
from storage.database import Database
from storage.job import Job, NewJob, Priority
from storage.job_state import MOVES, JobState
from storage.jobs import DuplicateKey, Jobs
from storage.tables import batches as batches_table
from storage.tables import discarded_records
from storage.tables import jobs as jobs_table

T = TypeVar("T")

OWNERS = ("one", "two")
OWNER, ENGINE = st.sampled_from(OWNERS), st.sampled_from(("first", "second"))
KEYS = (None, "alice", "bob")
OPEN = {JobState.QUEUED, JobState.RUNNING}
ENDS = [state for state in MOVES[JobState.RUNNING] if state is not JobState.QUEUED]
EXAMPLES, STEPS = 25, 40


@dataclass(frozen=True)
class Known:
    """What the model knows of a job; the fields are those of its row."""

    id: str
    seq: int
    api_key: str | None
    priority: Priority
    home: str | None
    turn: int
    batch_id: str | None = None
    idempotency_key: str | None = None
    state: JobState = JobState.QUEUED
    owner: str | None = None
    engine: str | None = None
    attempt: int = 0
    is_cancelled: bool = False
    is_over: bool = False  # its lease
    engine_deaths: int = 0
    lost_leases: int = 0

    @property
    def order(self) -> tuple[int, int, int]:
        return -self.priority, self.turn, self.seq

    @property
    def is_background(self) -> bool:
        return self.priority is Priority.BACKGROUND


class Queue(RuleBasedStateMachine):
    """The same steps for the store and for the model."""

    def __init__(self, runner: asyncio.Runner, db: Database) -> None:
        super().__init__()
        self.runner, self.db = runner, db
        self.jobs, self.batches = Jobs(db), Batches(db)
        self.known: dict[str, Known] = {}
        self.asked_batches: dict[str, bool] = {}  # whether it was cancelled
        self.held: list[Job] = []  # every claim there ever was, most of them stale
        self.numbers = itertools.count(1)
        for table in (jobs_table, batches_table, discarded_records):
            self.do(db.execute(delete(table), {}))

    def do(self, step: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(step)

    def change(self, job: Known, **changes: Any) -> None:
        self.known[job.id] = replace(job, **changes)

    def in_state(self, *states: JobState) -> list[Known]:
        return [job for job in self.known.values() if job.state in states]

    def next_turn(self, api_key: str | None, priority: Priority) -> int:
        waiting = [job for job in self.in_state(JobState.QUEUED) if job.priority is priority]
        own = [job.turn + 1 for job in waiting if job.api_key == api_key]
        anybodys = [job.turn for job in waiting if job.turn >= 0]  # others have begun
        return max(max(own, default=0), min(anybodys, default=0))

    def holding(self, job: Job) -> Known | None:
        """What is known of a job that this claim still holds."""
        known = self.known.get(job.id)
        token = known and (known.state, known.owner, known.attempt)
        return known if token == (JobState.RUNNING, job.owner, job.attempt) else None

    # Arrivals.

    @rule(
        api_key=st.sampled_from(KEYS),
        home=st.sampled_from((None, *OWNERS)),
        idempotency_key=st.sampled_from((None, None, "again")),
    )
    def insert(self, api_key: str | None, home: str | None, idempotency_key: str | None) -> None:
        number = next(self.numbers)
        priority = Priority.INTERACTIVE if home else Priority.BACKGROUND
        new = NewJob(
            id=f"run_{number}",
            message_id=f"msg_{number}",
            request_id="req",
            model="m",
            streaming=True,
            api_key=api_key,
            record=f"runs/2026/01/01/run_{number}",
            created_at=1.0,
            input_tokens=1,
            max_tokens=1,
            priority=priority,
            home=home,
            idempotency_key=idempotency_key,
        )
        taken = idempotency_key is not None and any(
            (job.api_key, job.idempotency_key) == (api_key, idempotency_key)
            for job in self.in_state(*OPEN, JobState.SUCCEEDED)
        )
        if taken:
            with pytest.raises(DuplicateKey):
                self.do(self.jobs.insert(new))
            return
        self.do(self.jobs.insert(new))
        self.known[new.id] = Known(
            id=new.id,
            seq=number,
            api_key=api_key,
            priority=priority,
            home=home,
            turn=self.next_turn(api_key, priority),
            idempotency_key=idempotency_key,
        )

    @rule(api_key=st.sampled_from(KEYS), total=st.integers(1, 3))
    def create_batch(self, api_key: str | None, total: int) -> None:
        number = next(self.numbers)
        new = NewBatch(
            id=f"batch_{number}",
            request_id="req",
            model="m",
            api_key=api_key,
            total=total,
            created_at=1.0,
            expires_at=2.0,
        )
        numbers = [next(self.numbers) for _ in range(total)]
        requests = [
            NewRequest(f"run_{each}", f"msg_{each}", str(each), 1, b"{}") for each in numbers
        ]
        self.do(self.batches.create(new, requests))
        turn = self.next_turn(api_key, Priority.BACKGROUND)
        self.asked_batches[new.id] = False
        for place, each in enumerate(numbers):
            self.known[f"run_{each}"] = Known(
                id=f"run_{each}",
                seq=each,
                api_key=api_key,
                priority=Priority.BACKGROUND,
                home=None,
                turn=turn + place,
                batch_id=new.id,
            )

    # What holders do.

    @rule(owner=OWNER, engine=ENGINE, is_over=st.sampled_from((False, False, True)))
    def claim_next(self, owner: str, engine: str, is_over: bool) -> None:
        self.claim(owner, engine, is_over=is_over)

    @rule(data=st.data(), owner=OWNER, engine=ENGINE)
    def claim_again(self, data: st.DataObject, owner: str, engine: str) -> None:
        """One job, or any of those with a reader."""
        if only := data.draw(st.sampled_from((None, *self.known))):
            self.claim(owner, engine, only=only)
        else:
            self.claim(owner, engine, least=Priority.INTERACTIVE)

    def claim(
        self,
        owner: str,
        engine: str,
        *,
        least: Priority = Priority.BACKGROUND,
        only: str | None = None,
        is_over: bool = False,
    ) -> None:
        seconds = -1.0 if is_over else 60.0
        claimed = self.do(
            self.jobs.claim(owner, engine, seconds, model="m", least=least, only=only)
        )
        candidates = [
            job
            for job in self.in_state(JobState.QUEUED)
            if not job.is_cancelled
            and job.priority >= least
            and job.home in (None, owner)
            and only in (None, job.id)
        ]
        if any(job.engine == engine for job in self.in_state(JobState.RUNNING)):
            candidates = []
        expected = min(candidates, key=lambda job: job.order, default=None)
        assert (claimed and claimed.id) == (expected and expected.id)
        if claimed is not None and expected is not None:
            self.held.append(claimed)
            self.change(
                expected,
                state=JobState.RUNNING,
                owner=owner,
                engine=engine,
                attempt=expected.attempt + 1,
                is_over=is_over,
            )

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.held[-5:]))
        known = self.holding(job)
        assert self.do(self.jobs.beat(job, 60.0)) == (known is not None)
        if known is not None:
            self.change(known, is_over=False)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), state=st.sampled_from(ENDS))
    def finish(self, data: st.DataObject, state: JobState) -> None:
        job = data.draw(st.sampled_from(self.held[-5:]))
        known = self.holding(job)
        assert self.do(self.jobs.finish(job, state)) == (known is not None)
        if known is not None:
            self.change(known, state=state)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), died=st.booleans())
    def requeue(self, data: st.DataObject, died: bool) -> None:
        job = data.draw(st.sampled_from(self.held[-5:]))
        known = self.holding(job)
        assert self.do(self.jobs.requeue(job, engine_died=died)) == (known is not None)
        if known is not None:
            self.put_back(known, engine_deaths=known.engine_deaths + died)

    def put_back(self, known: Known, **changes: Any) -> None:
        self.change(known, state=JobState.QUEUED, owner=None, engine=None, turn=-1, **changes)

    # What others do.

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def request_cancel(self, data: st.DataObject) -> None:
        known = self.known[data.draw(st.sampled_from(list(self.known)))]
        found = self.do(self.jobs.request_cancel(known.id, "because"))
        assert found is not None
        if known.state in OPEN:
            self.change(known, is_cancelled=True)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), interrupted=st.booleans())
    def end_queued(self, data: st.DataObject, interrupted: bool) -> None:
        known = self.known[data.draw(st.sampled_from(list(self.known)))]
        if interrupted:
            ended = self.do(self.jobs.interrupt_queued(known.id, "why"))
        else:
            ended = self.do(self.jobs.cancel_queued(known.id))
        assert ended == (known.state is JobState.QUEUED)
        if ended:
            self.change(known, state=JobState.INTERRUPTED if interrupted else JobState.CANCELLED)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        known = self.known[data.draw(st.sampled_from(list(self.known)))]
        may = known.state in (JobState.INTERRUPTED, JobState.CANCELLED) and known.batch_id is None
        assert self.do(self.jobs.resume(known.id)) == may
        if may:
            self.put_back(
                known,
                priority=Priority.BACKGROUND,
                home=None,
                idempotency_key=None,
                is_cancelled=False,
                engine_deaths=0,
                lost_leases=0,
            )

    @rule(dead=st.sets(st.sampled_from(OWNERS)))
    def owners_die(self, dead: set[str]) -> None:
        orphans = self.do(self.jobs.orphans(lambda owner: owner not in dead))
        running = self.in_state(JobState.RUNNING)
        lost = [job for job in running if job.is_over or job.owner in dead]
        assert [job.id for job in orphans] == [
            job.id for job in sorted(lost, key=lambda it: it.seq)
        ]
        for job in orphans:
            known = self.known[job.id]
            if known.is_background:
                assert self.do(self.jobs.requeue(job, owner_died=True))
                self.put_back(known, lost_leases=known.lost_leases + 1)
            else:
                assert self.do(self.jobs.finish(job, JobState.INTERRUPTED))
                self.change(known, state=JobState.INTERRUPTED)

    @precondition(lambda self: self.asked_batches)
    @rule(data=st.data())
    def cancel_batch(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(list(self.asked_batches)))
        self.do(self.batches.cancel(self.batch(id), "all of it"))
        if self.has_ended(id) or self.asked_batches[id]:
            return
        self.asked_batches[id] = True
        for job in self.items(id):
            if job.state is JobState.QUEUED and job.attempt == 0 and not job.is_cancelled:
                self.change(job, state=JobState.CANCELLED, is_cancelled=True)
            elif job.state in OPEN:
                self.change(job, is_cancelled=True)

    @precondition(lambda self: self.asked_batches)
    @rule(data=st.data())
    def delete_batch(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(list(self.asked_batches)))
        may = self.has_ended(id)
        assert self.do(self.batches.delete(self.batch(id))) == may
        if may:
            del self.asked_batches[id]
            for job in self.items(id):
                del self.known[job.id]

    def batch(self, id: str) -> Any:
        key = next(job.api_key for job in self.known.values() if job.batch_id == id)
        found = self.do(self.batches.get(id, key))
        assert found is not None
        return found

    def items(self, batch_id: str) -> list[Known]:
        return [job for job in self.known.values() if job.batch_id == batch_id]

    def has_ended(self, batch_id: str) -> bool:
        return all(job.state not in OPEN for job in self.items(batch_id))

    # What is true whenever one looks.

    @invariant()
    def rows_are_as_known(self) -> None:
        rows = {job.id: job for job in self.do(self.jobs.list(limit=10_000))}
        assert rows.keys() == self.known.keys()
        for known in self.known.values():
            row = rows[known.id]
            assert (row.cancel_requested_at is not None) == known.is_cancelled, known
            assert (row.finished_at is None) == (known.state in OPEN), known
            same = ["state", "priority", "home", "batch_id", "idempotency_key", "attempt"]
            same += ["engine_deaths", "lost_leases"]
            if known.state in OPEN:
                same += ["owner", "engine"]
            for name in same:
                assert getattr(row, name) == getattr(known, name), (name, known)

    @invariant()
    def an_engine_runs_one_job(self) -> None:
        engines = [job.engine for job in self.in_state(JobState.RUNNING)]
        assert len(engines) == len(set(engines))

    def teardown(self) -> None:
        """Too much to look at after each step."""
        waiting = sorted(self.in_state(JobState.QUEUED), key=lambda job: job.order)
        assert [job.id for job in self.do(self.jobs.queued())] == [job.id for job in waiting]
        for place, job in enumerate(waiting, 1):
            assert self.do(self.jobs.position(job.id)) == place
        counts = self.do(self.jobs.counts())
        assert counts == {state: len(self.in_state(state)) for state in JobState}
        self.batches_have_ended_with_their_last_request()
        for known in self.known.values():
            self.has_legal_history(known)

    def batches_have_ended_with_their_last_request(self) -> None:
        counts = self.do(self.batches.counts([*self.asked_batches]))
        for id, is_cancelled in self.asked_batches.items():
            batch = self.batch(id)
            assert (batch.ended_at is not None) == self.has_ended(id)
            assert (batch.cancel_requested_at is not None) == is_cancelled
            outcomes = [Outcome.of(job.state, None) for job in self.items(id)]
            assert counts[id] == {each: outcomes.count(each) for each in Outcome}

    def has_legal_history(self, known: Known) -> None:
        history = self.do(self.jobs.history(known.id))
        assert history[0].from_state is None
        for before, after in itertools.pairwise(history):
            assert after.from_state is before.to_state
            assert after.to_state in MOVES[before.to_state]
        assert history[-1].to_state is known.state
        assert [each.to_state for each in history].count(JobState.RUNNING) == known.attempt


def test_the_queue_is_as_its_model_says(place: Path | str) -> None:
    with asyncio.Runner() as runner:
        opening = Database.open(place)
        db = runner.run(opening.__aenter__())
        try:
            run_state_machine_as_test(
                lambda: Queue(runner, db),
                settings=settings(
                    max_examples=EXAMPLES,
                    stateful_step_count=STEPS,
                    deadline=None,
                    suppress_health_check=list(HealthCheck),
                    database=None,
                ),
            )
        finally:
            runner.run(opening.__aexit__(None, None, None))
