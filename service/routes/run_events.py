"""`GET /v1/runs/{id}/events`: what is recorded of a run, while it goes on and afterwards."""

from collections.abc import AsyncIterator
from contextlib import aclosing

from quart import Quart, Response, g, request

from service.core import Core
from service.errors import ApiError
from service.routes.queries import events_after
from service.routes.runs import run_of
from service.streaming import SSE_HEADERS
from service.wire import events
from storage.errors import StorageError
from storage.event_log import LoggedEvent, follow
from storage.jobs import Job


class RunEventRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core

    def mount(self, app: Quart) -> None:
        app.add_url_rule("/v1/runs/<run_id>/events", view_func=self.follow_run)

    async def follow_run(self, run_id: str) -> Response:
        """Server-sent events whose ids are their numbers, after that of the header `Last-Event-ID`
        or of `?after=`; at the run's end, `ended`."""
        after = events_after()
        job = await run_of(self._core, run_id)
        if request.method == "HEAD":  # the framework would follow the run to its end
            return Response(headers=SSE_HEADERS)
        response = Response(self._events(job, after, g.request_id), headers=SSE_HEADERS)
        response.headers["mererun-run"] = job.id
        return response

    async def _events(self, job: Job, after: int, request_id: str) -> AsyncIterator[bytes]:
        settings = self._core.settings
        following = follow(
            self._core.jobs,
            job,
            settings.data_dir,
            after=after,
            quiet_seconds=settings.ping_seconds,
        )
        try:
            async with aclosing(following):
                async for news in following:
                    if isinstance(news, Job):
                        yield events.encode(_ended(news))
                    elif news:
                        yield b"".join(map(_encode, news))
                    else:
                        yield events.encode(events.ping())
        except StorageError as error:
            yield events.encode(events.error(ApiError.internal(str(error)), request_id))


def _encode(event: LoggedEvent) -> bytes:
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.kind.encode(), event.line)


def _ended(job: Job) -> events.Event:
    return {
        "type": "ended",
        "state": job.state.value,
        "stop_reason": job.stop_reason,
        "error_type": job.error_type,
        "error_message": job.error_message,
        "output_tokens": job.output_tokens,
    }
