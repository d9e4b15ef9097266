"""The conversation in a recorded request, and the answer in a recorded response, as text."""

import json
from collections.abc import Iterator
from typing import Any

# A tool's definition or a schema may be long; what was said is shown whole.
_MAX_BLOCK_CHARS = 500


def turns(request: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Role and text of each turn, as received."""
    if request.get("system"):
        yield "system", content_text(request["system"])
    for message in request.get("messages") or ():
        yield str(message.get("role")), content_text(message.get("content"))


def content_text(content: Any) -> str:
    """The text of a string or of blocks; the shape of content that was not kept."""
    if isinstance(content, list):
        return "\n".join(_block_text(each) for each in content)
    return _text(content)


def last_words(request: dict[str, Any]) -> str:
    """The text of the last turn."""
    return next((text for _, text in reversed(list(turns(request)))), "")


def contains(request: dict[str, Any], text: str) -> bool:
    """Whether any turn holds the text, upper and lower case being the same."""
    wanted = text.casefold()
    return any(wanted in said.casefold() for _, said in turns(request))


def _block_text(block: Any) -> str:
    match block:
        case {"text": text}:
            return _text(text)
        case {"type": "thinking", "thinking": text}:
            return f"[thinking] {_text(text)}"
        case {"type": "tool_use", "name": name, "input": arguments}:
            return f"[call of {_text(name)}] {_json(arguments)}"
        case _:
            text = _json(block)
            return text if len(text) <= _MAX_BLOCK_CHARS else f"{text[:_MAX_BLOCK_CHARS]}…"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _text(content: Any) -> str:
    if isinstance(content, dict) and "chars" in content:
        return f"[{content['chars']} characters, sha256 {content.get('sha256')}]"
    return "" if content is None else str(content)
