"""What a run record keeps of the answer."""

from typing import Any

from service.errors import ApiError
from service.wire.responses import Message, StopReason, Text, Usage
from storage.jobs import JobState


def message_of(
    message_id: str,
    model: str,
    text: str,
    *,
    input_tokens: int,
    output_tokens: int,
    stop_reason: StopReason | None,
    stop_sequence: str | None,
) -> Message:
    """The answer as the Messages API gives it; without text it has no block."""
    return Message(
        id=message_id,
        model=model,
        content=(Text(text),) if text else (),
        stop_reason=stop_reason,
        stop_sequence=stop_sequence,
        usage=Usage(input_tokens=input_tokens, output_tokens=output_tokens),
    )


def recorded(state: JobState, message: Message, error: ApiError | None) -> dict[str, Any]:
    """The content of `response.json`: a message cut short has no stop reason but an error."""
    return {
        "state": state.value,
        "message": message.as_json(),
        "error": {"type": error.type, "message": error.message} if error else None,
    }
