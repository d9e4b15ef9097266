"""One try at a fixture."""

import time
from dataclasses import dataclass
from typing import Any, Literal

from tools.qualification.check import said_of, text_of
from tools.qualification.content.fixtures import Fixture
from tools.qualification.content.graders import Answer, fault
from tools.qualification.sdk import anthropic
from tools.qualification.server import Server

_SHOWN = 2000  # characters of an answer that are kept in the report


@dataclass(frozen=True)
class Attempt:
    """What came of it. A model can fail, and what it cannot do be refused; what is unanswered says
    nothing about the model."""

    verdict: Literal["passed", "failed", "refused", "unanswered", "not run"]
    why: str | None = None
    said: str = ""
    calls: tuple[tuple[str, Any], ...] = ()
    stop_reason: str | None = None
    output_tokens: int | None = None
    request_id: str | None = None
    seconds: float = 0.0


def attempt(server: Server, fixture: Fixture) -> Attempt:
    """Ask once, as a stream, so that no slow machine runs into a time-out, and grade the answer."""
    parts = dict(fixture.request)
    request = server.request(*parts.pop("messages"), **parts)
    began = time.monotonic()
    try:
        with server.client().messages.stream(**request) as stream:
            message, request_id = stream.get_final_message(), stream.request_id
    except anthropic.APIStatusError as error:
        verdict = "refused" if isinstance(error, anthropic.BadRequestError) else "unanswered"
        took = round(time.monotonic() - began, 3)
        return Attempt(verdict, said_of(error), request_id=error.request_id, seconds=took)
    except Exception as error:  # the SDK raises much when answers are not what they should be
        return Attempt("unanswered", said_of(error), seconds=round(time.monotonic() - began, 3))
    calls = tuple((each.name, each.input) for each in message.content if each.type == "tool_use")
    answer = Answer(text_of(message), calls)
    wrong = fault(fixture.grader, answer)
    if wrong and message.stop_reason == "max_tokens":
        wrong += "; it ran out of tokens"
    return Attempt(
        "failed" if wrong else "passed",
        wrong,
        answer.text[:_SHOWN],
        calls,
        message.stop_reason,
        message.usage.output_tokens,
        request_id,
        round(time.monotonic() - began, 3),
    )
