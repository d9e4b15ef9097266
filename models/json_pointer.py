"""What a `$ref` within a schema points to: a JSON pointer (RFC 6901) as a URI's fragment."""

from typing import Any, cast
from urllib.parse import unquote


def is_pointer(reference: str) -> bool:
    return reference == "#" or reference.startswith("#/")


def pointed_to(root: Any, reference: str) -> Any:
    """Raises LookupError where nothing is."""
    target = root
    for step in unquote(reference).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, dict):
            target = cast(dict[str, Any], target)[step]
        elif isinstance(target, list) and step.isascii() and step.isdigit():
            target = cast(list[Any], target)[int(step)]
        else:
            raise LookupError(step)
    return target
