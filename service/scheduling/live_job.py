"""The part of a job that lives in this process only."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import anyio

from models.engine.protocol import Run, Stats
from service.errors import ApiError
from service.scheduling.answer import Answer
from service.scheduling.journal import Journal
from service.scheduling.relay import Relay
from service.wire.responses import AppliedEdit, CacheMiss, PromptUsage
from storage.jobs import JobState


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a job must leave the engine before its answer is complete.

    `QUEUED` means that it goes on later. Without a state, its lease is lost and nothing may be
    written any more.
    """

    state: JobState | None
    error: ApiError

    @classmethod
    def cancelled(cls, reason: str | None) -> "Ending":
        return cls(JobState.CANCELLED, ApiError.cancelled(reason))


@dataclass(frozen=True, slots=True)
class Reading:
    """What a response needs of a job, of one that goes on or of one that has its answer."""

    run_id: str
    message_id: str
    model: str
    relay: Relay
    cache_miss: CacheMiss | None = None
    edits: Sequence[AppliedEdit] | None = None


@dataclass(slots=True)
class LiveJob:
    """What the scheduler needs to run a job, several times over, and to tell its readers."""

    run: Run
    message_id: str
    model: str
    answer: Answer
    journal: Journal
    is_background: bool
    # When it began to wait, in unix seconds.
    queued_at: float
    # Why the prompt cache has less of its prompt than of the earlier one that its client named.
    cache_miss: CacheMiss | None = None
    # What was said of its prompt, once that is known.
    told: PromptUsage | None = None
    relay: Relay = field(default_factory=Relay)
    readers: int = 0
    # Whether its row is in the queue.
    is_queued: bool = False
    ending: Ending | None = None
    # Held by whoever ends the job while it is queued.
    closing: anyio.Lock = field(default_factory=anyio.Lock)
    # Of all its times on the engine, and before them.
    stats: Stats = field(default_factory=Stats)
    queue_seconds: float = 0.0
    load_seconds: float = 0.0
    # How far the engine is with the prompt.
    prefilled_tokens: int = 0
    # On the clock of the event loop: when it had to leave, and until when it need not again.
    left_at: float = 0.0
    stays_until: float = 0.0
    # How many tokens it may decode before others, who left for it, go on.
    quantum: int | None = None

    def __post_init__(self) -> None:
        if not self.run.boundaries:
            self.tell(PromptUsage(self.input_tokens))

    def tell(self, usage: PromptUsage) -> None:
        """What comes first stands, however often the job comes to an engine."""
        if self.told is None:
            self.told = usage
            self.relay.publish(usage)

    @property
    def id(self) -> str:
        return self.run.job

    @property
    def prompt_usage(self) -> PromptUsage:
        """All of it is input as long as nothing else is known."""
        return self.told or PromptUsage(self.input_tokens)

    @property
    def input_tokens(self) -> int:
        return len(self.run.prompt)

    @property
    def tokens_to_prefill(self) -> int:
        return max(0, self.input_tokens - self.prefilled_tokens)

    @property
    def reading(self) -> Reading:
        return Reading(
            self.id,
            self.message_id,
            self.model,
            self.relay,
            self.cache_miss,
            self.answer.plan.edits,
        )

    @property
    def rest(self) -> Run:
        """What the engine has yet to do: the prompt holds what is generated already."""
        done = self.answer.ids
        return replace(
            self.run,
            prompt=self.run.prompt + done,
            first_index=len(done),
            max_tokens=self.run.max_tokens - len(done),
        )
