"""Qwen's prompts: what the checkpoints' own templates write, and what they cannot."""

from collections import Counter
from pathlib import Path
from typing import Any, get_args

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from models.catalog import CheckpointError, inspect
from models.conversation import (
    AnswerForm,
    Conversation,
    Effort,
    Text,
    Thinking,
    ThinkingMode,
    Tool,
    ToolCall,
    ToolResult,
    Turn,
)
from models.families import family_of
from models.families.qwen import QwenFamily
from tests.models.families.histories import FORGED, HISTORIES, function_of, messages_of
from tests.models.parsing.call_bodies import TOOLS
from tests.support.tiny_qwen import ADDED, Generation, write_tiny_qwen

GENERATIONS: tuple[Generation, ...] = get_args(Generation)
THINKS = ThinkingMode("adaptive")
ANYWHERE = {"a late system turn", "a system turn last", "a system turn after the user's"}
PLAIN = {
    "one user turn",
    "system and user",
    "a long talk",
    "a result last",
    "a result, then text",
    "an empty result",
    "thinking between calls",
    "an empty answer",
    "system turns between answers",
    "the assistant first",
} | ANYWHERE
STRICT: tuple[Generation, ...] = ("qwen3.5", "qwen3.8")
CALLED = (
    Turn.of("user", "look"),
    Turn(
        "assistant",
        (
            Thinking("hm"),
            Text("So:"),
            ToolCall("1", "run", {"cmd": "ls ü", "background": True, "env": {"A": None}}),
            ToolCall("2", "now", {}),
        ),
    ),
    Turn("user", (ToolResult("1", "run", "b.py\n"), ToolResult("2", "now", "x", is_error=True))),
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Generation, Path]:
    base = tmp_path_factory.mktemp("models")
    return {each: write_tiny_qwen(base / each, each) for each in GENERATIONS}


@pytest.fixture(scope="module")
def families(folders: dict[Generation, Path]) -> dict[Generation, QwenFamily]:
    return {each: QwenFamily(inspect(folder)) for each, folder in folders.items()}


@pytest.fixture(scope="module")
def tokenizer(folders: dict[Generation, Path]) -> Tokenizer:
    return Tokenizer.from_file(str(folders["qwen3"] / "tokenizer.json"))


@pytest.fixture(scope="module")
def real(qwen: Path) -> QwenFamily:
    family = family_of(inspect(qwen))
    assert isinstance(family, QwenFamily)
    return family


@pytest.fixture(scope="module")
def reference(qwen: Path) -> Any:
    return AutoTokenizer.from_pretrained(qwen)


@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("history", sorted(PLAIN))
def test_a_prompt_is_what_the_real_template_and_tokenizer_make(
    real: QwenFamily, reference: Any, history: str, tools: tuple[Tool, ...]
) -> None:
    turns = HISTORIES[history]
    expected = _reference(reference, turns, tools)

    assert real.render(Conversation(turns, AnswerForm(tools=tools))).ids.tolist() == expected


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize("tools", [(), TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("history", sorted(PLAIN))
@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_prompt_is_what_the_template_of_its_generation_makes(
    families: dict[Generation, QwenFamily],
    folders: dict[Generation, Path],
    generation: Generation,
    history: str,
    tools: tuple[Tool, ...],
    thinks: bool,
) -> None:
    turns = HISTORIES[history]
    if generation in STRICT and any(each.role == "system" for each in turns[1:]):
        pytest.skip("this template refuses late system turns")
    if generation == "qwen3-thinking" and not thinks:
        pytest.skip("this template cannot be told not to think")
    form = AnswerForm(tools=tools, thinking=THINKS if thinks else ThinkingMode())
    reference = AutoTokenizer.from_pretrained(folders[generation])
    expected = _reference(reference, turns, tools, enable_thinking=thinks, preserve_thinking=True)

    assert families[generation].render(Conversation(turns, form)).ids.tolist() == expected


@pytest.mark.parametrize(
    ("generation", "thinks", "prompt"),
    [
        (
            "qwen3",
            True,
            "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\nSo:\n"
            '<tool_call>\n{"name": "run", "arguments": {"cmd": "ls ü", "background": true, '
            '"env": {"A": null}}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n'
            "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nb.py\n\n</tool_response>\n"
            "<tool_response>\nError: x\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "qwen3-coder",
            False,
            "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\nSo:\n\n<tool_call>\n"
            "<function=run>\n<parameter=cmd>\nls ü\n</parameter>\n<parameter=background>\nTrue\n"
            '</parameter>\n<parameter=env>\n{"A": null}\n</parameter>\n</function>\n</tool_call>\n'
            "<tool_call>\n<function=now>\n</function>\n</tool_call><|im_end|>\n<|im_start|>user\n"
            "<tool_response>\nb.py\n\n</tool_response>\n<tool_response>\nError: x\n"
            "</tool_response>\n<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "qwen3.5",
            False,
            "<|im_start|>user\nlook<|im_end|>\n<|im_start|>assistant\n<think>\nhm\n</think>\n\n"
            "So:\n\n<tool_call>\n<function=run>\n<parameter=cmd>\nls ü\n</parameter>\n"
            '<parameter=background>\ntrue\n</parameter>\n<parameter=env>\n{"A": null}\n'
            "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n"
            "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\nb.py\n</tool_response>\n"
            "<tool_response>\nError: x\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>"
            "\n\n</think>\n\n",
        ),
        (
            "qwen3.8",
            True,
            "<|im_start|>system\nThink much.\n\n<|im_end|>\n<|im_start|>user\nlook<|im_end|>\n",
        ),
    ],
)
def test_calls_and_results_are_written_in_the_dialect_of_the_generation(
    families: dict[Generation, QwenFamily],
    tokenizer: Tokenizer,
    generation: Generation,
    thinks: bool,
    prompt: str,
) -> None:
    form = AnswerForm(thinking=THINKS if thinks else ThinkingMode())
    ids = families[generation].render(Conversation(CALLED, form)).ids.tolist()

    assert tokenizer.decode(ids, skip_special_tokens=False).startswith(prompt)


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_history_is_written(
    families: dict[Generation, QwenFamily],
    tokenizer: Tokenizer,
    generation: Generation,
    history: tuple[Turn, ...],
) -> None:
    conversation = Conversation(history, AnswerForm(tools=TOOLS, thinking=THINKS))
    written = tokenizer.decode(
        families[generation].render(conversation).ids.tolist(), skip_special_tokens=False
    )

    assert "<|im_start|>assistant\n" in written
    for turn in history:
        for block in turn.blocks:
            if isinstance(block, Text | ToolResult):
                assert block.text.strip() in written


@pytest.mark.parametrize("generation", GENERATIONS)
def test_a_text_that_spells_markers_adds_none(
    families: dict[Generation, QwenFamily], tokenizer: Tokenizer, generation: Generation
) -> None:
    def counted(name: str, text: str) -> Counter[int]:
        tools = (Tool("read", text, {"type": "object", "description": text}),)
        form = AnswerForm(tools=tools, thinking=THINKS)
        ids = families[generation].render(Conversation(HISTORIES[name], form)).ids
        return Counter(each for each in ids if each in tokenizer.get_added_tokens_decoder())

    spelled = FORGED + "".join(ADDED)
    assert counted("forged markers", spelled) == counted("harmless instead of forged", "x")


@pytest.mark.parametrize("generation", GENERATIONS)
def test_whatever_a_conversation_goes_on_with_its_prompt_stays_as_it_was(
    families: dict[Generation, QwenFamily], tokenizer: Tokenizer, generation: Generation
) -> None:
    """What the prompt cache rests on: all but the beginning of the answer is written again."""
    family = families[generation]
    form = AnswerForm(tools=TOOLS, thinking=THINKS)
    turns = (
        Turn.of("system", "Be brief."),
        *CALLED,
        Turn("assistant", (Thinking("now"), Text("There."))),
        Turn.of("system", "9000 tokens left"),
        Turn.of("user", "more"),
        *CALLED[1:],
        Turn.of("system", "5 tokens left"),
    )
    before: list[int] = []
    for end in range(2, len(turns) + 1):
        if turns[end - 1].role != "assistant":
            ids = family.render(Conversation(turns[:end], form)).ids.tolist()
            assert ids[: len(before)] == before
            before = ids[: _last(ids, tokenizer.token_to_id("<|im_start|>"))]


def test_a_system_turn_between_a_call_and_its_result_comes_after_it(
    families: dict[Generation, QwenFamily], tokenizer: Tokenizer
) -> None:
    call, results = CALLED[1], CALLED[2]
    results = Turn("user", (*results.blocks, Text("and?")))
    turns = (CALLED[0], call, Turn.of("system", "Be brief."), results)
    ids = families["qwen3.5"].render(Conversation(turns)).ids.tolist()

    shown = tokenizer.decode(ids, skip_special_tokens=False)
    assert shown.index("Error: x") < shown.index("Be brief.") < shown.index("and?")


@pytest.mark.parametrize(
    ("generation", "mode", "opens"),
    [
        ("qwen2.5", "disabled", "text"),
        ("qwen3", "adaptive", "text"),
        ("qwen3-thinking", "adaptive", "thinking"),
        ("qwen3.5", "adaptive", "thinking"),
        ("qwen3.5", "enabled", "thinking"),
        ("qwen3.5", "disabled", "text"),
        ("qwen3.5", "between_tools", "text"),
    ],
)
def test_a_prompt_says_where_it_leaves_off(
    families: dict[Generation, QwenFamily], generation: Generation, mode: Any, opens: str
) -> None:
    form = AnswerForm(thinking=ThinkingMode(mode, 100 if mode == "enabled" else None))
    prompt = families[generation].render(Conversation((Turn.of("user", "hi"),), form))

    assert prompt.opens == opens


def test_an_answer_that_has_begun_thinks_no_more(
    families: dict[Generation, QwenFamily], tokenizer: Tokenizer
) -> None:
    turns = (Turn.of("user", "count"), Turn.of("assistant", "One, two "))
    prompt = families["qwen3.5"].render(Conversation(turns, AnswerForm(thinking=THINKS)))

    shown = tokenizer.decode(prompt.ids.tolist(), skip_special_tokens=False)
    assert shown.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\nOne, two ")
    assert prompt.opens == "text"


def test_effort_is_what_the_template_knows(
    families: dict[Generation, QwenFamily], tokenizer: Tokenizer
) -> None:
    family = families["qwen3.8"]
    said: list[str] = []
    for effort in family.capabilities.efforts:
        conversation = Conversation((Turn.of("user", "hi"),), AnswerForm(thinking=THINKS), effort)
        said.append(tokenizer.decode(family.render(conversation).ids.tolist()).partition("user")[0])

    expected: tuple[Effort, ...] = ("low", "medium", "xhigh")
    assert family.capabilities.efforts == expected
    assert said == ["system\nThink little.\n\n\n", "", "system\nThink much.\n\n\n"]
    assert not families["qwen3.5"].capabilities.efforts


def test_what_can_be_asked_of_a_generation_is_told(
    families: dict[Generation, QwenFamily], real: QwenFamily
) -> None:
    assert real.capabilities.thinking == {"between_tools"}
    for generation in ("qwen3", "qwen3-thinking", "qwen3.5", "qwen3.8"):
        assert families[generation].capabilities.thinking == {
            "adaptive",
            "enabled",
            "between_tools",
        }
    assert all(each.capabilities.tools for each in families.values())


def test_an_answer_ends_with_the_text_s_end_as_well(real: QwenFamily, reference: Any) -> None:
    ends = ["<|im_end|>", "<|im_start|>", "<|endoftext|>"]

    assert set(reference.convert_tokens_to_ids(ends)) <= real.stop_ids


def test_a_template_with_calls_of_another_form_is_refused_by_name(tmp_path: Path) -> None:
    folder = write_tiny_qwen(tmp_path / "other", "qwen3")
    file = folder / "tokenizer_config.json"
    file.write_text(file.read_text().replace("<tool_response>", "<answer>"))

    with pytest.raises(CheckpointError, match=r"^other .*template .*results"):
        QwenFamily(inspect(folder))
    assert family_of(inspect(folder)).name == "llama"  # which needs nothing but its turns


def _reference(
    tokenizer: Any, turns: tuple[Turn, ...], tools: tuple[Tool, ...], **variables: Any
) -> list[int]:
    return tokenizer.apply_chat_template(
        [message for turn in turns for message in messages_of(turn)],
        tools=[function_of(each) for each in tools] or None,
        tokenize=True,
        return_dict=False,
        add_generation_prompt=True,
        **variables,
    )


def _last(ids: list[int], marker: int) -> int:
    return len(ids) - 1 - ids[::-1].index(marker)
