"""A new batch's requests: checked one by one, and kept on disk until they are written."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

from service.batches.elements import Elements
from service.errors import ApiError
from service.ids import new_suffix
from service.json_body import object_in
from storage.batches import NewRequest
from storage.json_text import to_json

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MOST_TOKENS = 2**63 - 1  # what a database can keep


@dataclass(frozen=True, slots=True)
class _Checked:
    """A request but for its params, which are on disk."""

    suffix: str
    custom_id: str
    max_tokens: int
    size: int


class Intake:
    """What a batch's requests need to have to be accepted; what is wrong within their `params` is
    told by their results. Its methods block, and hold a few of the params at a time.

    `params` is a file for the time between: the body's JSON takes several times the memory, and a
    write to the database must not wait for it.
    """

    def __init__(self, params: IO[bytes], *, most_requests: int, most_bytes: int) -> None:
        self._params = params
        self._most_requests = most_requests
        self._most_bytes = most_bytes
        self._checked: list[_Checked] = []
        self._places: dict[str, int] = {}

    def read(self, body: IO[bytes]) -> int:
        """Check a body, and return how many requests it has. Raises ApiError with the path of its
        first fault."""
        elements = Elements(body, self._most_bytes)
        for place, element in enumerate(elements):
            if place == self._most_requests:
                raise ApiError.too_large(
                    f"requests: a batch may have at most {self._most_requests}; send several"
                )
            self._check(place, object_in(element, f"requests.{place}"))
        elements.check_rest()
        return len(self._checked)

    def requests(self) -> Iterator[NewRequest]:
        self._params.seek(0)
        for each in self._checked:
            yield NewRequest(
                run_id=f"run_{each.suffix}",
                message_id=f"msg_{each.suffix}",
                custom_id=each.custom_id,
                max_tokens=each.max_tokens,
                params=self._params.read(each.size),
            )

    def _check(self, place: int, request: dict[str, Any]) -> None:
        path = f"requests.{place}"
        custom_id = request.get("custom_id")
        if custom_id is None:
            raise ApiError.invalid(f"{path}.custom_id: Field required")
        if not isinstance(custom_id, str) or not _CUSTOM_ID.fullmatch(custom_id):
            raise ApiError.invalid(
                f"{path}.custom_id: Input should be 1 to 64 of the characters a-z A-Z 0-9 _ -"
            )
        first = self._places.setdefault(custom_id, place)
        if first != place:
            raise ApiError.invalid(
                f"{path}.custom_id: '{custom_id}' is that of requests.{first} already;"
                " each should be unique"
            )
        if "params" not in request:
            raise ApiError.invalid(f"{path}.params: Field required")
        if not isinstance(request["params"], dict):
            raise ApiError.invalid(f"{path}.params: Input should be an object")
        params = cast(dict[str, Any], request["params"])
        text = to_json(params)
        self._params.write(text)
        self._checked.append(_Checked(new_suffix(), custom_id, _max_tokens(params), len(text)))


def _max_tokens(params: dict[str, Any]) -> int:
    """What is known before the params are checked."""
    given = params.get("max_tokens")
    return given if type(given) is int and 0 <= given <= _MOST_TOKENS else 0
