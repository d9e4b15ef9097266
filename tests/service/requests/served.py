"""What tests of requests are served by."""

from typing import Any

import pytest

from models.families.family import Capabilities
from service.errors import ApiError
from service.requests.prepare import Prepared, conversation_of
from service.requests.served import Served
from service.signatures import Signer
from service.wire.requests import BaseRequest, MessagesRequest
from service.wire.validation import validate

SIGNING_KEY = b"k" * 32
SIGNER = Signer(SIGNING_KEY)
TINY = Served("tiny", Capabilities(), SIGNER)
ABLE = Served(
    "able",
    Capabilities(
        tools=True,
        structured_outputs=True,
        thinking=frozenset({"adaptive", "enabled", "between_tools"}),
        efforts=("low", "high"),
    ),
    SIGNER,
)
EPHEMERAL = {"type": "ephemeral"}


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def system(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "system", "content": content, **fields}


def call(id: str, name: str = "Read", **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(id: str, content: Any = "", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **fields}


def tool(name: str = "Read", **fields: Any) -> dict[str, Any]:
    return {"name": name, "input_schema": {"type": "object"}, **fields}


def prepared(
    kind: type[BaseRequest] = MessagesRequest, served: Served = ABLE, **fields: Any
) -> Prepared:
    body = {"model": "m", "max_tokens": 2000, "messages": [user("hi")], **fields}
    return conversation_of(validate(body, kind), served)


def refusal(
    kind: type[BaseRequest] = MessagesRequest, served: Served = ABLE, **fields: Any
) -> ApiError:
    with pytest.raises(ApiError) as caught:
        prepared(kind, served, **fields)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value
