"""Conversations that the service holds, so that a request brings no more than what is new."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from anyio import to_thread

from service.errors import ApiError
from service.ids import run_of
from storage.errors import StorageError
from storage.jobs import Job, Jobs, JobState
from storage.run_records import RunRecord

# By contract the thread has them from its first request.
_FROZEN = ("system", "tools")
# Under these a block holds others; whatever else it has may be the client's own JSON.
_HOLD_BLOCKS = {"content", "source", "tool", "definition", "tool_references"}
_UNREADABLE = (StorageError, LookupError, TypeError, AttributeError)
_PATH = re.compile(r"(?<![\w.])messages\.(\d+)")


@dataclass(frozen=True, slots=True)
class Whole:
    """A request with all messages of its conversation: `held` that the thread has, then its own."""

    request: dict[str, Any]
    held: int = 0

    @contextmanager
    def own_paths(self) -> Generator[None]:
        """Faults that are found meanwhile are told where the client sees them: in the messages it
        sent, or in the thread."""
        try:
            yield
        except ApiError as error:
            if not self.held:
                raise
            said = _PATH.sub(self._own_path, error.message)
            raise ApiError(error.status, error.type, said, error.code, error.headers) from None

    def _own_path(self, path: re.Match[str]) -> str:
        index = int(path[1])
        return f"thread.{path[0]}" if index < self.held else f"messages.{index - self.held}"


class Threads:
    """A chain of records: each has what its request brought, its answer, and where the record is
    that it continues from. So a thread takes no more room than its conversation does.

    A message is continued by one run at most: the rows say which, see `Jobs.insert`. One that came
    to nothing leaves the message as it was.
    """

    def __init__(self, jobs: Jobs, data_dir: Path, *, content: bool) -> None:
        self._jobs = jobs
        self._data_dir = data_dir
        self._content = content

    async def whole(self, received: dict[str, Any], scope: str) -> Whole:
        """The request as it would be had the client sent all. What is wrong with its shape is left
        as it is. `scope` is the id of the API key, empty for none.

        Raises ApiError 404 `thread_not_found`, 400 `thread_fingerprint_mismatch`, and 400
        `thread_unsupported_request` where no content is recorded.
        """
        if received.get("thread") is None:
            return Whole(received)
        if not self._content:
            raise ApiError.invalid(
                "thread: this service records no content, so it holds no conversations; send the"
                " whole history in `messages`, without `thread`",
                "thread_unsupported_request",
            )
        previous, new = continued_by(received), received.get("messages")
        if previous is None or not isinstance(new, list):
            return Whole(received)
        job = await self._answered(previous, scope)
        messages, frozen = await to_thread.run_sync(self._read, previous, job.record)
        _check_frozen(received, frozen)
        return Whole(
            {**received, **frozen, "messages": [*messages, *cast(list[Any], new)]}, len(messages)
        )

    async def kept(
        self, received: dict[str, Any], scope: str, idempotency_key: str | None
    ) -> dict[str, Any] | None:
        """What the record is to keep of a valid request, for others to continue from; None where
        it is of no thread. Requests that have the same `idempotency_key` are one.

        Raises ApiError 400 `thread_already_continued` or `thread_continue_in_flight`, and 404
        `thread_not_found` when that was removed meanwhile.
        """
        if received.get("thread") is None:
            return None
        previous = continued_by(received)
        before = None
        if previous is not None:
            before = (await self._answered(previous, scope)).record
            await self._check_free(previous, idempotency_key)
        return {
            "previous": before,
            **{name: received.get(name) for name in _FROZEN if previous is None},
            "messages": await to_thread.run_sync(_without_markers, received["messages"]),
        }

    async def _answered(self, message_id: str, scope: str) -> Job:
        """The run whose answer the message is."""
        run = run_of(message_id)
        job = await self._jobs.get(run) if run else None
        if job is None or (job.api_key or "") != scope:
            raise _not_found(message_id)
        if job.state in (JobState.QUEUED, JobState.RUNNING):
            raise _in_flight(message_id, "is not complete yet")
        if job.state is not JobState.SUCCEEDED:
            raise _not_found(message_id)
        return job

    async def _check_free(self, message_id: str, idempotency_key: str | None) -> None:
        other = await self._jobs.continuation(message_id)
        if other is None or (idempotency_key and other.idempotency_key == idempotency_key):
            return
        if other.state is not JobState.SUCCEEDED:
            raise _in_flight(message_id, "is being continued by another request")
        raise ApiError.invalid(
            f"thread.previous_message_id: {_shown(message_id)} has been continued, by"
            f" {other.message_id}; continue from the newest message, or send the whole history"
            ' with thread {"type": "create"}',
            "thread_already_continued",
        )

    def _read(self, message_id: str, record: str) -> tuple[list[Any], dict[str, Any]]:
        """The messages up to that one, but for those before a summary, and what is frozen.
        Blocks."""
        parts: list[list[Any]] = []
        before: str | None = record
        summed_up = False
        thread: dict[str, Any] | None = None
        try:
            while before is not None:
                run = RunRecord.at(self._data_dir / before)
                thread, response = run.thread(), run.response()
                if thread is None or response is None:
                    raise _not_found(message_id)
                content = response["message"]["content"]
                if not summed_up:
                    summed_up = _is_summary(content)
                    asked: list[Any] = [] if summed_up else thread["messages"]
                    parts.append([*asked, {"role": "assistant", "content": content}])
                before = thread["previous"]
            assert thread is not None
            frozen = {name: thread[name] for name in _FROZEN}
        except _UNREADABLE as error:
            raise _not_found(message_id) from error
        return [message for part in reversed(parts) for message in part], frozen


def continued_by(received: dict[str, Any]) -> str | None:
    """The id of the message that a request continues from, if it does."""
    match received.get("thread"):
        case {"type": "continue", "previous_message_id": str(message_id)}:
            return message_id
        case _:
            return None


def _is_summary(content: list[Any]) -> bool:
    """Whether an answer takes the place of all that was said before it."""
    return (
        bool(content) and content[0]["type"] == "compaction" and content[0]["content"] is not None
    )


def _check_frozen(received: dict[str, Any], frozen: dict[str, Any]) -> None:
    changed = [
        name
        for name in _FROZEN
        if received.get(name) is not None and received[name] != frozen[name]
    ]
    if changed:
        raise ApiError.invalid(
            f"{' and '.join(changed)}: a thread keeps what it was created with, and the request has"
            ' another; leave it out, or send the whole history with thread {"type": "create"}',
            "thread_fingerprint_mismatch",
        )


def _without_markers(messages: list[Any]) -> list[Any]:
    """A copy of messages without cache markers: each was set for the request that brought it, and
    a request may have a few only."""
    root: list[Any] = [messages]
    # A stack, not recursion: blocks of other servers' tools may nest deeper than Python does.
    pending: list[Any] = [root]
    while pending:
        node = pending.pop()
        if isinstance(node, dict):
            fields = cast(dict[str, Any], node)
            fields.pop("cache_control", None)
            children = [(key, each) for key, each in fields.items() if key in _HOLD_BLOCKS]
        else:
            children = list(enumerate(cast(list[Any], node)))
        for key, child in children:
            if isinstance(child, dict | list):
                node[key] = cast(Any, child).copy()
                pending.append(node[key])
    return root[0]


def _not_found(message_id: str) -> ApiError:
    return ApiError.not_found(
        f"thread.previous_message_id: {_shown(message_id)} is no message of a thread that is held"
        ' here; send the whole history with thread {"type": "create"}',
        "thread_not_found",
    )


def _in_flight(message_id: str, why: str) -> ApiError:
    return ApiError.invalid(
        f"thread.previous_message_id: {_shown(message_id)} {why}; wait for that, or send the whole"
        ' history with thread {"type": "create"}',
        "thread_continue_in_flight",
    )


def _shown(id: str) -> str:
    return id if len(id) <= 60 else id[:60] + "…"
