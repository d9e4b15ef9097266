"""A job's events on their way to its run record."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import anyio
from anyio import to_thread

from service.scheduling.rounds import NextRound
from storage.answer_pieces import Piece, as_details, characters
from storage.errors import StorageError
from storage.failpoints import failpoint
from storage.redaction import shapes
from storage.run_records import RunRecord
from storage.telemetry import Telemetry

logger = logging.getLogger("mererun.journal")

# Many events a second then cost one write, and the end of the process this much of a record.
_WRITE_EVERY_SECONDS = 0.05
_RETRY_SECONDS = 1.0  # after the disk refused a write, for instance for want of room


class Journal:
    """Writes events in order and off the path of the tokens: `write` never waits.

    Each event says in unix seconds when it came to pass.

    With `content` off, token ids and what they show are replaced by their counts.
    """

    def __init__(self, record: RunRecord, *, content: bool) -> None:
        self._record = record
        self._content = content
        self._waiting: list[dict[str, Any]] = []
        self._changed = anyio.Event()
        self._writing = anyio.Lock()

    def write(self, event: str, **details: Any) -> None:
        self._waiting.append({"event": event, "at": time.time(), **details})
        self._changed.set()

    def write_tokens(self, ids: list[int], shown: Sequence[Piece], thinking: int) -> None:
        """Ids, `thinking` of which were spent on that, and what they show."""
        details: dict[str, Any] = {"thinking": thinking} if thinking else {}
        if self._content:
            self.write("tokens", ids=ids, **details, **as_details(shown))
        else:
            self.write("tokens", count=len(ids), **details, chars=characters(shown))

    def write_results(self, shown: Sequence[Piece]) -> None:
        """What came of calls that the service ran itself."""
        details = as_details(shown) if self._content else {"count": len(shown)}
        self.write("results", **details)

    def write_round(self, begun: NextRound) -> None:
        details = begun.as_json() if self._content else {}
        self.write("round", tokens=begun.prompt_tokens, **details)

    async def run(self) -> None:
        """Keep writing until cancelled; what finds no room for now waits. Raises StorageError."""
        while True:
            await self._changed.wait()
            await anyio.sleep(_WRITE_EVERY_SECONDS)
            self._changed = anyio.Event()
            failpoint("flushing")
            try:
                await self.flush()
            except StorageError as error:
                if not error.may_pass:
                    raise
                logger.error("%s", error)
                await anyio.sleep(_RETRY_SECONDS)
                self._changed.set()
            failpoint("flushed")

    async def flush(self) -> None:
        """Write what waits. Raises StorageError."""
        if self._waiting:
            await self._write(self._record.append)

    async def close(self, response: Mapping[str, Any], telemetry: Telemetry | None) -> None:
        """Write what waits and close the record. Raises StorageError."""
        kept = dict(response)
        if not self._content:
            kept["message"] = shapes(kept["message"])
        measured = asdict(telemetry) if telemetry else None

        def close(batch: list[dict[str, Any]]) -> None:
            self._record.append(batch)
            batch.clear()
            self._record.close(response=kept, telemetry=measured)

        await self._write(close)

    async def _write(self, work: Callable[[list[dict[str, Any]]], None]) -> None:
        """Do `work` with the events that wait; those it leaves when it fails go on waiting."""
        async with self._writing:
            batch, self._waiting = self._waiting, []
            try:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(work, batch)
            except StorageError:
                self._waiting = batch + self._waiting
                raise
