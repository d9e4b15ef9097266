"""The part of a job that lives in this process only."""

from dataclasses import dataclass, field

import anyio

from models.engine.protocol import Run
from models.parsing.answer import AnswerParser
from service.errors import ApiError
from service.scheduling.journal import Journal
from service.scheduling.relay import Relay
from storage.jobs import JobState


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a job must stop before its answer is complete. Without a state, its lease is lost and
    nothing may be written any more."""

    state: JobState | None
    error: ApiError


@dataclass(slots=True)
class LiveJob:
    """What the scheduler needs to run an admitted job and to tell its readers."""

    run: Run
    message_id: str
    model: str
    parser: AnswerParser
    journal: Journal
    relay: Relay = field(default_factory=Relay)
    ending: Ending | None = None
    # Held by whoever ends the job while it is queued.
    closing: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def id(self) -> str:
        return self.run.job

    @property
    def input_tokens(self) -> int:
        return len(self.run.prompt)
