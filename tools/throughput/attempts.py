"""One request, measured and watched."""

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import psutil

from tools.qualification.check import require, said_of
from tools.qualification.sdk import anthropic
from tools.qualification.server import Server
from tools.throughput.watching import Seen, seen_in, watching
from tools.throughput.workloads import Workload

Role = Literal["reference", "candidate"]
Block = Literal["warm-up", "R1", "C", "R2"]


@dataclass(frozen=True)
class Place:
    """Where an attempt stands among all. `tried` counts how often it was made there."""

    server: Role
    workload: str
    block: Block
    round: int
    tried: int


@dataclass(frozen=True)
class Answered:
    """An answer that came whole. Seconds are from the sending of the request; tokens are those
    that the server's own usage tells."""

    seconds: float
    first_content_seconds: float
    input_tokens: int
    output_tokens: int
    sha256: str
    """Of all text, thinking and arguments, in order."""


@dataclass(frozen=True)
class Attempt:
    """What came of it: `why` says why it does not count. What is excluded was answered, but
    something else had the machine."""

    place: Place
    opening: str
    verdict: Literal["kept", "warm-up", "excluded", "refused", "failed"]
    why: str | None
    answered: Answered | None
    tokens_per_second: float | None
    seen: Seen


def attempt(
    place: Place,
    server: Server,
    workload: Workload,
    opening: str,
    listeners: Iterable[psutil.Process],
) -> Attempt:
    """Ask once, and tell what came of it, whatever that is."""
    verdict, why, answered, rate = "kept", None, None, None
    request = workload.opened(opening)
    with watching(listeners) as readings:
        try:
            answered = _ask(server, server.request(*request.pop("messages"), **request))
        except anthropic.BadRequestError as error:
            verdict, why = "refused", said_of(error)
        except Exception as error:  # the SDK raises much when answers are not what they should be
            verdict, why = "failed", said_of(error)
    seen = seen_in(readings)
    if answered:
        rate = _rate(workload, answered)
        if place.block == "warm-up":
            verdict, why = "warm-up", "the first one is not counted"
        elif seen.fault:
            verdict, why = "excluded", seen.fault
    return Attempt(place, opening, verdict, why, answered, rate, seen)


def _rate(workload: Workload, answered: Answered) -> float:
    """Tokens per second. An answer is measured until its end, with its prompt: decoding alone
    would look fast where a server keeps text back and then sends all of it at once."""
    if workload.counts == "input":
        return answered.input_tokens / answered.first_content_seconds
    return answered.output_tokens / answered.seconds


def _ask(server: Server, request: dict[str, object]) -> Answered:
    answer = hashlib.sha256()
    first, ended, input_tokens, output_tokens = None, None, 0, 0
    began = time.perf_counter()
    with server.client().messages.create(**request, stream=True) as events:
        for event in events:
            now = time.perf_counter()
            match event.type:
                case "message_start":
                    # Without those that a cache had.
                    input_tokens = event.message.usage.input_tokens
                case "content_block_delta":
                    pieces = ("text", "partial_json", "thinking")
                    piece = "".join(getattr(event.delta, name, None) or "" for name in pieces)
                    answer.update(piece.encode(errors="surrogatepass"))
                    if piece and first is None:
                        first = now
                case "message_delta":
                    output_tokens = event.usage.output_tokens
                case "message_stop":
                    ended = now
    require(ended, "the stream was cut before message_stop")
    require(first, "the answer is empty")
    require(input_tokens > 0 and output_tokens > 0, "usage counts no tokens")
    return Answered(
        seconds=round(ended - began, 6),
        first_content_seconds=round(first - began, 6),
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        sha256=answer.hexdigest(),
    )
