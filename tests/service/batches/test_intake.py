import json
from io import BytesIO
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.batches import elements
from service.batches.elements import Elements
from service.batches.intake import Intake
from service.errors import ApiError

SCALARS = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False)
VALUES = st.recursive(
    SCALARS | st.text('"\\[]{},:'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


def read(body: bytes | Any, **limits: int) -> list[dict[str, Any]]:
    """The accepted requests, as JSON."""
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    intake = Intake(BytesIO(), **{"most_requests": 100, "most_bytes": 1 << 20, **limits})
    total = intake.read(BytesIO(body))
    found = [
        {"custom_id": each.custom_id, "params": json.loads(each.params)}
        for each in intake.requests()
    ]
    assert len(found) == total
    return found


def refusal(body: bytes | Any, status: int = 400, **limits: int) -> str:
    with pytest.raises(ApiError) as caught:
        read(body, **limits)
    assert caught.value.status == status
    return caught.value.message


def request(id: Any = "a", params: Any = None) -> dict[str, Any]:
    return {"custom_id": id, "params": {} if params is None else params}


@settings(deadline=None)
@given(
    st.lists(VALUES, max_size=4),
    st.dictionaries(st.text(max_size=9).filter(lambda name: name != "requests"), VALUES),
    st.booleans(),
    st.sampled_from([None, 1]),
    st.booleans(),
    st.sampled_from([(1, 2), (5, 3), (1 << 18, 1 << 16)]),
)
def test_the_elements_are_those_that_a_parser_finds(
    listed: list[Any],
    others: dict[str, Any],
    first: bool,
    indent: int | None,
    ascii: bool,
    sizes: tuple[int, int],
) -> None:
    document = {"requests": listed, **others} if first else {**others, "requests": listed}
    text = json.dumps(document, indent=indent, ensure_ascii=ascii)
    body = BytesIO(text.encode(errors="surrogatepass"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elements, "_READ_BYTES", sizes[0])
        patch.setattr(elements, "_PIECE_BYTES", sizes[1])
        found = [
            json.loads(each.decode(errors="surrogatepass")) for each in Elements(body, 1 << 20)
        ]
    assert found == listed


def test_requests_are_read_in_order_with_their_params() -> None:
    params = {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": 'a "]},{'}]}
    given = [request("a", params), request("b"), {**request("c"), "more": [1, {"requests": []}]}]
    body = {"before": [1, 2], "requests": given, "after": {"requests": [1]}}
    assert read(body) == [request("a", params), request("b"), request("c")]
    assert read(json.dumps(body).replace("requests", "\\u0072equests").encode()) == read(body)


@pytest.mark.parametrize(
    ("given", "counted"),
    [(3, 3), (0, 0), (2**63 - 1, 2**63 - 1), (2**63, 0), (-1, 0), (True, 0), ("3", 0), (1.0, 0)],
)
def test_max_tokens_counts_where_it_is_a_natural_number(given: Any, counted: int) -> None:
    intake = Intake(BytesIO(), most_requests=1, most_bytes=1 << 20)
    intake.read(BytesIO(json.dumps({"requests": [request("a", {"max_tokens": given})]}).encode()))
    assert [each.max_tokens for each in intake.requests()] == [counted]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "requests: Field required"),
        ({"requests": None}, "requests: Input should be a list"),
        ({"requests": {"0": request()}}, "requests: Input should be a list"),
        ({"requests": []}, "requests: Input should not be empty"),
        ({"requests": [request(), 1]}, "requests.1 must be a JSON object"),
        ({"requests": [[request()]]}, "requests.0 must be a JSON object"),
        ({"requests": [{"params": {}}]}, "requests.0.custom_id: Field required"),
        ({"requests": [request("a"), {"custom_id": "b"}]}, "requests.1.params: Field required"),
        ({"requests": [request("a", [])]}, "requests.0.params: Input should be an object"),
        (
            {"requests": [request("a"), request("b"), request("a")]},
            "requests.2.custom_id: 'a' is that of requests.0 already; each should be unique",
        ),
        (b"[]", "the request body must be a JSON object"),
        (b"", "the request body is empty; send a JSON object"),
        (
            b'{"requests":[{"custom_id":"a","params":{}},{"custom_id":',
            "the request body is not valid JSON: it ends in requests.1",
        ),
        (
            b'{"requests":[{"custom_id":"a","params":{}}',
            "the request body is not valid JSON: it ends in requests.0",
        ),
        (
            b'{"requests":[{"custom_id":"a","params":{}},]}',
            "requests.1 is empty; send a JSON object",
        ),
        (b'{"requests":[{"custom_id":"a" "params":{}}]}', "requests.0 is not valid JSON: "),
        (
            b'{"requests":[{"custom_id":"a","params":{"x":NaN}}]}',
            "requests.0 holds NaN, which is not a JSON number",
        ),
        (
            b'{"requests":[{"custom_id":"a","params":{}}}}',
            "the request body without its requests is not valid JSON: ",
        ),
        (
            b'{"requests":[{"custom_id":"a","params":{}}],"requests":[]}',
            "the request body without its requests holds the key 'requests' twice",
        ),
        (b'{"requests":["a]}', "the request body is not valid JSON: it ends in requests.0"),
    ],
)
def test_a_wrong_shape_is_refused_with_its_path(body: Any, message: str) -> None:
    assert refusal(body).startswith(message)


@pytest.mark.parametrize("id", ["", "a b", "a" * 65, "é", "a\n", 3, ["a"], "../x"])
def test_an_illegal_custom_id_is_refused_by_its_rule(id: Any) -> None:
    assert refusal({"requests": [request("a"), request(id)]}) == (
        "requests.1.custom_id: Input should be 1 to 64 of the characters a-z A-Z 0-9 _ -"
    )
    assert read({"requests": [request("Az09_-" + "x" * 58)]})


def test_limits_are_named() -> None:
    given = {"requests": [request(f"n{number}") for number in range(3)]}
    assert len(read(given, most_requests=3)) == 3
    assert refusal(given, 413, most_requests=2) == (
        "requests: a batch may have at most 2; send several"
    )
    large = {"requests": [request("a"), request("b", {"x": "y" * (3 << 20)})]}
    assert len(read(large, most_bytes=4 << 20)) == 2
    assert refusal(large, 413) == "requests.1 is too large: the limit is 1 MiB"
    assert refusal({"x": "y" * (3 << 20)}, 413) == (
        "the request body is too large: the limit is 1 MiB"
    )
