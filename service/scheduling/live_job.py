"""The part of a job that lives in this process only."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import anyio

from models.engine.protocol import Run, Stats
from service.errors import ApiError
from service.scheduling.answer import Answer
from service.scheduling.journal import Journal
from service.scheduling.relay import Relay
from service.scheduling.rounds import Round
from service.wire.responses import AppliedEdit, CacheMiss, PromptUsage, Usage
from storage.answer_pieces import Piece
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

    # The last one goes on.
    rounds: list[Round]
    message_id: str
    model: str
    journal: Journal
    is_background: bool
    # When it began to wait, in unix seconds.
    queued_at: float
    # Why the prompt cache has less of its prompt than of the earlier one that its client named.
    cache_miss: CacheMiss | None = None
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
    # How far the engine is with the prompt of this round.
    prefilled_tokens: int = 0
    # On the clock of the event loop: when it had to leave, and until when it need not again.
    left_at: float = 0.0
    stays_until: float = 0.0
    # How many tokens it may decode before others, who left for it, go on.
    quantum: int | None = None

    def __post_init__(self) -> None:
        if self.rounds[0].told is not None:
            self.relay.publish(self.rounds[0].usage.prompt_at_start)
        if not self.run.boundaries:
            self.tell(PromptUsage(self.input_tokens))

    def tell(self, usage: PromptUsage) -> None:
        """How this round's prompt is told. What comes first stands, however often the job comes to
        an engine; readers hear at once of the first round's, and at the end of all."""
        if self.rounds[-1].told is None:
            self.rounds[-1].told = usage
            if len(self.rounds) == 1:
                self.relay.publish(self.rounds[0].usage.prompt_at_start)

    def begin(self, next_one: Round) -> None:
        """The message goes on with another round."""
        self.prefilled_tokens = min(self.input_tokens, len(next_one.run.prompt))
        self.rounds.append(next_one)
        if not next_one.run.boundaries:
            self.tell(PromptUsage(self.input_tokens))

    @property
    def run(self) -> Run:
        return self.rounds[-1].run

    @property
    def answer(self) -> Answer:
        return self.rounds[-1].answer

    @property
    def pieces(self) -> list[Piece]:
        """All that is shown so far."""
        return [piece for each in self.rounds for piece in each.answer.pieces]

    @property
    def id(self) -> str:
        return self.run.job

    @property
    def usage(self) -> Usage:
        return Usage.of([each.usage for each in self.rounds])

    @property
    def spent(self) -> Usage:
        """Whatever it was for."""
        return Usage.of([replace(each.usage, kind="message") for each in self.rounds])

    @property
    def generated(self) -> int:
        """Tokens, in all rounds."""
        return sum(len(each.answer.ids) for each in self.rounds)

    @property
    def input_tokens(self) -> int:
        """Of the prompt of this round."""
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
