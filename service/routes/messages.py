"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from typing import Any, TypeVar

from anyio import CapacityLimiter, to_thread
from quart import Quart, Response, g, jsonify, request

from service import json_body
from service.core import Core
from service.prompts import Prompt
from service.requests.prepare import Prepared
from service.routes.idempotency import digest_of, idempotency_key
from service.scheduling.admission import Caller
from service.scheduling.live_job import Reading
from service.streaming import SSE_HEADERS, stream, whole
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest

Request = TypeVar("Request", bound=BaseRequest)

# Parsing holds the interpreter lock: more at once would be no faster.
_PARSED_AT_ONCE = 2
# Keeps a header short, whatever a request brings.
_MAX_UNGUIDED = 20


class MessagesRoutes:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._parsing = CapacityLimiter(_PARSED_AT_ONCE)

    def mount(self, app: Quart) -> None:
        app.add_url_rule("/v1/messages", view_func=self.create, methods=["POST"])
        app.add_url_rule("/v1/messages/count_tokens", view_func=self.count, methods=["POST"])

    async def create(self) -> Response:
        reading, streamed, notes = await self._admitted()
        if streamed:
            events = stream(reading, g.request_id, self._core.settings.ping_seconds)
            response = Response(events, headers=SSE_HEADERS)
        else:
            response = jsonify((await whole(reading)).as_json())
        response.headers["mererun-run"] = reading.run_id
        response.headers.update(notes)
        return response

    async def _admitted(self) -> tuple[Reading, bool, dict[str, str]]:
        """The job, whether its answer is to be streamed, and headers that say what it leaves out
        of the request, which is not kept: it may be large, and wait for long."""
        core = self._core
        key = idempotency_key(request.headers)
        received, wire, prepared = await self._read(await self._body(), MessagesRequest)
        digest = await to_thread.run_sync(digest_of, received) if key else None
        prompt = await core.preparation.prompt(prepared, g.api_key or "")
        caller = Caller(g.request_id, g.api_key, key, digest)
        reading = await core.admission.admit(received, wire, prompt, caller)
        return reading, bool(wire.stream), _notes(prepared, prompt)

    async def count(self) -> Response:
        _, _, prepared = await self._read(await self._body(), CountTokensRequest)
        prompt = await self._core.preparation.prompt(prepared, g.api_key or "", counts=True)
        response = jsonify(_count(prompt))
        response.headers.update(_notes(prepared, prompt))
        return response

    async def _body(self) -> bytes:
        # Not kept by the request, which lives as long as its answer takes.
        body = await request.get_data(cache=False, as_text=False)
        assert isinstance(body, bytes)
        return body

    async def _read(
        self, body: bytes, kind: type[Request]
    ) -> tuple[dict[str, Any], Request, Prepared]:
        content_type = request.headers.get("Content-Type")
        # A body may have 32 MiB: parsing it would hold up every stream.
        received = await to_thread.run_sync(
            json_body.parse, body, content_type, limiter=self._parsing
        )
        scope = g.api_key or ""
        return received, *await self._core.preparation.read(received, kind, scope)


def _count(prompt: Prompt) -> dict[str, Any]:
    count: dict[str, Any] = {"input_tokens": len(prompt.ids)}
    if prompt.plan.edits is not None:
        count["context_management"] = {"original_input_tokens": prompt.original_tokens}
    return count


def _notes(prepared: Prepared, prompt: Prompt) -> dict[str, str]:
    notes = {
        "mererun-ignored": prepared.ignored,
        "mererun-unguided": prompt.plan.unguided[:_MAX_UNGUIDED],
    }
    return {name: ", ".join(each) for name, each in notes.items() if each}
