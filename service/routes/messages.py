"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from collections.abc import Sequence
from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from quart import Quart, Response, g, jsonify, request

from service import json_body
from service.core import Core
from service.requests.context import check_fits
from service.requests.prepare import Prepared, conversation_of
from service.scheduling.admission import Caller
from service.scheduling.live_job import LiveJob
from service.streaming import SSE_HEADERS, stream, whole
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest
from service.wire.validation import validate

Request = TypeVar("Request", bound=BaseRequest)

# Reading holds the interpreter lock: more at once would be no faster, keep the event loop from its
# turns, and take the threads that write records.
_READ_AT_ONCE = 2


class MessagesRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._reading = CapacityLimiter(_READ_AT_ONCE)

    def mount(self, app: Quart) -> None:
        app.add_url_rule("/v1/messages", view_func=self.create, methods=["POST"])
        app.add_url_rule("/v1/messages/count_tokens", view_func=self.count, methods=["POST"])

    async def create(self) -> Response:
        live, streamed, ignored = await self._admitted()
        if streamed:
            events = stream(live, g.request_id, self._core.settings.ping_seconds)
            response = Response(events, headers=SSE_HEADERS)
        else:
            response = jsonify((await whole(live)).as_json())
        response.headers["mererun-run"] = live.id
        return _saying_what_was_ignored(response, ignored)

    async def _admitted(self) -> tuple[LiveJob, bool, Sequence[str]]:
        """The job, whether its answer is to be streamed, and what it ignores of the request, which
        is not kept: it may be large, and wait for long."""
        core = self._core
        received, wire, prepared = await self._read(MessagesRequest)
        prompt = await core.prompts.prepare(prepared.conversation)
        check_fits(
            len(prompt.ids),
            wire.max_tokens,
            context_tokens=core.context_tokens,
            max_output_tokens=core.max_output_tokens,
            model=core.checkpoint.id,
        )
        caller = Caller(g.request_id, g.api_key)
        live = await core.admission.admit(received, wire, prompt, caller)
        return live, bool(wire.stream), prepared.ignored

    async def count(self) -> Response:
        _, _, prepared = await self._read(CountTokensRequest)
        prompt = await self._core.prompts.prepare(prepared.conversation)
        response = jsonify({"input_tokens": len(prompt.ids)})
        return _saying_what_was_ignored(response, prepared.ignored)

    async def _read(self, kind: type[Request]) -> tuple[dict[str, Any], Request, Prepared]:
        # Not kept by the request, which lives as long as its answer takes.
        body = await request.get_data(cache=False, as_text=False)
        assert isinstance(body, bytes)
        content_type = request.headers.get("Content-Type")

        def read() -> tuple[dict[str, Any], Request, Prepared]:
            received = json_body.parse(body, content_type)
            wire = validate(received, kind)
            self._core.check_model(wire.model)
            return received, wire, conversation_of(wire, model=self._core.checkpoint.id)

        # A body may have 32 MiB: reading it would hold up every stream.
        return await to_thread.run_sync(read, limiter=self._reading)


def _saying_what_was_ignored(response: Response, ignored: Sequence[str]) -> Response:
    if ignored:
        response.headers["mererun-ignored"] = ", ".join(ignored)
    return response
