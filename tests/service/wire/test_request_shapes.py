from typing import Any

import pytest

from service.errors import ApiError
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest
from service.wire.validation import validate


def body(**fields: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "max_tokens": 16,
        "messages": [{"role": "user", "content": "hi"}],
        **fields,
    }


def holding(block: Any, role: str = "user") -> dict[str, Any]:
    """A body whose only message has one block."""
    return body(messages=[{"role": role, "content": [block]}])


def refusal(value: dict[str, Any], kind: type[BaseRequest] = MessagesRequest) -> str:
    with pytest.raises(ApiError) as caught:
        validate(value, kind)
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")
    return caught.value.message


TEXT_OR_LIST = "Input should be a string or a list of content blocks"
KINDS = "Input should be 'text', 'image', 'document', 'search_result', 'tool_result',"

# Faults outside of `max_tokens`, which both endpoints must see alike.
SHARED_FAULTS = [
    ({"messages": []}, "messages: Input should not be empty"),
    ({"messages": {}}, "messages: Input should be a valid list"),
    ({"messages": None}, "messages: Input should be a valid list"),
    ({"messages": ["hi"]}, "messages.0: Input should be an object"),
    ({"messages": [{"content": "x"}]}, "messages.0.role: Field required"),
    (
        {"messages": [{"role": "tool", "content": "x"}]},
        "messages.0.role: Input should be 'user', 'assistant' or 'system'",
    ),
    (
        {"messages": [{"role": "developer", "content": "x"}]},
        "messages.0.role: Input should be 'user', 'assistant' or 'system'",
    ),
    ({"messages": [{"role": "user"}]}, "messages.0.content: Field required"),
    ({"messages": [{"role": "user", "content": None}]}, f"messages.0.content: {TEXT_OR_LIST}"),
    ({"messages": [{"role": "user", "content": {}}]}, f"messages.0.content: {TEXT_OR_LIST}"),
    (holding(None), "messages.0.content.0: Input should be an object"),
    (holding("hi"), "messages.0.content.0: Input should be an object"),
    (holding({}), "messages.0.content.0.type: Field required"),
    (holding({"type": "txet"}), "messages.0.content.0.type: unknown block type 'txet'"),
    (
        holding({"type": 5}),
        f"messages.0.content.0.type: {KINDS} 'container_upload' or 'compaction'",
    ),
    (holding({"type": "text"}), "messages.0.content.0.text: Field required"),
    (
        holding({"type": "text", "text": None}),
        "messages.0.content.0.text: Input should be a valid string",
    ),
    (
        holding({"type": "text", "text": "x", "cache_control": {"type": "persistent"}}),
        "messages.0.content.0.cache_control.type: Input should be 'ephemeral'",
    ),
    (
        holding({"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "2h"}}),
        "messages.0.content.0.cache_control.ttl: Input should be '5m' or '1h'",
    ),
    *(
        (
            holding({**block, "cache_control": {"type": "ephemeral"}}, "assistant"),
            "messages.0.content.0.cache_control: blocks of this kind have none; put it on the block"
            " before or after",
        )
        for block in (
            {"type": "thinking", "thinking": "x", "signature": ""},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "mcp_tool_listing", "mcp_server_name": "x", "tools": []},
            {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
        )
    ),
    (holding({"type": "tool_use"}, "assistant"), "messages.0.content.0.id: Field required"),
    (
        holding({"type": "tool_use", "id": "a"}, "assistant"),
        "messages.0.content.0.name: Field required",
    ),
    (
        holding({"type": "tool_use", "id": "a", "name": "n"}, "assistant"),
        "messages.0.content.0.input: Field required",
    ),
    (
        holding({"type": "tool_use", "id": "a", "name": "n", "input": '{"a":1}'}, "assistant"),
        "messages.0.content.0.input: Input should be an object",
    ),
    (
        holding({"type": "tool_use", "id": "a", "name": "n", "input": None}, "assistant"),
        "messages.0.content.0.input: Input should be an object",
    ),
    (
        holding({"type": "tool_use", "id": "a", "name": "n", "input": {}}),
        "messages.0.content.0.type: 'tool_use' blocks do not belong in a user message",
    ),
    (
        holding({"type": "tool_result", "tool_use_id": "a"}, "assistant"),
        "messages.0.content.0.type: 'tool_result' blocks do not belong in an assistant message",
    ),
    (
        holding({"type": "image", "source": {"type": "url", "url": "x"}}, "assistant"),
        "messages.0.content.0.type: 'image' blocks do not belong in an assistant message",
    ),
    (
        holding({"type": "thinking", "thinking": "x", "signature": ""}),
        "messages.0.content.0.type: 'thinking' blocks do not belong in a user message",
    ),
    (
        holding({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "tool_result"}]}),
        "messages.0.content.0.content.0.type: 'tool_result' blocks do not belong in a tool result",
    ),
    (
        body(
            messages=[
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "user", "content": [{"type": "text"}]},
            ]
        ),
        "messages.2.content.0.text: Field required",
    ),
    ({"model": ""}, "model: String should have at least 1 character"),
    ({"model": 5}, "model: Input should be a valid string"),
    ({"stream": "yes"}, "stream: Input should be a valid boolean"),
    ({"system": {}}, f"system: {TEXT_OR_LIST}"),
    ({"system": [{"type": "image"}]}, "system.0.type: Input should be 'text'"),
    ({"system": [{"type": "text"}]}, "system.0.text: Field required"),
    ({"tools": {}}, "tools: Input should be a valid list"),
    ({"tools": ["Read"]}, "tools.0: Input should be an object"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name: Field required"),
    ({"stop_sequences": "x"}, "stop_sequences: Input should be a valid list"),
    (
        {"stop_sequences": ["x"] * 10_000},
        "stop_sequences: List should have at most 64 items, not 10000",
    ),
    ({"stop_sequences": ["x", ""]}, "stop_sequences.1: String should have at least 1 character"),
    ({"stop_sequences": [" \n"]}, "stop_sequences.0: String should hold more than whitespace"),
    (
        {"stop_sequences": ["x" * 1025]},
        "stop_sequences.0: String should have at most 1024 characters",
    ),
    ({"temperature": 2}, "temperature: Input should be less than or equal to 1"),
    ({"temperature": -1}, "temperature: Input should be greater than or equal to 0"),
    ({"temperature": "0.5"}, "temperature: Input should be a valid number"),
    ({"temperature": True}, "temperature: Input should be a valid number"),
    ({"temperature": 10**400}, "temperature: Input should be a valid number"),
    ({"top_p": 1.0001}, "top_p: Input should be less than or equal to 1"),
    ({"top_k": -1}, "top_k: Input should be greater than or equal to 0"),
    ({"top_k": 1.5}, "top_k: Input should be a valid integer"),
    ({"seed": -1}, "seed: Input should be greater than or equal to 0"),
    ({"seed": 2**63}, f"seed: Input should be less than or equal to {2**63 - 1}"),
    ({"service_tier": "x"}, "service_tier: Input should be 'auto' or 'standard_only'"),
    ({"speed": "slow"}, "speed: Input should be 'standard' or 'fast'"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id: Input should be a valid string"),
    (
        {"output_config": {"effort": "huge"}},
        "output_config.effort: Input should be 'low', 'medium', 'high', 'xhigh' or 'max'",
    ),
    (
        {"output_config": {"format": {"type": "json_schema"}}},
        "output_config.format.schema: Field required",
    ),
    (
        {"thinking": {"type": "on"}},
        "thinking.type: Input should be 'adaptive', 'enabled', 'disabled' or 'between_tools'",
    ),
    ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens: Field required"),
    (
        {"thinking": {"type": "enabled", "budget_tokens": 1}},
        "thinking.budget_tokens: Input should be greater than or equal to 1024",
    ),
    (
        {"thinking": {"type": "adaptive", "display": "all"}},
        "thinking.display: Input should be 'summarized', 'omitted' or 'updates'",
    ),
    ({"tools": [None]}, "tools.0: Input should be an object"),
    (
        {"tools": [{"name": "x", "input_schema": {}, "strict": "yes"}]},
        "tools.0.strict: Input should be a valid boolean",
    ),
    (
        {"tools": [{"name": "x", "input_schema": []}]},
        "tools.0.input_schema: Input should be an object",
    ),
    ({"tools": [{"type": "x" * 100_000}]}, f"tools.0.type: unknown tool type '{'x' * 60}…'"),
    ({"cache_control": {"type": "x"}}, "cache_control.type: Input should be 'ephemeral'"),
    ({"diagnostics": "msg_1"}, "diagnostics: Input should be an object"),
    (
        {"diagnostics": {"previous_message_id": 1}},
        "diagnostics.previous_message_id: Input should be a valid string",
    ),
    (
        {"context_management": {"edits": [{"type": "clear_all"}]}},
        "context_management.edits.0.type: Input should be 'clear_tool_uses_20250919',"
        " 'clear_thinking_20251015' or 'compact_20260112'",
    ),
]


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
@pytest.mark.parametrize(("fields", "message"), SHARED_FAULTS)
def test_a_fault_is_refused_with_its_path_by_both_endpoints(
    fields: dict[str, Any], message: str, kind: type[BaseRequest]
) -> None:
    assert refusal(body(**fields), kind) == message


@pytest.mark.parametrize(
    ("max_tokens", "message"),
    [
        ("10", "max_tokens: Input should be a valid integer"),
        (1e99, "max_tokens: Input should be a valid integer"),
        (1.5, "max_tokens: Input should be a valid integer"),
        (True, "max_tokens: Input should be a valid integer"),
        (None, "max_tokens: Input should be a valid integer"),
        (-5, "max_tokens: Input should be greater than or equal to 0"),
    ],
)
def test_max_tokens_must_be_a_count(max_tokens: Any, message: str) -> None:
    assert refusal(body(max_tokens=max_tokens)) == message


def test_a_misspelt_required_field_is_missed_by_its_right_name() -> None:
    misspelt = body(max_token=16)
    del misspelt["max_tokens"]
    assert refusal(misspelt) == "max_tokens: Field required"


def test_an_empty_object_lacks_the_model_first() -> None:
    assert refusal({}) == "model: Field required"
    assert refusal({}, CountTokensRequest) == "model: Field required"


def test_the_first_fault_in_the_document_is_reported() -> None:
    assert refusal({"top_k": -1, "messages": [{}], "model": 5}).startswith("top_k: ")
    assert refusal({"messages": [{}], "top_k": -1, "model": 5}).startswith("messages.0.role: ")
    assert refusal({"messages": [{}]}).startswith("messages.0.role: ")


def test_a_thinking_budget_must_leave_room_for_the_answer() -> None:
    thinking = {"type": "enabled", "budget_tokens": 2048}
    assert refusal(body(thinking=thinking, max_tokens=2048)) == (
        "thinking.budget_tokens: Input should be less than max_tokens (2048)"
    )
    validate(body(thinking=thinking, max_tokens=2049), MessagesRequest)


def test_a_long_unknown_type_is_quoted_in_part() -> None:
    assert len(refusal(holding({"type": "x" * 100_000}))) < 200


BLOCK = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"system": [BLOCK] * 100_001}, "system"),
        ({"tools": [{"name": "a", "input_schema": {}}] * 100_001}, "tools"),
        *(
            ({"messages": [{"role": role, "content": [BLOCK] * 100_001}]}, "messages.0.content")
            for role in ("user", "assistant", "system")
        ),
        (
            holding({"type": "tool_result", "tool_use_id": "a", "content": [BLOCK] * 100_001}),
            "messages.0.content.0.content",
        ),
    ],
)
def test_a_list_may_have_as_many_items_as_messages(fields: dict[str, Any], path: str) -> None:
    assert refusal(body(**fields)).startswith(f"{path}: List should have at most 100000 items")


@pytest.mark.parametrize("kind", [MessagesRequest, CountTokensRequest])
@pytest.mark.parametrize(
    "fields",
    [
        {"tools": None},
        {"tools": []},
        {"system": ""},
        {"system": []},
        {"max_tokens": 0},
        {"max_tokens": 2**63},
        {"temperature": 0},
        {"temperature": 1e-9},
        {"temperature": 0.5, "top_p": 0.5},
        {"top_p": 0},
        {"top_k": 0},
        {"top_k": 10**12},
        {"seed": 2**63 - 1},
        {"thinking": {"type": "adaptive", "display": "omitted"}},
        {"metadata": {"user_id": '{"device_id":"d0"}'}},
        {"messages": [{"role": "system", "content": [], "output_config": {"effort": "medium"}}]},
        {"messages": [{"role": "system", "output_config": {"effort": "medium"}}]},
        holding({"type": "text", "text": "x", "citations": None, "cache_control": None}),
        holding({"type": "text", "text": "x", "cache_control": {"type": "ephemeral", "ttl": "1h"}}),
        holding({"type": "tool_result", "tool_use_id": "a"}),
        holding({"type": "tool_result", "tool_use_id": "a", "content": None, "is_error": None}),
        holding({"type": "thinking", "thinking": "", "signature": ""}, "assistant"),
        holding({"type": "thinking", "thinking": "", "signature": None}, "assistant"),
        holding({"type": "thinking", "thinking": "", "cache_control": None}, "assistant"),
        holding({"type": "web_search_tool_result", "tool_use_id": "a"}, "assistant"),
    ],
)
def test_legal_variants_are_accepted_by_both_endpoints(
    fields: dict[str, Any], kind: type[BaseRequest]
) -> None:
    validate(body(**fields), kind)


def test_null_means_absent_for_every_optional_field() -> None:
    optional = [n for n, f in MessagesRequest.model_fields.items() if not f.is_required()]
    nulls = validate(body(**dict.fromkeys(optional)), MessagesRequest)
    assert dict(nulls) == dict(validate(body(), MessagesRequest))


def test_unknown_fields_are_kept_apart_whatever_their_name() -> None:
    unknown = {"safeguards": {"x": 1}, "model_config": 1, "__class__": 2, "copy": None}
    request = validate(body(**unknown), MessagesRequest)
    assert request.model_extra == unknown


def test_counting_ignores_max_tokens() -> None:
    validate(body(max_tokens="any"), CountTokensRequest)
