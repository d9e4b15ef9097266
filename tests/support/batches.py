"""Batches, and the runs that they are made of."""

import json
from typing import Any

from tests.support.lives import until
from tests.support.running import Running

PATH = "/v1/messages/batches"


def create_batch(service: Running, *params: dict[str, Any], **headers: str) -> str:
    """Its id. Its requests are called 0, 1, 2…"""
    requests = [{"custom_id": str(place), "params": each} for place, each in enumerate(params)]
    with service.client(headers=headers) as client:
        answer = client.post(PATH, json={"requests": requests})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def runs_of(service: Running, batch_id: str) -> list[dict[str, Any]]:
    """In the order of the requests; of the last hundred runs of all."""
    return [run for run in service.runs() if run["batch_id"] == batch_id][::-1]


def ended_batch(service: Running, batch_id: str) -> dict[str, Any]:
    """The batch, once it has ended."""

    def found() -> dict[str, Any] | None:
        with service.client() as client:
            batch = client.get(f"{PATH}/{batch_id}").raise_for_status().json()
        return batch if batch["processing_status"] == "ended" else None

    batch = until(found)
    assert batch is not None
    return batch


def results(service: Running, batch_id: str) -> list[dict[str, Any]]:
    """What came of each request, in their order, once the batch has ended."""
    ended_batch(service, batch_id)
    with service.client() as client:
        answer = client.get(f"{PATH}/{batch_id}/results").raise_for_status()
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [line["custom_id"] for line in lines] == [str(place) for place in range(len(lines))]
    return [line["result"] for line in lines]


def text_in(result: dict[str, Any]) -> str:
    """The text of a request that succeeded."""
    assert result["type"] == "succeeded", result
    return "".join(block["text"] for block in result["message"]["content"])
