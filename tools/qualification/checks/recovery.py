"""The next request is answered, whatever was wrong with the last."""

from typing import Any

from tools.qualification.check import Check, Trial, require
from tools.qualification.checks.protocol import QUESTION
from tools.qualification.sdk import anthropic

_JSON: Any = {"headers": {"content-type": "application/json"}}


def after_a_bad_request(trial: Trial) -> None:
    trial.refused(400, QUESTION, max_tokens=-1)
    trial.ask(QUESTION)


def after_a_body_that_is_no_json(trial: Trial) -> None:
    with trial.noted("/v1/messages", {"body": "half of a JSON object"}) as came:
        client = trial.server.client()
        try:
            client.post("/v1/messages", cast_to=object, content=b'{"model": "', options=_JSON)
        except anthropic.APIStatusError as error:
            came["status"] = error.status_code
    status = came.get("status", 200)
    require(400 <= status < 500, f"half of a JSON object was answered with {status}")
    trial.ask(QUESTION)


def after_a_dropped_stream(trial: Trial) -> None:
    request = trial.server.request(QUESTION, stream=True)
    for _ in range(3):
        with (
            trial.noted("/v1/messages", request) as came,
            trial.server.client().messages.create(**request) as stream,
        ):
            came["events"] = [next(iter(stream)).type, "then the client has hung up"]
    trial.ask(QUESTION)


CHECKS = [
    Check("recovery", "after a bad request", after_a_bad_request),
    Check("recovery", "after half of a body", after_a_body_that_is_no_json),
    Check("recovery", "after dropped streams", after_a_dropped_stream),
]
