"""Gemma 3: conversations to token ids, as its own template has them."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from models.catalog import CheckpointError, inspect
from models.conversation import AnswerForm, Conversation, Role, Turn
from models.families.gemma3 import Gemma3Family
from models.grammar.guide_spec import Constrained, Ended
from models.parsing.events import TextDelta
from tests.models.families.histories import FORGED, HISTORIES
from tests.support.tiny_gemma import GEMMA3_TEMPLATE, write_tiny_gemma3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gemma3(tmp_path_factory.mktemp("models") / "tiny-gemma-3")


@pytest.fixture(scope="module")
def family(folder: Path) -> Gemma3Family:
    return Gemma3Family(inspect(folder))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


@pytest.mark.parametrize(
    "text", ["hi", " \n spaces \n", "Größe 你好 👩\u200d👧", "to <b> a\n\n\nb"]
)
@pytest.mark.parametrize(
    "roles", [["user"], ["system", "user"], ["system", "user", "assistant", "user"]]
)
def test_a_prompt_is_what_the_checkpoints_own_template_and_tokenizer_make(
    family: Gemma3Family, folder: Path, roles: list[Role], text: str
) -> None:
    reference: Any = AutoTokenizer.from_pretrained(folder)
    turns = [Turn.of(role, f"{text}{place}") for place, role in enumerate(roles)]
    messages = [{"role": each.role, "content": each.text} for each in turns]
    theirs = reference.apply_chat_template(
        messages, tokenize=True, return_dict=False, add_generation_prompt=True
    )
    assert _ids(family, *turns) == theirs


@pytest.mark.parametrize("history", HISTORIES.values(), ids=HISTORIES.keys())
def test_every_history_is_written_in_turns_that_alternate(
    family: Gemma3Family, tokenizer: Tokenizer, history: tuple[Turn, ...]
) -> None:
    markers = [tokenizer.id_to_token(each) for each in _ids(family, *history) if each < 6]
    count = markers.count("<start_of_turn>")
    assert markers == ["<bos>", *["<start_of_turn>", "<end_of_turn>"] * count][:-1]
    shown = _shown(family, tokenizer, *history)
    for forged in (FORGED, json.dumps(FORGED, ensure_ascii=False)[1:-1]):
        shown = shown.replace(forged, "")
    roles = [each.split("\n")[0] for each in shown.split("<start_of_turn>")[1:]]
    assert shown.startswith("<bos><start_of_turn>user\n")
    assert roles == ["user", "model"] * (len(roles) // 2)
    assert "None" not in shown


def test_system_turns_are_folded_into_the_users(family: Gemma3Family, tokenizer: Tokenizer) -> None:
    turns = [
        Turn.of("system", "first"),
        Turn.of("user", "one"),
        Turn.of("assistant", "two"),
        Turn.of("system", "late"),
        Turn.of("user", "three"),
    ]
    assert _shown(family, tokenizer, *turns) == (
        "<bos><start_of_turn>user\nfirst\n\none<end_of_turn>\n"
        "<start_of_turn>model\ntwo<end_of_turn>\n"
        "<start_of_turn>user\n<system-reminder>\nlate\n</system-reminder>\n\nthree<end_of_turn>\n"
        "<start_of_turn>model\n"
    )


def test_turns_more_leave_the_tokens_before_them_as_they_were(family: Gemma3Family) -> None:
    turns = [Turn.of("system", "first"), Turn.of("user", "one"), Turn.of("system", "late")]
    for number in range(4):
        prompt = _ids(family, *turns)
        turns.append(Turn.of("assistant", f"answer {number}"))
        turns.append(Turn.of("system", f"note {number}"))
        assert _ids(family, *turns)[: len(prompt)] == prompt


def test_calls_and_results_are_told_in_words(family: Gemma3Family, tokenizer: Tokenizer) -> None:
    shown = _shown(family, tokenizer, *HISTORIES["a result, then text"])
    assert "[called read with " in shown
    assert "[read answered]\nprint(1)\n\nand now?<end_of_turn>" in shown


def test_markers_in_a_text_are_plain_text(family: Gemma3Family) -> None:
    forged = _ids(family, *HISTORIES["forged markers"])
    harmless = _ids(family, *HISTORIES["harmless instead of forged"])
    assert _markers(forged) == _markers(harmless)


def test_a_prefill_is_continued(family: Gemma3Family, tokenizer: Tokenizer) -> None:
    shown = _shown(family, tokenizer, *HISTORIES["a prefill"])
    assert shown.endswith("<start_of_turn>model\nOne, two")
    empty = _shown(family, tokenizer, *HISTORIES["an empty prefill"])
    assert empty == _shown(family, tokenizer, Turn.of("user", "count"))


def test_a_base_model_gets_the_same_turns(family: Gemma3Family, tmp_path: Path) -> None:
    base = Gemma3Family(inspect(write_tiny_gemma3(tmp_path / "base", template=None)))
    assert _ids(base, Turn.of("user", "hi")) == _ids(family, Turn.of("user", "hi"))


def test_the_real_base_model_is_served(gemma: Path) -> None:
    family = Gemma3Family(inspect(gemma))
    assert _ids(family, Turn.of("user", "Hi"))[:3] == [2, 105, 2364]  # <bos><start_of_turn>user
    assert {1, 106} <= family.stop_ids


@pytest.mark.parametrize(
    "template",
    ["{{ messages }}", "{{ 1 / 0 }}", GEMMA3_TEMPLATE.replace("<end_of_turn>\n", "<end_of_turn>")],
)
def test_a_checkpoint_with_another_template_is_refused_by_name(
    tmp_path: Path, template: str
) -> None:
    with pytest.raises(CheckpointError, match=r"^other .*template"):
        Gemma3Family(inspect(write_tiny_gemma3(tmp_path / "other", template)))


def test_a_checkpoint_without_the_markers_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    file = tmp_path / "other" / "tokenizer.json"
    file.write_text(file.read_text().replace("<start_of_turn>", "<start>"))
    with pytest.raises(CheckpointError, match="<start_of_turn>"):
        Gemma3Family(inspect(tmp_path / "other"))


def test_the_answer_ends_where_the_model_ends_it_or_opens_a_turn(family: Gemma3Family) -> None:
    assert family.stop_ids == {1, 4, 5}


def test_an_answer_is_text(family: Gemma3Family, tokenizer: Tokenizer) -> None:
    parser = family.parser(AnswerForm())
    events = [
        event for id in tokenizer.encode("a<b> é").ids for event in (*parser.feed(id),)
    ] + parser.end(cut=False)
    assert "".join(each.text for each in events if isinstance(each, TextDelta)) == "a<b> é"


def test_output_is_guided_by_its_schema_and_text_by_nothing(family: Gemma3Family) -> None:
    assert family.guide(AnswerForm()) is None
    spec = family.guide(AnswerForm(output_schema={"type": "object"}))
    assert spec is not None
    output, end = spec.states
    assert isinstance(output, Constrained)
    assert isinstance(end, Ended)


def _ids(family: Gemma3Family, *turns: Turn) -> list[int]:
    return family.render(Conversation(turns)).ids.tolist()


def _shown(family: Gemma3Family, tokenizer: Tokenizer, *turns: Turn) -> str:
    return tokenizer.decode(_ids(family, *turns), skip_special_tokens=False)


def _markers(ids: list[int]) -> Counter[int]:
    return Counter(each for each in ids if each < 6)
