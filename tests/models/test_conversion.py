"""The converted default model against torch and transformers reading the same GGUF file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from models.catalog import PACKAGED, inspect

FIXTURES = Path(__file__).parent / "fixtures"
REFERENCE = json.loads((FIXTURES / "smollm2_reference_tokens.json").read_text(encoding="utf-8"))
CASES = REFERENCE["cases"]


@pytest.fixture(scope="module")
def tokenizer(smollm2: Path) -> Tokenizer:
    return Tokenizer.from_file(str(smollm2 / "tokenizer.json"))


def test_the_reference_read_the_weights_that_we_pin(smollm2: Path):
    assert REFERENCE["gguf_sha256"] == PACKAGED["smollm2-135m-instruct"].sha256
    assert inspect(smollm2).weights_sha256 == REFERENCE["gguf_sha256"]


def test_prompts_become_the_same_ids_as_in_the_reference(tokenizer: Tokenizer):
    ours = [tokenizer.encode(case["prompt"], add_special_tokens=False).ids for case in CASES]
    assert ours == [case["prompt_ids"] for case in CASES]


def test_greedy_tokens_equal_the_reference(smollm2: Path):
    done = subprocess.run(
        [sys.executable, str(FIXTURES / "greedy_tokens.py"), str(smollm2), "64"],
        input=json.dumps([case["prompt_ids"] for case in CASES]),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [case["generated_ids"] for case in CASES]


def test_the_folder_says_what_the_model_can_do(smollm2: Path):
    checkpoint = inspect(smollm2)
    assert checkpoint.context_tokens == 8192
    assert checkpoint.vocabulary == 49152
    assert checkpoint.stop_ids == {2}
    assert "<|im_start|>" in checkpoint.chat_template()


# The vocabulary lacks these, so its authors' tokenizer drops them too: control characters, bytes
# of unassigned planes, and bytes that UTF-8 never uses.
ABSENT = {0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, 0xC0, 0xC1, 0xF1, 0xF2, *range(0xF5, 0x100)}


@settings(deadline=None, max_examples=200)
@given(text=st.text(st.characters(exclude_categories=("Cs",)), max_size=200))
def test_any_text_survives_the_tokenizer_byte_for_byte(tokenizer: Tokenizer, text: str):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    kept = bytes(byte for byte in text.encode() if byte not in ABSENT)
    spelled = "".join(tokenizer.id_to_token(id) for id in ids)
    assert bytes(BYTE_OF[character] for character in spelled) == kept
    assert tokenizer.decode(ids, skip_special_tokens=False) == kept.decode(errors="replace")


def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + place): byte for place, byte in enumerate(others)
    }


BYTE_OF = _byte_of_character()
