"""The events of one job, on their way to whoever reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from service.errors import ApiError
from service.wire.responses import PromptUsage, StopReason, Usage
from storage.answer_pieces import Piece


@dataclass(frozen=True, slots=True)
class Answered:
    """The answer is complete, its record closed and its row written."""

    stop_reason: StopReason
    stop_sequence: str | None
    usage: Usage


@dataclass(frozen=True, slots=True)
class Broken:
    """There will be no answer, or no more of it."""

    error: ApiError


Event = PromptUsage | Piece | Answered | Broken


class Relay:
    """An append-only list that readers follow at their own pace.

    A slow reader holds up neither the engine nor other readers, and costs no memory beyond the
    one list, which the job's `max_tokens` bounds. The first event is the `PromptUsage` of the first
    prompt, unless there is no answer at all; the last is `Answered` or `Broken`.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._more = anyio.Event()

    def publish(self, event: Event) -> None:
        self._events.append(event)
        self._more.set()
        self._more = anyio.Event()

    async def after(self, count: int) -> Sequence[Event]:
        """The events after the first `count`, as soon as there is at least one."""
        while len(self._events) <= count:
            await self._more.wait()
        return self._events[count:]
