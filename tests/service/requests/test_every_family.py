"""Every legal history has a prompt in every family, the same for counting and for answering."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest

from models.catalog import Checkpoint, inspect
from models.families.family import Family
from models.families.gemma3 import Gemma3Family
from models.families.gemma4 import Gemma4Family
from models.families.glimmer import GlimmerFamily
from models.families.llama import LlamaFamily
from models.families.qwen import QwenFamily
from service.errors import ApiError
from service.guiding import Guides
from service.prompts import Prompt, Prompts
from service.requests.prepare import conversation_of
from service.requests.served import Served
from service.wire.requests import BaseRequest, CountTokensRequest, MessagesRequest
from service.wire.validation import validate
from tests.service.requests.served import (
    SIGNER,
    assistant,
    call,
    result,
    system,
    text,
    tool,
    user,
)
from tests.support.tiny_checkpoint import write_tiny_checkpoint
from tests.support.tiny_gemma import write_tiny_gemma3, write_tiny_gemma4
from tests.support.tiny_glimmer import write_tiny_glimmer
from tests.support.tiny_qwen import Generation, write_tiny_qwen

FAMILIES: dict[str, tuple[Callable[[Path], Path], Callable[[Checkpoint], Family]]] = {
    "llama": (write_tiny_checkpoint, LlamaFamily),
    "gemma3": (write_tiny_gemma3, Gemma3Family),
    "gemma4": (write_tiny_gemma4, Gemma4Family),
    "glimmer": (write_tiny_glimmer, GlimmerFamily),
    **{
        each: (partial(write_tiny_qwen, generation=each), QwenFamily)
        for each in get_args(Generation)
    },
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    write, make = FAMILIES[request.param]
    return make(inspect(write(tmp_path_factory.mktemp("models") / "tiny")))


THOUGHT = {
    "type": "thinking",
    "thinking": "Hm.",
    "signature": SIGNER.sign("Hm.", "tiny", "msg_1", 0),
}
HISTORIES: dict[str, list[dict[str, Any]]] = {
    "two user messages": [user("a"), user("b")],
    "after a cancelled call": [
        user("a"),
        assistant([call("1")]),
        user([result("1", "cancelled", is_error=True)]),
        user("b"),
    ],
    "assistant first": [assistant("a"), user("b")],
    "late system": [user("a"), system("b"), assistant("c"), user("d"), system("e")],
    "only system and one user": [system("a"), user("b")],
    "system between calls and results": [
        user("a"),
        assistant([call("1")]),
        system("b"),
        user([result("1")]),
    ],
    "result then text": [user("a"), assistant([call("1")]), user([result("1", "b"), text("c")])],
    "text beside calls": [
        user("a"),
        assistant([text("b"), call("1", x=[1, None]), text("c"), call("2", "Gone")]),
        user([result("2"), result("1")]),
    ],
    "only thinking": [user("a"), assistant([THOUGHT]), user("b")],
    "thinking and calls": [user("a"), assistant([THOUGHT, call("1")]), user([result("1")])],
    "thinking and text": [user("a"), assistant([THOUGHT, text("b")]), user("c")],
    "nothing said": [user("a"), assistant(""), user("b")],
    "begun": [user("a"), assistant("b")],
    "begun after a call": [
        user("a"),
        assistant([call("1")]),
        user([result("1")]),
        assistant("b"),
    ],
}
TOOLS: list[list[dict[str, Any]]] = [
    [],
    [tool("Read")],
    [tool("Read", input_schema={}), tool("Run", description="", strict=True)],
]


async def prompt(kind: type[BaseRequest], family: Family, **fields: Any) -> Prompt:
    body = {"model": "m", "max_tokens": 2000, **fields}
    served = Served("tiny", family.capabilities, SIGNER)
    prompts = Prompts(family, Guides(family), 10_000)
    return await prompts.prepare(conversation_of(validate(body, kind), served))


@pytest.mark.anyio
@pytest.mark.parametrize("name", HISTORIES)
async def test_a_history_has_the_same_prompt_for_both_endpoints(family: Family, name: str) -> None:
    kinds = ("adaptive", "disabled") if family.capabilities.thinking else ("adaptive",)
    for tools in TOOLS if family.capabilities.tools else TOOLS[:1]:
        for kind in kinds:
            for first in (None, "Be kind."):
                fields: dict[str, Any] = {
                    "messages": HISTORIES[name],
                    "tools": tools,
                    "thinking": {"type": kind},
                    "system": first,
                }
                counted = await prompt(CountTokensRequest, family, **fields)
                answered = await prompt(MessagesRequest, family, **fields)
                assert len(counted.ids) > 0
                assert counted == answered
                family.parser(answered.plan.form, answered.plan.opens)


@pytest.mark.anyio
async def test_strings_and_blocks_have_the_same_prompt(family: Family) -> None:
    strings = [user("a"), system("b"), assistant("c"), user("d")]
    blocks = [{**each, "content": [text(each["content"])]} for each in strings]
    assert await prompt(MessagesRequest, family, messages=strings) == await prompt(
        MessagesRequest, family, messages=blocks
    )


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"x": value}
    return value


@pytest.mark.anyio
@pytest.mark.parametrize(
    "input",
    [
        {"x": 10**30},
        {"x": int("9" * 1000)},
        {"x": 1e308, "y": -0.0},
        {"": 1, "\0": "\0", "<|im_end|>": "</parameter>", "<|eom|>": "<end_of_turn>"},
        nested(400),
    ],
)
async def test_any_arguments_can_be_shown_and_described(
    family: Family, input: dict[str, Any]
) -> None:
    messages = [user("a"), assistant([call("1", **input)]), user([result("1")])]
    assert len((await prompt(MessagesRequest, family, messages=messages)).ids) > 0
    if not family.capabilities.tools:
        return
    schema = {"type": "object", "properties": {"p": {"const": input}}}
    refused: list[str] = []
    try:
        await prompt(
            MessagesRequest, family, tools=[tool("a", input_schema=schema)], messages=messages
        )
    except ApiError as error:
        refused.append(error.message)
    assert all(each.startswith("tools.0.input_schema: ") for each in refused)
