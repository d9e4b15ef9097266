"""The HTTP application: routes, and what holds for each of them."""

import logging
from contextlib import suppress

import anyio
from quart import Quart, Response, g, has_websocket_context, jsonify, request
from werkzeug.datastructures import Headers
from werkzeug.exceptions import HTTPException

from service.auth import Keys
from service.browser_guard import refuse_web_pages
from service.core import Core
from service.errors import ApiError
from service.ids import new_id
from service.routes.batches import PATH as BATCHES
from service.routes.batches import BatchRoutes
from service.routes.files import PATH as FILES
from service.routes.files import FileRoutes
from service.routes.health import HealthRoutes
from service.routes.messages import MessagesRoutes
from service.routes.models import ModelRoutes
from service.routes.run_events import RunEventRoutes
from service.routes.runs import RunRoutes
from service.routes.runtime import RuntimeRoutes
from service.streamed_body import PacedConnection, requests_limited
from service.upload_form import FORM_BYTES
from storage.errors import StorageError

logger = logging.getLogger("mererun.http")

_OPEN_PATHS = frozenset({"/", "/healthz"})  # what a supervisor or a client asks before it has a key
_BODY_SECONDS = 5.0


def create_app(core: Core, keys: Keys | None) -> Quart:
    """All routes over `core`. Without `keys` only local programs are answered."""
    app = Quart("mererun", static_folder=None)
    app.url_map.merge_slashes = False  # by a redirect, in HTML
    app.config["MAX_CONTENT_LENGTH"] = core.settings.body_limit_bytes
    app.request_class = requests_limited(
        {
            ("POST", BATCHES): core.settings.batch_body_limit_bytes,
            ("POST", FILES): core.settings.file_limit_bytes + FORM_BYTES,
        }
    )
    app.asgi_http_class = PacedConnection
    app.config["RESPONSE_TIMEOUT"] = None  # an answer takes as long as it takes
    app.json.sort_keys = False  # pyright: ignore[reportAttributeAccessIssue]

    async def before() -> None:
        g.request_id = new_id("req")
        g.api_key = None
        _check_body_headers(request.headers)
        if keys is None:
            refuse_web_pages(request.headers)
        elif request.path not in _OPEN_PATHS:
            g.api_key = keys.identify(
                request.headers.getlist("Authorization"), request.headers.getlist("X-Api-Key")
            )

    async def refuse_websocket() -> None:
        g.request_id = new_id("req")
        raise ApiError.invalid(
            "upgrade: WebSockets are not spoken here; send a request with `stream` for an answer"
            " as it is written"
        )

    async def after(response: Response) -> Response:
        response.headers["request-id"] = g.request_id
        return response

    app.before_request(before)
    app.after_request(after)
    app.before_websocket(refuse_websocket)
    app.after_websocket(after)  # pyright: ignore[reportArgumentType]
    app.register_error_handler(ApiError, _api_error)
    app.register_error_handler(StorageError, _storage_error)
    app.register_error_handler(HTTPException, _http_error)
    app.register_error_handler(Exception, _unforeseen)
    for routes in (
        HealthRoutes,
        MessagesRoutes,
        BatchRoutes,
        FileRoutes,
        ModelRoutes,
        RunRoutes,
        RunEventRoutes,
        RuntimeRoutes,
    ):
        routes(core).mount(app)
    return app


def _check_body_headers(headers: Headers) -> None:
    if "Content-Length" in headers and "Transfer-Encoding" in headers:
        # A proxy before the service may believe the other one, and take what follows the body for
        # a request of somebody else (RFC 9112, 6.1).
        raise ApiError(
            400,
            "invalid_request_error",
            "content-length: send it or transfer-encoding, not both",
            headers={"connection": "close"},
        )
    if headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise ApiError.invalid("content-encoding: send the body as it is, not compressed")


async def _api_error(error: ApiError) -> Response:
    await _let_body_pass()
    response = jsonify(error.envelope(g.request_id))
    response.status_code = error.status
    response.headers.update(error.headers)
    return response


async def _let_body_pass() -> None:
    """A request may be refused before its body has arrived. Answered at once, its connection would
    have to be closed, with the client still sending and maybe never reading why."""
    if has_websocket_context():
        return
    with anyio.move_on_after(_BODY_SECONDS), suppress(HTTPException):
        async for _ in request.body:
            pass


async def _storage_error(error: StorageError) -> Response:
    logger.error("%s", error)
    return await _api_error(ApiError.internal(str(error)))


async def _http_error(error: HTTPException) -> Response:
    """What the framework found before any route did."""
    status = error.code or 500
    if status == 404 and request.path.startswith("/v1/v1/"):
        known = ApiError.not_found(
            f"{request.path}: there is no such path; the base URL must not end in /v1"
        )
    elif status == 404:
        known = ApiError.not_found(f"{request.path}: there is no such path")
    elif status == 405:
        known = ApiError(
            405, "invalid_request_error", f"{request.path}: {request.method} is not allowed here"
        )
    elif status == 413:
        limit = request.max_content_length or 0
        known = ApiError.too_large(f"the request body is too large: the limit is {limit >> 20} MiB")
    elif status == 408:
        known = ApiError(408, "timeout_error", "the request body did not arrive in time")
    else:
        known = ApiError(status, "invalid_request_error", error.description or error.name)
    response = await _api_error(known)
    for name, value in error.get_headers():
        if name.lower() == "allow":
            response.headers[name] = value
    return response


async def _unforeseen(error: Exception) -> Response:
    logger.error("request %s failed", g.request_id, exc_info=error)
    return await _api_error(
        ApiError.internal(f"an internal fault; the service's log has it under {g.request_id}")
    )
