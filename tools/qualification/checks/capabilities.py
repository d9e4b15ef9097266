"""What a server declares it does, and what it declares it does not it refuses by name."""

import json
from functools import partial
from typing import Any

from tools.qualification.check import Check, Failed, Trial, require, skip, text_of
from tools.qualification.checks.images import red_image
from tools.qualification.checks.protocol import QUESTION

_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"capital": {"type": "string", "enum": ["London", "Paris", "Rome"]}},
    "required": ["capital"],
    "additionalProperties": False,
}
_FORMAT = {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}}
_IMAGE = {"role": "user", "content": [red_image()]}
_CITED = {
    "role": "user",
    "content": [
        {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": "Grass is green."},
            "citations": {"enabled": True},
        },
        {"type": "text", "text": "What is green?"},
    ],
}


def refusals(trial: Trial) -> None:
    """Whatever is declared not to be there is refused, whole or streamed."""
    asked: dict[str, tuple[Any, dict[str, Any]]] = {
        "image_input": (_IMAGE, {}),
        "citations": (_CITED, {}),
        "structured_outputs": (QUESTION, _FORMAT),
        "effort": (QUESTION, {"output_config": {"effort": "high"}}),
    }
    absent = [name for name in asked if trial.server.supports(name) is False]
    if not absent:
        skip("the server declares nothing to be absent of what could be asked for here")
    accepted: list[str] = []
    for name in absent:
        message, more = asked[name]
        for stream in (None, True):
            try:
                inner = trial.refused(400, message, stream=stream, **more)
            except Failed as failed:
                accepted.append(f"{name}: {failed}")
                break
            kind = inner["type"]
            require(kind == "invalid_request_error", f"{name} is refused with {kind}")
    require(not accepted, "; ".join(accepted))


def efforts(trial: Trial) -> None:
    """Each effort that is declared is accepted."""
    declared = [each for each in _EFFORTS if trial.server.supports("effort", each)]
    if not declared:
        skip("the server declares no effort")
    for each in declared:
        trial.ask(QUESTION, output_config={"effort": each})


def thinking(trial: Trial) -> None:
    """What is declared is accepted, and thinking is signed."""
    supports = partial(trial.server.supports, "thinking", "types")
    kinds = [each for each in ("adaptive", "enabled") if supports(each)]
    if not kinds:
        skip("the server declares neither adaptive nor enabled thinking")
    seen = False
    for kind in kinds:
        # The least budget of the API, and room for an answer after it.
        budget = {"budget_tokens": 1024} if kind == "enabled" else {}
        more = {"max_tokens": 1024 + trial.server.max_tokens} if budget else {}
        for streams in (False, True):
            asked = {"thinking": {"type": kind, **budget}, **more}
            message = trial.ask(QUESTION, streams=streams, **asked)
            thought = [each for each in message.content if each.type == "thinking"]
            require(all(each.signature for each in thought), "thinking is not signed")
            trial.model("it thinks", f"{kind}: {len(thought)} blocks", bool(thought))
            seen |= bool(thought)
    if not seen:
        skip("the model has not thought: no signature was seen")


def formats(trial: Trial) -> None:
    """An answer that ends has the form that was asked for."""
    if not trial.server.supports("structured_outputs"):
        skip("the server declares no structured_outputs")
    for streams in (False, True):
        message = trial.ask(QUESTION, streams=streams, **_FORMAT)
        if message.stop_reason == "max_tokens":
            skip("the model did not end its answer within --max-tokens")
        text = text_of(message)
        try:
            answer = json.loads(text)
        except ValueError:
            raise Failed(f"the answer is no JSON: {text[:100]!r}") from None
        fits = isinstance(answer, dict) and list(answer) == ["capital"]
        require(fits and answer["capital"] in ("London", "Paris", "Rome"), f"{text} does not fit")
        trial.model("Paris", text, answer["capital"] == "Paris")


CHECKS = [
    Check("capabilities", "what is absent is refused", refusals),
    Check("capabilities", "efforts", efforts),
    Check("capabilities", "thinking", thinking),
    Check("capabilities", "an output format", formats),
]
