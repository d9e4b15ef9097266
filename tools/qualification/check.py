"""Checks of a server, and what came of them."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, NoReturn

from tools.qualification.sdk import anthropic
from tools.qualification.server import VERSIONS, Server
from tools.qualification.shape import shape

Verdict = Literal["passed", "failed", "skipped", "not run"]


class Failed(Exception):
    """The server did not do what the API promises; the message says what."""


class Skipped(Exception):
    """There was nothing to be seen here; the message says why."""


def require(holds: object, why: str) -> None:
    """Raise Failed with `why`, unless something holds."""
    if not holds:
        raise Failed(why)


def require_count(counted: int, message: Any) -> None:
    """Raise Failed unless a message's usage says of its prompt what `count_tokens` said."""
    usage = message.usage
    cached = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    told = usage.input_tokens + cached
    require(counted == told, f"count_tokens says {counted}, usage {told}")


def skip(why: str) -> NoReturn:
    """Raise Skipped."""
    raise Skipped(why)


@dataclass(frozen=True)
class Exchange:
    """One request: its shape, what came back (in shape, or why nothing did), and how long it
    took."""

    sent: dict[str, Any]
    came: dict[str, Any]
    seconds: float


@dataclass(frozen=True)
class Outcome:
    """What the model made of a question. It says nothing about the server."""

    expected: str
    said: str
    met: bool


@dataclass(frozen=True)
class Check:
    """One thing that a server must do. `run` raises Failed or Skipped."""

    area: str
    name: str
    run: Callable[["Trial"], None]


@dataclass(frozen=True)
class Result:
    """What came of a check: `why` says what is wrong, or why it was skipped or not run."""

    area: str
    name: str
    verdict: Verdict
    why: str | None = None
    seconds: float = 0.0
    exchanges: Sequence[Exchange] = ()
    outcomes: Sequence[Outcome] = ()


@dataclass
class Trial:
    """What a check asks the server with; it notes what was sent and what came."""

    server: Server
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    outcomes: list[Outcome] = field(default_factory=list[Outcome])

    def ask(
        self, *messages: Any, streams: bool = False, version: str = VERSIONS[-1], **more: Any
    ) -> Any:
        """The SDK's message, which has ended well, with the id of its request."""
        request = self.server.request(*messages, **more)
        with self.noted("/v1/messages", request, streams) as came:
            messages_api = self.server.client(version).messages
            if streams:
                with messages_api.stream(**request) as stream:
                    message, request_id = stream.get_final_message(), stream.request_id
            else:
                message = messages_api.create(**request)
                request_id = message._request_id
            came |= {"status": 200, "request_id": request_id, "message": shape(message)}
        require(request_id, "the answer has no request-id header")
        require(message.id, "the message has no id")
        require(message.stop_reason, "the message has ended without a stop_reason")
        return message

    def events(
        self, *messages: Any, version: str = VERSIONS[-1], **more: Any
    ) -> list[tuple[str, dict[str, Any]]]:
        """The events of a stream as they stand on the wire: name and data."""
        request = self.server.request(*messages, stream=True, **more)
        with self.noted("/v1/messages", request) as came:
            streaming = self.server.client(version).messages.with_streaming_response
            with streaming.create(**request) as response:
                came["status"], headers = response.status_code, response.headers
                came["request_id"] = headers.get("request-id")
                events = list(_parsed(response.iter_lines()))
            came["events"] = _runs([name for name, _ in events])
        require(came["request_id"], "the stream has no request-id header")
        kind = headers.get("content-type", "")
        require(kind.startswith("text/event-stream"), f"the stream's content-type is {kind!r}")
        return events

    def count(self, *messages: Any, version: str = VERSIONS[-1], **more: Any) -> int:
        """How many tokens `count_tokens` says that the prompt has."""
        request = self.server.request(*messages, **more)
        del request["max_tokens"]
        with self.noted("/v1/messages/count_tokens", request) as came:
            counted = self.server.client(version).messages.count_tokens(**request)
            tokens = counted.input_tokens
            came |= {"status": 200, "input_tokens": tokens}
        return tokens

    def refused(
        self, status: int, *messages: Any, version: str = VERSIONS[-1], **more: Any
    ) -> dict[str, Any]:
        """The body of the error by which a request is refused, before anything is streamed."""
        request = self.server.request(*messages, **more)
        try:
            with self.noted("/v1/messages", request):
                accepted = self.server.client(version).messages.create(**request)
        except anthropic.APIStatusError as error:
            return refusal(error, status)
        if request.get("stream"):
            accepted.close()
        raise Failed(f"the request was accepted, not refused with status {status}")

    def model(self, expected: str, said: str, met: bool) -> None:
        """Note what the model said beside what was hoped for."""
        self.outcomes.append(Outcome(expected, said[:300], met))

    @contextmanager
    def noted(
        self, path: str, request: dict[str, Any], streams: bool = False
    ) -> Iterator[dict[str, Any]]:
        """Note a request, and what the block puts in here of its answer."""
        sent = {"path": path, **shape(request), **({"stream": True} if streams else {})}
        came: dict[str, Any] = {}
        began = time.monotonic()
        try:
            yield came
        except anthropic.APIStatusError as error:
            came |= {"status": error.status_code, "request_id": error.request_id}
            came["error"] = error.body if isinstance(error.body, dict) else error.message[:300]
            raise
        except Exception as error:
            came["error"] = said_of(error)
            raise
        finally:
            self.exchanges.append(Exchange(sent, came, round(time.monotonic() - began, 3)))


def perform(check: Check, server: Server) -> Result:
    """Do a check and tell what came of it, whatever that is."""
    trial = Trial(server)
    began = time.monotonic()
    verdict: Verdict = "passed"
    why = None
    try:
        check.run(trial)
    except Skipped as skipped:
        verdict, why = "skipped", str(skipped)
    except Exception as error:  # the SDK raises much when answers are not what they should be
        verdict, why = "failed", said_of(error)
    seconds = round(time.monotonic() - began, 3)
    return Result(check.area, check.name, verdict, why, seconds, trial.exchanges, trial.outcomes)


def text_of(message: Any) -> str:
    """The texts of a message, joined."""
    return "".join(each.text for each in message.content if each.type == "text")


def refusal(error: Any, status: int) -> dict[str, Any]:
    """The body of an error that has the API's form and this status."""
    require(error.status_code == status, f"refused with {error.status_code}, not {status}: {error}")
    body = error.body if isinstance(error.body, dict) else {}
    inner = body.get("error") or {}
    require(body.get("type") == "error", "the body of the error is not of type error")
    require(inner.get("type") and inner.get("message"), "the error has no type or no message")
    require(error.request_id, "the error has no request-id header")
    return inner


def said_of(error: Exception) -> str:
    """An exception in one line."""
    if isinstance(error, Failed | Skipped):
        return str(error)
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, anthropic.APIConnectionError):
        text = f"no answer: {error.__cause__ or error}"
    elif not isinstance(error, anthropic.AnthropicError):
        text = f"the answer cannot be read: {text}"
    return " ".join(text.split())[:500]


def _parsed(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    name = ""
    for line in lines:
        if line.startswith("event:"):
            name = line.removeprefix("event:").strip()
        elif line.startswith("data:"):
            data = json.loads(line.removeprefix("data:"))
            require(name, "an event has no event: line, so the SDKs drop it")
            require(data.get("type") == name, f"event: {name} has data of type {data.get('type')}")
            yield name, data
            name = ""


def _runs(names: Sequence[str]) -> list[str]:
    """Names in order, those that repeat as one with a count."""
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return [name if times == 1 else f"{name} x{times}" for name, times in runs]
