"""Payloads of the event stream, and their framing.

Order: message_start, then for each block start, deltas, stop, then message_delta and message_stop.
"""

from collections.abc import Sequence
from typing import Any

from service.errors import ApiError
from service.wire.responses import (
    AppliedEdit,
    Block,
    CacheMiss,
    Message,
    StopReason,
    Usage,
    context_management,
)
from storage.json_text import to_json

Event = dict[str, Any]


def message_start(id: str, model: str, usage: Usage, miss: CacheMiss | None = None) -> Event:
    message = Message(id, model, (), None, None, usage, miss)
    return {"type": "message_start", "message": message.as_json()}


def content_block_start(index: int, block: Block) -> Event:
    """Opens a block that is empty yet; what it holds arrives in deltas."""
    return {"type": "content_block_start", "index": index, "content_block": block}


def content_block_delta(index: int, kind: str, **more: str | None) -> Event:
    delta = {"type": kind, **more}
    return {"type": "content_block_delta", "index": index, "delta": delta}


def content_block_stop(index: int) -> Event:
    return {"type": "content_block_stop", "index": index}


def message_delta(
    stop_reason: StopReason,
    stop_sequence: str | None,
    usage: Usage,
    edits: Sequence[AppliedEdit] | None = None,
) -> Event:
    """How the answer ended. Clients overwrite all three stop fields, so all are always there."""
    return {
        "type": "message_delta",
        "delta": {
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "stop_details": None,
        },
        "usage": usage.totals_as_json(),
        **context_management(edits),
    }


def message_stop() -> Event:
    return {"type": "message_stop"}


def ping() -> Event:
    return {"type": "ping"}


def error(fault: ApiError, request_id: str | None) -> Event:
    return fault.envelope(request_id)


def encode(event: Event) -> bytes:
    """The event as it goes over the wire; clients drop events without the `event:` line."""
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), to_json(event))
