"""Converted real models against torch, transformers and llama.cpp reading the same GGUF files."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from models.catalog import PACKAGED, CheckpointError, inspect
from models.parsing.token_text import TokenBytes

FIXTURES = Path(__file__).parent / "fixtures"
IDS = {
    "smollm2": "smollm2-135m-instruct",
    "qwen": "qwen2.5-coder-0.5b-instruct",
    "gemma": "gemma-3-270m",
}
# Which of the five prompts are answered again, and how many tokens of it: all was compared when the
# reference was made. The larger models get the code and the German.
GREEDY = {"smollm2": (slice(None), 12), "qwen": (slice(1, 5, 3), 8), "gemma": (slice(1, 5, 3), 8)}


def fixture(name: str) -> Any:
    return json.loads((FIXTURES / name).read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=IDS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(name: str, request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(name)


@pytest.fixture(scope="module")
def smollm2_tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


@pytest.fixture(scope="module")
def qwen_tokenizer(qwen: Path) -> Tokenizer:
    return Tokenizer.from_file(str(qwen / "tokenizer.json"))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_the_reference_read_the_weights_that_we_pin(name: str, folder: Path):
    pinned = PACKAGED[IDS[name]].sha256
    assert fixture(f"{name}_reference_tokens.json")["gguf_sha256"] == pinned
    assert inspect(folder).weights_sha256 == pinned


def test_prompts_become_the_same_ids_as_in_the_reference(name: str, tokenizer: Tokenizer):
    cases = fixture(f"{name}_reference_tokens.json")["cases"]
    starts = name == "gemma"  # a base model's prompts, which have no markers in them
    ours = [tokenizer.encode(case["prompt"], add_special_tokens=starts).ids for case in cases]
    assert ours == [case["prompt_ids"] for case in cases]


def test_greedy_tokens_equal_the_reference(name: str, folder: Path):
    which, count = GREEDY[name]
    cases = fixture(f"{name}_reference_tokens.json")["cases"][which]
    done = subprocess.run(
        [sys.executable, str(FIXTURES / "greedy_tokens.py"), str(folder), str(count)],
        input=json.dumps([case["prompt_ids"] for case in cases]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [case["generated_ids"][:count] for case in cases]


@pytest.mark.parametrize("name", ["qwen", "gemma"], scope="module", indirect=True)
def test_texts_become_the_same_ids_as_in_llama_cpp(name: str, tokenizer: Tokenizer):
    for text, ids in fixture(f"{name}_token_ids.json"):
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids, text
        assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_the_folders_say_what_the_models_can_do(smollm2: Path, qwen: Path):
    checkpoint = inspect(smollm2)
    assert (checkpoint.context_tokens, checkpoint.vocabulary) == (8192, 49152)
    assert checkpoint.stop_ids == {2}
    assert "<|im_start|>" in checkpoint.chat_template()
    checkpoint = inspect(qwen)
    assert (checkpoint.context_tokens, checkpoint.vocabulary) == (32768, 151936)
    assert checkpoint.stop_ids == {151643, 151645}
    assert "<tool_call>" in checkpoint.chat_template()


def test_gemma_is_a_base_model_and_its_terms_are_kept(gemma: Path):
    checkpoint = inspect(gemma)
    assert (checkpoint.context_tokens, checkpoint.vocabulary) == (32768, 262144)
    assert checkpoint.stop_ids == {1}
    with pytest.raises(CheckpointError, match="no chat template"):
        checkpoint.chat_template()
    assert (gemma / "TERMS.txt").read_text().startswith("Gemma Terms of Use\n")


@settings(deadline=None, max_examples=200)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=200))
def test_qwen_spells_any_text_in_composed_characters(qwen_tokenizer: Tokenizer, text: str):
    spell = TokenBytes(qwen_tokenizer).__getitem__
    ids = qwen_tokenizer.encode(text, add_special_tokens=False).ids
    composed = qwen_tokenizer.normalizer.normalize_str(text)
    assert b"".join(map(spell, ids)) == composed.encode()


# The vocabulary lacks these, so its authors' tokenizer drops them too: control characters, bytes
# of unassigned planes, and bytes that UTF-8 never uses.
ABSENT = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}


@settings(deadline=None, max_examples=200)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=200))
def test_smollm2_spells_any_text_byte_for_byte(smollm2_tokenizer: Tokenizer, text: str):
    ids = smollm2_tokenizer.encode(text, add_special_tokens=False).ids
    kept = bytes(byte for byte in text.encode() if byte not in ABSENT)
    spelled = "".join(smollm2_tokenizer.id_to_token(id) for id in ids)
    assert bytes(BYTE_OF[character] for character in spelled) == kept
    assert smollm2_tokenizer.decode(ids, skip_special_tokens=False) == kept.decode(errors="replace")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


BYTE_OF = _byte_of_character()
