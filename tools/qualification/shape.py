"""What JSON looks like, without what it says."""

from typing import Any

_SHOWN_ITEMS = 6
# Words of the API and names, which say what was asked; all other texts are lengths.
_SHOWN_TEXTS = {
    *("type", "role", "model", "name", "stop_reason", "stop_sequence", "effort", "ttl"),
    *("media_type", "id", "tool_use_id", "tool_name", "error_code"),
}


def shape(value: Any, name: str = "") -> Any:
    """The same JSON with texts as lengths, but for the API's own words, and with long lists cut."""
    match value:
        case dict():
            return {each: shape(inner, each) for each, inner in value.items() if inner is not None}
        case list() | tuple():
            shown = [shape(each, name) for each in value[:_SHOWN_ITEMS]]
            left = len(value) - len(shown)
            return [*shown, f"and {left} more"] if left else shown
        case str() if name not in _SHOWN_TEXTS or len(value) > 80:
            return f"{len(value)} characters"
        case None | bool() | int() | float() | str():
            return value
        case _:
            return shape(value.model_dump(mode="json"), name)  # what the SDK has made of an answer
