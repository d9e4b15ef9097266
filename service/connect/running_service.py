"""What a client must know of a service that runs somewhere, as that says itself."""

import json
import ssl
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, Field, ValidationError

_TIMEOUT_SECONDS = 10.0
_MOST_BYTES = 1 << 20  # far more than any of the answers

_Answer = TypeVar("_Answer", bound=BaseModel)


class NotConnected(Exception):
    """No use can be made of what is at the address. One sentence for people: what to do."""


@dataclass(frozen=True, slots=True)
class RunningService:
    """A service and the model it serves. `context_tokens` hold a prompt and its answer.
    `without_tools` is how it refuses tools, None where it takes them."""

    url: str
    model: str
    context_tokens: int
    max_output_tokens: int
    thinks: bool
    efforts: tuple[str, ...]
    without_tools: str | None


def base_url(given: str) -> str:
    """The address that clients put paths like `/v1/messages` after. Raises ValueError, which says
    what is wrong, for what is none or holds a password: it would be written down."""
    split = urlsplit(given)
    if split.scheme not in ("http", "https") or not split.hostname or split.query or split.fragment:
        raise ValueError(f"{given!r} is no address like http://127.0.0.1:8765")
    if split.username is not None:
        raise ValueError("an address with a password would be written down; leave that out")
    _ = split.port  # raises ValueError
    path = split.path.rstrip("/").removesuffix("/v1")  # many know it from other clients
    return SplitResult(split.scheme, split.netloc, path, "", "").geturl()


def ask(url: str, model: str | None, key: str | None) -> RunningService:
    """What is served at `url`; `model` must be, unless it is None. Raises NotConnected."""
    client = _Client(url, key)
    client.get("/v1/runtime", _Runtime)  # nothing else has one
    served = client.get("/v1/models", _Models).data
    chosen = next((each for each in served if model in (None, each.id)), None)
    if chosen is None:
        raise NotConnected(
            f"{url} serves {served[0].id}, not {model}: start `mererun serve --model {model}`, "
            "or leave out --model"
        )
    return RunningService(
        url=url,
        model=chosen.id,
        context_tokens=chosen.max_input_tokens,
        max_output_tokens=chosen.max_tokens,
        thinks=chosen.capabilities.thinking.types.get("adaptive", _NO).supported,
        efforts=tuple(
            name
            for name, each in chosen.capabilities.effort.items()
            if isinstance(each, _Supported) and each.supported
        ),
        without_tools=client.refusal_of_tools(chosen.id),
    )


class _Supported(BaseModel):
    supported: bool


_NO = _Supported(supported=False)


class _Thinking(BaseModel):
    types: dict[str, _Supported]


class _Capabilities(BaseModel):
    effort: dict[str, bool | _Supported]
    thinking: _Thinking


class _Model(BaseModel):
    id: str
    max_input_tokens: int
    max_tokens: int
    capabilities: _Capabilities


class _Models(BaseModel):
    data: Annotated[tuple[_Model, ...], Field(min_length=1)]


class _Runtime(BaseModel):
    type: Literal["runtime"]


class _Error(BaseModel):
    message: str


class _Refusal(BaseModel):
    error: _Error


class _Client:
    def __init__(self, url: str, key: str | None) -> None:
        self._url = url
        self._split = urlsplit(url)
        self._headers = {"content-type": "application/json", "anthropic-version": "2023-06-01"}
        self._with_key = key is not None
        if key is not None:
            self._headers["x-api-key"] = key

    def get(self, path: str, kind: type[_Answer]) -> _Answer:
        status, body = self._ask("GET", path)
        try:
            if status == 200:
                return kind.model_validate_json(body)
            why = _Refusal.model_validate_json(body).error.message
        except ValidationError:
            raise NotConnected(
                f"what answers at {self._url} is no mererun: give the address of one with --url"
            ) from None
        if status != 401:
            raise NotConnected(f"{self._url} refuses to tell what it serves: {why}")
        raise NotConnected(
            f"{self._url} does not know the key in --key-file: give a file with one of its own"
            if self._with_key
            else f"{self._url} asks for an API key: give a file that holds yours with --key-file"
        )

    def refusal_of_tools(self, model: str) -> str | None:
        """Whether tools may be used is told by no capability of the API: it is tried."""
        tool = {"name": "Read", "input_schema": {"type": "object"}}
        message = {"role": "user", "content": "Hello"}
        asked = {"model": model, "messages": [message], "tools": [tool]}
        status, body = self._ask("POST", "/v1/messages/count_tokens", asked)
        if status == 200:
            return None
        try:
            why = _Refusal.model_validate_json(body).error.message
            if status == 400:
                return why
        except ValidationError:
            why = "no error of the API"
        raise NotConnected(
            f"{self._url} does not tell whether its model takes tools (status {status}: {why}): "
            "try again"
        )

    def _ask(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        kind = HTTPSConnection if self._split.scheme == "https" else HTTPConnection
        # No proxy is asked, and no redirect followed: Claude Code is given this very address.
        connection = kind(self._split.hostname or "", self._split.port, timeout=_TIMEOUT_SECONDS)
        try:
            sent = None if body is None else json.dumps(body)
            connection.request(method, self._split.path + path, sent, self._headers)
            response = connection.getresponse()
            return response.status, response.read(_MOST_BYTES)
        except ssl.SSLError as error:
            raise NotConnected(
                f"{self._url} cannot be trusted, or speaks no TLS ({error.reason or error}): "
                "a mererun without a proxy before it is at http://…"
            ) from error
        except (OSError, HTTPException, UnicodeError) as error:
            # The last is of hosts with empty labels, and of paths beyond ASCII.
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise NotConnected(
                f"no service answers at {self._url} ({why}): start it with `mererun serve`, "
                "or give its address with --url"
            ) from error
        finally:
            connection.close()
