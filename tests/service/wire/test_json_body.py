import json
import re
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from service.errors import ApiError
from service.json_body import MAX_NESTING, parse

JSON = "application/json"


def refusal(body: bytes, content_type: str | None = JSON) -> str:
    with pytest.raises(ApiError) as caught:
        parse(body, content_type)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value.message


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    return f'{{"x":{opening * depth}0{closing * depth}}}'.encode()


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "Application/JSON",
        "application/json; charset=utf-8",
        'application/json;charset="UTF-8"',
        "application/json; profile=x",
    ],
)
def test_json_content_types_are_accepted(content_type: str) -> None:
    assert parse(b'{"a": 1}', content_type) == {"a": 1}


@pytest.mark.parametrize("content_type", [None, "", "text/plain", "application/x-json", "json"])
def test_other_content_types_are_refused_by_name(content_type: str | None) -> None:
    assert refusal(b"{}", content_type).startswith("content-type: ")


def test_another_charset_is_refused_with_its_code() -> None:
    with pytest.raises(ApiError) as caught:
        parse(b"{}", "application/json; charset=latin-1")
    assert caught.value.code == "unsupported_charset"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the request body is empty; send a JSON object"),
        (b" \n", "the request body is empty; send a JSON object"),
        (b"[]", "the request body must be a JSON object"),
        (b"null", "the request body must be a JSON object"),
        (b'"x"', "the request body must be a JSON object"),
        (
            b'{"model":',
            "the request body is not valid JSON: Expecting value (line 1, column 10)",
        ),
        (
            b'{"a": 1,\n "b" 2}',
            "the request body is not valid JSON: Expecting ':' delimiter (line 2, column 6)",
        ),
        (b'{"t": NaN}', "the request body holds NaN, which is not a JSON number"),
        (b'{"t": -Infinity}', "the request body holds -Infinity, which is not a JSON number"),
        (b'{"t": 1e999}', "the request body holds 1e999, which is out of range"),
        (b'{"a": {"k": 1, "k": 2}}', "the request body holds the key 'k' twice"),
        (b'{"a": "caf\xe9"}', "the request body is not valid UTF-8 at byte 10"),
        (b'{"a": "\xed\xa0\xbd"}', "the request body is not valid UTF-8 at byte 7"),
        (b'{"a": "\xc0\xaf"}', "the request body is not valid UTF-8 at byte 7"),
        (
            '{"a": 1}'.encode("utf-16"),
            "the request body is not UTF-8 (it looks like UTF-16 or UTF-32)",
        ),
        (
            '{"a": 1}'.encode("utf-16-le"),
            "the request body is not UTF-8 (it looks like UTF-16 or UTF-32)",
        ),
        (
            b'{"n": ' + b"9" * 100_000 + b"}",
            "the request body holds an integer with too many digits",
        ),
    ],
)
def test_a_body_that_is_not_a_json_object_is_refused_with_the_place(
    body: bytes, message: str
) -> None:
    assert refusal(body) == message


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse(b'\xef\xbb\xbf{"a": 1}', JSON) == {"a": 1}


@pytest.mark.parametrize("depth", [MAX_NESTING, 1_000, 10_000, 100_000, 1_000_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused(depth: int, opening: str, closing: str) -> None:
    assert refusal(nested(depth, opening, closing)).startswith("nesting too deep")


@pytest.mark.parametrize(
    "outer",
    [
        '{"tools":[{"input_schema":{"properties":%s}}]}',
        '{"messages":[{"content":[%s]}]}',
        '{"metadata":%s}',
        '{"a":1,"b":[2,%s]}',
    ],
)
def test_deep_nesting_is_refused_wherever_it_stands(outer: str) -> None:
    body = (outer % ("[" * 600 + "]" * 600)).encode()
    assert refusal(body).startswith("nesting too deep")


def test_nesting_up_to_the_limit_is_accepted() -> None:
    assert "x" in parse(nested(MAX_NESTING - 1), JSON)


@pytest.mark.parametrize(
    ("escaped", "text"),
    [
        (r"cut \ud83d", "cut �"),
        (r"\ude00 x", "� x"),
        (r"\ud83d\u0041", "�A"),
        (r"\uD83D\uDE00", "😀"),
        (r"\ud83d\ude00", "😀"),
        (r"\ud83d\ud83d\ude00\ude00", "�😀�"),
        (r"\\ud83d", r"\ud83d"),
        (r"\\\ud83d", "\\�"),
        (r"\\ud83d\ude00", "\\ud83d�"),
        (r"\\\ud83d\ude00", "\\😀"),
        (r"\\\\ud83d\n\ud83d\"", '\\\\ud83d\n�"'),
        (r"\u0000", "\0"),
        (r"\ufffe", "\ufffe"),
    ],
)
def test_surrogate_escapes_join_or_become_the_replacement_character(
    escaped: str, text: str
) -> None:
    body = f'{{"a": ["{escaped}"], "k{escaped}": {{"deep {escaped}": 1}}}}'.encode()
    assert parse(body, JSON) == {"a": [text], f"k{text}": {f"deep {text}": 1}}


@settings(deadline=None)
@given(st.lists(st.sampled_from(["\\", "\\\\", r"\ud83d", r"\uDE00", r"\n", "ud83d", "x", "😀"])))
def test_only_unpaired_surrogates_are_replaced(pieces: list[str]) -> None:
    document = f'{{"a": "{"".join(pieces)}"}}'
    try:
        text = json.loads(document)["a"]
    except ValueError:
        assume(False)
    else:
        assert parse(document.encode(), JSON) == {"a": re.sub("[\ud800-\udfff]", "\ufffd", text)}


def test_keys_that_only_broken_characters_told_apart_are_one() -> None:
    assert parse(rb'{"\ud83d": 1, "\ud83e": 2}', JSON) == {"\ufffd": 2}


def test_an_error_after_a_replaced_surrogate_keeps_its_column() -> None:
    assert refusal(rb'{"a": "\ud83d" x}').endswith("(line 1, column 16)")


@settings(deadline=None)
@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\ud8c0eENa1-\n', max_size=60))
def test_any_bytes_give_an_object_or_a_refusal(body: bytes | str) -> None:
    try:
        parsed = parse(body if isinstance(body, bytes) else body.encode(), JSON)
    except ApiError as error:
        parsed = error.envelope(None)
    json.dumps(parsed, allow_nan=False, ensure_ascii=False).encode("utf-8")


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(), json_values), st.booleans())
def test_any_json_object_is_read_as_it_was_written(value: dict[str, Any], ascii: bool) -> None:
    assert parse(json.dumps(value, ensure_ascii=ascii).encode(), JSON) == value
