"""What a request in a batch must not ask for."""

from typing import Any

from service.errors import ApiError


def check_params(params: dict[str, Any]) -> None:
    """Raises ApiError 400 for what only a connection can be given."""
    if params.get("stream"):
        raise ApiError.invalid("params.stream: a batch's answers are not streamed; leave it out")
    if params.get("thread") is not None:
        raise ApiError.invalid(
            "params.thread: a batch's requests have no threads; send the whole history in"
            " `messages`, without `thread`",
            "thread_unsupported_request",
        )
