"""What every refusal looks like to a client."""

from typing import Any

# Never in a message for people: how the service is made.
_INSIDES = ("Traceback", "Error:", "pydantic", "object at 0x", "<class", ".py", "NoneType", "dict")


def refused(response: Any, status: int = 400, type: str = "invalid_request_error") -> str:
    """Assert that `response` is the error envelope, whole and consistent. Returns its message."""
    body = response.json()
    assert response.status_code == status, body
    assert response.headers["content-type"] == "application/json"
    assert response.headers["request-id"].startswith("req_")
    assert body.keys() == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert body["request_id"] == response.headers["request-id"]
    assert body["error"].keys() - {"details"} == {"type", "message"}
    assert body["error"]["type"] == type
    message = body["error"]["message"]
    assert 0 < len(message) < 1000
    assert not any(each in message for each in _INSIDES), message
    return message
