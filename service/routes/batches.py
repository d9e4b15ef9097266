"""`/v1/messages/batches`: create, list, retrieve, cancel, delete, results, and progress."""

import logging
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import IO, Any, cast

import anyio
from anyio import CapacityLimiter, to_thread
from quart import Quart, Response, g, jsonify, request

from service import json_body
from service.batches.body import receive
from service.batches.intake import Intake
from service.core import Core
from service.errors import ApiError
from service.ids import new_id
from service.memory import give_back_freed_memory
from service.routes.idempotency import idempotency_key
from service.routes.queries import events_after, limit
from service.streaming import SSE_HEADERS
from service.wire import batches as wire
from service.wire import events
from storage.batch_progress import BatchProgress
from storage.batches import Batch, DuplicateKey, NewBatch
from storage.errors import StorageError
from storage.retention import complete

logger = logging.getLogger("mererun.http")

PATH = "/v1/messages/batches"
_RETRY_AFTER_SECONDS = 10
_LIMIT, _MOST = 20, 1000
# Reading a body keeps the interpreter lock busy for seconds.
_READ_AT_ONCE = 1
_SMALL_BODY_BYTES = 1 << 20  # is read without the disk
_POLL_SECONDS = 0.25


class BatchRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._batches = core.batches
        self._reading = CapacityLimiter(_READ_AT_ONCE)

    def mount(self, app: Quart) -> None:
        one = f"{PATH}/<batch_id>"
        app.add_url_rule(PATH, view_func=self.create_batch, methods=["POST"])
        app.add_url_rule(PATH, view_func=self.list_batches)
        app.add_url_rule(one, view_func=self.show_batch)
        app.add_url_rule(one, view_func=self.delete_batch, methods=["DELETE"])
        app.add_url_rule(f"{one}/cancel", view_func=self.cancel_batch, methods=["POST"])
        app.add_url_rule(f"{one}/results", view_func=self.show_results)
        app.add_url_rule(f"{one}/events", view_func=self.follow_batch)

    async def create_batch(self) -> Response:
        """With an `idempotency-key`, the same body makes one batch however often it is sent."""
        key = idempotency_key(request.headers)
        json_body.check_content_type(request.headers.get("Content-Type"))
        self._check_open()
        with ExitStack() as files:
            body, params = (files.enter_context(self._file()) for _ in range(2))
            try:
                digest = await receive(request, body)
                batch = await self._with_key(key, digest)
                if batch is None:
                    batch = await self._create(body, params, key, digest)
            except OSError as error:
                raise StorageError(
                    f"the batch could not be written to the data folder: {error.strerror}; "
                    "free space or move --data-dir"
                ) from error
            finally:
                await to_thread.run_sync(give_back_freed_memory)
        return jsonify(await self._describe(batch))

    def _file(self) -> IO[bytes]:
        """Without a name, so that nothing is left of it whatever happens."""
        folder = str(self._core.settings.data_dir)
        return cast(IO[bytes], tempfile.SpooledTemporaryFile(_SMALL_BODY_BYTES, dir=folder))

    async def _with_key(self, key: str | None, digest: str) -> Batch | None:
        batch = await self._batches.with_key(g.api_key, key) if key else None
        if batch is not None and batch.request_sha256 != digest:
            raise ApiError.invalid("idempotency-key: another batch was sent with it; use a new key")
        return batch

    async def _create(
        self, body: IO[bytes], params: IO[bytes], key: str | None, digest: str
    ) -> Batch:
        settings = self._core.settings
        intake = Intake(
            params,
            most_requests=settings.batch_requests_limit,
            most_bytes=settings.body_limit_bytes,
        )
        total = await to_thread.run_sync(intake.read, body, limiter=self._reading)
        self._check_open()
        now = time.time()
        new = NewBatch(
            id=new_id("msgbatch"),
            request_id=g.request_id,
            model=self._core.checkpoint.id,
            api_key=g.api_key,
            total=total,
            created_at=now,
            expires_at=now + settings.batch_expiry_seconds,
            idempotency_key=key,
            request_sha256=digest,
        )
        try:
            created = await self._batches.create(new, intake.requests())
        except DuplicateKey:  # the same batch came in meanwhile
            batch = await self._with_key(key, digest)
            if batch is None:
                raise
            return batch
        self._core.scheduler.look_again()
        return created

    def _check_open(self) -> None:
        if not self._core.admission.open:
            raise ApiError.overloaded("the service is shutting down", _RETRY_AFTER_SECONDS)

    async def list_batches(self) -> Response:
        """Newest first; `?limit=` up to 1000, and `?after_id=` or `?before_id=` of another page."""
        before, after = request.args.get("before_id"), request.args.get("after_id")
        if before and after:
            raise ApiError.invalid("before_id: use either before_id or after_id")
        most = limit(_LIMIT, _MOST)
        for name, cursor in (("before_id", before), ("after_id", after)):
            # With an empty page a client that deletes while it lists would believe it were through.
            if cursor is not None and await self._batches.get(cursor, g.api_key) is None:
                raise ApiError.not_found(
                    f"{name}: the batch {cursor[:100]} is not known here (any more); list from the"
                    " start again"
                )
        page = await self._batches.page(g.api_key, limit=most, before=before, after=after)
        ids = [batch.id for batch in page.batches]
        return jsonify(
            {
                "data": await self._describe_all(*page.batches),
                "has_more": page.has_more,
                "first_id": ids[0] if ids else None,
                "last_id": ids[-1] if ids else None,
            }
        )

    async def show_batch(self, batch_id: str) -> Response:
        return jsonify(await self._describe(await self._get(batch_id)))

    async def cancel_batch(self, batch_id: str) -> Response:
        """Of no effect a second time, and on a batch that has ended."""
        batch = await self._get(batch_id)
        by = f" by {g.api_key}" if g.api_key else ""
        await self._batches.cancel(batch, f"the batch was cancelled{by} through the API")
        return jsonify(await self._describe(await self._get(batch_id)))

    async def delete_batch(self, batch_id: str) -> Response:
        """With its runs and their records."""
        batch = await self._get(batch_id)
        if not await self._batches.delete(batch):
            raise ApiError.invalid(
                f"batch: {batch.id} has not ended; cancel it, or delete it when it has ended"
            )
        try:
            await complete(self._core.db, self._core.settings.data_dir)
        except StorageError as error:  # the next prune tries again
            logger.error("%s", error)
        return jsonify(wire.deleted_json(batch.id))

    async def show_results(self, batch_id: str) -> Response:
        """One JSON object a line, in the order of the requests."""
        batch = await self._get(batch_id)
        if batch.ended_at is None:
            raise ApiError.invalid(
                f"batch: {batch.id} has not ended; its results are there when its"
                " processing_status is 'ended'"
            )
        return Response(self._lines(batch), content_type="application/x-jsonl")

    async def _lines(self, batch: Batch) -> AsyncIterator[bytes]:
        count = 0
        async for page in self._batches.results(batch):
            count += len(page)
            yield b"".join(map(wire.result_line, page))
        if count < batch.total:  # broken off, the response cannot be taken for whole
            raise StorageError(f"{batch.id} was deleted while its results were read")

    async def follow_batch(self, batch_id: str) -> Response:
        """Server-sent events whose ids are the numbers of the moves, after that of the header
        `Last-Event-ID` or of `?after=`: what has happened, what happens, and at the end `ended`."""
        batch = await self._get(batch_id)
        after = events_after()
        if request.method == "HEAD":
            return Response(headers=SSE_HEADERS)
        return Response(self._events(batch, after, g.request_id), headers=SSE_HEADERS)

    async def _events(self, batch: Batch, after: int, request_id: str) -> AsyncIterator[bytes]:
        core, progress = self._core, BatchProgress(self._core.db, batch, after)
        told_at = anyio.current_time()
        try:
            while (news := await progress.news()) is not None:
                text = b"".join(
                    b"id: %d\n%b" % (move.seq, events.encode(wire.progress(move, news.counts)))
                    for move in news.moves
                )
                if news.ended_at is not None:
                    yield text + events.encode(wire.ended(news.ended_at, news.counts))
                    return
                now = anyio.current_time()
                if not text and now - told_at >= core.settings.ping_seconds:
                    text = events.encode(events.ping())
                if text:
                    told_at = now
                    yield text
                elif not core.admission.open:
                    return  # the client connects again
                if not news.moves:
                    await anyio.sleep(_POLL_SECONDS)
        except StorageError as error:
            yield events.encode(events.error(ApiError.internal(str(error)), request_id))

    async def _get(self, batch_id: str) -> Batch:
        batch = await self._batches.get(batch_id, g.api_key)
        if batch is None:
            raise ApiError.not_found(f"batch: {batch_id[:100]} is not known here")
        return batch

    async def _describe(self, batch: Batch) -> dict[str, Any]:
        return (await self._describe_all(batch))[0]

    async def _describe_all(self, *batches: Batch) -> list[dict[str, Any]]:
        counts = await self._batches.counts([each.id for each in batches if each.ended_at])
        at = f"{request.host_url.rstrip('/')}{PATH}"
        return [
            wire.batch_json(each, counts.get(each.id), f"{at}/{each.id}/results")
            for each in batches
        ]
