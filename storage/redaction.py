from base64 import b64decode
from collections.abc import Iterable, Mapping
from hashlib import sha256
from types import MappingProxyType
from typing import Any, cast

from storage.json_text import to_json

# Under these keys a string is one of the API's own words, or an id. Under any other, known or not,
# it may be something a person wrote or a model said.
_STRUCTURE_KEYS = {
    "type",
    "role",
    "model",
    "id",
    "tool_use_id",
    "file_id",
    "media_type",
    "stop_reason",
    "service_tier",
}
# What stands under these is the client's own JSON, keys and all.
_NONE: Mapping[str, str] = MappingProxyType({})
_OWN_JSON_KEYS = {"input", "input_examples", "input_schema", "schema"}


def redact(request: dict[str, Any], files: Mapping[str, str] = _NONE) -> dict[str, Any]:
    """A copy of a Messages request without what a record must not keep.

    The base64 data of a source becomes {"sha256", "bytes"}; `metadata.user_id` and the tokens
    of MCP servers become their SHA-256. The sources that `files` has the SHA-256 of, by their
    `file_id`, get it.
    """
    copy = request.copy()
    # A stack, not recursion: a request may nest deeper than Python does.
    pending: list[Any] = [copy]
    while pending:
        node = pending.pop()
        for key, child in _children(node):
            if key == "source" and isinstance(child, dict):
                child = _recorded(cast(dict[str, Any], child), files)
            if isinstance(child, dict | list):
                node[key] = cast(Any, child).copy()
                pending.append(node[key])
            elif key == "authorization_token" and isinstance(child, str):
                node[key] = _sha256(child.encode(errors="replace"))
    metadata = copy.get("metadata")
    if isinstance(metadata, dict) and "user_id" in metadata:
        user = cast(dict[str, Any], metadata)
        user["user_id"] = _sha256(str(user["user_id"]).encode(errors="replace"))
    return copy


def shapes(value: Any) -> Any:
    """A copy of a request or a message with its texts replaced by their shapes.

    Each string becomes {"chars", "sha256"}, but for types, roles, models and ids, and so does JSON
    whose keys say something, too: inputs of calls, and schemas. Structure and numbers stay. Token
    ids are numbers: whoever keeps no content leaves them out.
    """
    root = [value]
    pending: list[Any] = [root]
    while pending:
        node = pending.pop()
        for key, child in _children(node):
            if key in _OWN_JSON_KEYS:
                node[key] = _shape(to_json(child))
            elif isinstance(child, dict | list):
                node[key] = cast(Any, child).copy()
                pending.append(node[key])
            elif isinstance(child, str) and key not in _STRUCTURE_KEYS:
                node[key] = _shape(child.encode(errors="replace"))
    return root[0]


def _shape(text: bytes) -> dict[str, Any]:
    return {"chars": len(text.decode()), "sha256": _sha256(text)}


def _children(node: Any) -> Iterable[tuple[Any, Any]]:
    """Values may be replaced on the way. Not as a list: a node may have millions of children."""
    return cast(Any, node.items() if isinstance(node, dict) else enumerate(node))


def _recorded(source: dict[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    data, file = source.get("data"), source.get("file_id")
    if source.get("type") == "file" and isinstance(file, str) and file in files:
        return source | {"sha256": files[file]}
    if source.get("type") != "base64" or not isinstance(data, str):
        return source
    try:
        content = b64decode(data)
    except ValueError:
        content = data.encode(errors="replace")
    return source | {"data": {"sha256": _sha256(content), "bytes": len(content)}}


def _sha256(data: bytes) -> str:
    return sha256(data).hexdigest()
