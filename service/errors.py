"""The one error that the service answers with, and its wire form."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

_NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class ApiError(Exception):
    """A refusal to be sent to the client: status, error type and a message for a person.

    `code` becomes `error.details.error_code`, the machine-readable reason that SDK helpers act on.
    """

    def __init__(
        self,
        status: int,
        type: str,
        message: str,
        code: str | None = None,
        headers: Mapping[str, str] = _NO_HEADERS,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.type = type
        self.message = message
        self.code = code
        self.headers = headers

    def envelope(self, request_id: str | None) -> dict[str, Any]:
        """The JSON body of the answer, and the data of an `error` event."""
        error: dict[str, Any] = {"type": self.type, "message": self.message}
        if self.code is not None:
            error["details"] = {"error_code": self.code}
        return {"type": "error", "error": error, "request_id": request_id}

    @classmethod
    def invalid(cls, message: str, code: str | None = None) -> Self:
        return cls(400, "invalid_request_error", message, code)

    @classmethod
    def unauthenticated(cls, message: str) -> Self:
        return cls(401, "authentication_error", message)

    @classmethod
    def forbidden(cls, message: str) -> Self:
        return cls(403, "permission_error", message)

    @classmethod
    def not_found(cls, message: str, code: str | None = None) -> Self:
        return cls(404, "not_found_error", message, code)

    @classmethod
    def too_large(cls, message: str) -> Self:
        return cls(413, "request_too_large", message)

    @classmethod
    def overloaded(cls, message: str, retry_after: int, code: str | None = None) -> Self:
        """The queue is full; clients come back after `retry_after` seconds."""
        headers = {"retry-after": str(retry_after)}
        return cls(529, "overloaded_error", message, code, headers)

    @classmethod
    def cancelled(cls, reason: str | None) -> Self:
        """499 is the one status for this that SDKs know, and never retry."""
        return cls(499, "api_error", f"the run was cancelled: {reason}")

    @classmethod
    def internal(cls, message: str) -> Self:
        """A fault that a retry would only repeat, so clients are told not to."""
        return cls(500, "api_error", message, headers={"x-should-retry": "false"})
