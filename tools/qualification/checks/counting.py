"""What `count_tokens` says is what an answer's usage says, whatever is in the prompt."""

from functools import partial
from typing import Any

from tools.qualification.check import Check, Trial, refusal, require_count, skip
from tools.qualification.checks.protocol import QUESTION, WEATHER
from tools.qualification.sdk import anthropic

_TALK = (
    {"role": "user", "content": "My cat is called Mimi."},
    {"role": "assistant", "content": "Mimi it is."},
    {"role": "user", "content": "What is its name?"},
)
_RESULT = (
    {"role": "user", "content": "How is the weather in Oslo?"},
    {
        "role": "assistant",
        "content": [
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Oslo"}}
        ],
    },
    {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rain."}],
    },
)
_FORMAT = {
    "type": "json_schema",
    "schema": {
        "type": "object",
        "properties": {"capital": {"type": "string"}},
        "required": ["capital"],
        "additionalProperties": False,
    },
}


def parity(trial: Trial, messages: tuple[Any, ...], **more: Any) -> None:
    try:
        counted = trial.count(*messages, **more)
    except anthropic.BadRequestError as error:
        skip(f"the request is refused: {refusal(error, 400)['message']}")
    for streams in (False, True):
        require_count(counted, trial.ask(*messages, streams=streams, **more))


_PROMPTS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "plain": ((QUESTION,), {}),
    "system": ((QUESTION,), {"system": "Answer in French."}),
    "turns": (_TALK, {}),
    "Unicode": (("Grüße, 東京 🌦️: what is this?",), {}),
    "tools": ((QUESTION,), {"tools": [WEATHER]}),
    "a call and its result": (_RESULT, {"tools": [WEATHER]}),
    "an output format": ((QUESTION,), {"output_config": {"format": _FORMAT}}),
}

CHECKS = [
    Check("counting", name, partial(parity, messages=messages, **more))
    for name, (messages, more) in _PROMPTS.items()
]
