from base64 import b64encode
from hashlib import sha256
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from storage.redaction import redact, shapes

SECRET = "a secret that must not be kept"


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def test_image_bytes_become_their_digest_wherever_they_lie() -> None:
    data = b64encode(b"pixels").decode()
    image = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }
    result = {"type": "tool_result", "tool_use_id": "t", "content": [image]}
    request = {"messages": [{"role": "user", "content": [image, result]}]}
    kept = redact(request)
    content = kept["messages"][0]["content"]
    expected = {
        "type": "base64",
        "media_type": "image/png",
        "data": {"sha256": digest(b"pixels"), "bytes": 6},
    }
    assert content[0]["source"] == content[1]["content"][0]["source"] == expected
    assert image["source"]["data"] == data, "the request itself is left alone"


def test_broken_base64_becomes_a_digest_too() -> None:
    request = {"source": {"type": "base64", "data": "é"}}
    assert redact(request)["source"]["data"]["bytes"] == 2


def test_other_sources_and_data_are_kept() -> None:
    request = {
        "source": {"type": "text", "data": "plain"},
        "input": {"type": "base64", "data": "of a tool"},
    }
    assert redact(request) == request


def test_the_digest_of_an_uploaded_file_is_kept_with_its_id() -> None:
    known, unknown = ({"type": "file", "file_id": id} for id in ("file_1", "file_2"))
    request = {"content": [{"source": known}, {"source": unknown}]}
    kept = redact(request, {"file_1": "its digest"})
    expected = {"type": "file", "file_id": "file_1", "sha256": "its digest"}
    assert kept == {"content": [{"source": expected}, {"source": unknown}]}
    assert known == {"type": "file", "file_id": "file_1"}, "the request itself is left alone"
    assert shapes(kept)["content"][1]["source"] == unknown


def test_users_and_tokens_become_digests() -> None:
    request = {
        "metadata": {"user_id": "u", "other": 1},
        "mcp_servers": [{"url": "u", "authorization_token": SECRET}],
    }
    assert redact(request) == {
        "metadata": {"user_id": digest(b"u"), "other": 1},
        "mcp_servers": [{"url": "u", "authorization_token": digest(SECRET.encode())}],
    }


def test_shapes_keep_structure_and_no_content() -> None:
    text = {"chars": len(SECRET), "sha256": digest(SECRET.encode())}
    arguments = orjson.dumps({"type": SECRET, "n": 3, "role": [SECRET]})
    request = {
        "model": "m",
        "max_tokens": 7,
        "system": SECRET,
        "a_field_of_tomorrow": {"rules": [SECRET], "n": 3},
        "messages": [
            {"role": "user", "content": SECRET},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": SECRET},
                    {"type": "tool_use", "input": {"type": SECRET, "n": 3, "role": [SECRET]}},
                ],
            },
        ],
    }
    assert shapes(request) == {
        "model": "m",
        "max_tokens": 7,
        "system": text,
        "a_field_of_tomorrow": {"rules": [text], "n": 3},
        "messages": [
            {"role": "user", "content": text},
            {
                "role": "assistant",
                "content": [
                    {"type": "text", "text": text},
                    {
                        "type": "tool_use",
                        "input": {"chars": len(arguments), "sha256": digest(arguments)},
                    },
                ],
            },
        ],
    }


def test_shapes_keep_nothing_of_schemas_and_examples() -> None:
    schema = {"type": "object", "properties": {SECRET: {"enum": [SECRET]}}}
    request = {
        "tools": [{"name": "t", "input_schema": schema, "input_examples": [{SECRET: 1}]}],
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    }
    assert SECRET not in repr(shapes(request))


def test_depth_is_no_fault() -> None:
    value: Any = SECRET
    for _ in range(5000):
        value = {"content": [value]}
    redact(value)
    shapes(value)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.sampled_from(["content", "type", "source", "data", "x"]), inner)
        ),
    )
)
def test_neither_changes_what_it_is_given(value: Any) -> None:
    request = {"messages": value}
    before = repr(request)
    redact(request)
    shapes(request)
    assert repr(request) == before
