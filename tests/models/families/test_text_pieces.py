"""Long texts are encoded in pieces, to the tokens that they have as wholes."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, normalizers
from tokenizers.pre_tokenizers import ByteLevel, Sequence, Split

from models.families.encoded_texts import EncodedTexts
from models.families.text_pieces import TextPieces

# How checkpoints divide texts into words, beside the ways of those that tests have.
_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
SPLITTERS = {
    "llama 3": _CONTRACTIONS
    + rf"|{_BEFORE}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_REST}",
    "qwen 3.5": _CONTRACTIONS
    + rf"|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_REST}",
    "o200k": rf"{_BEFORE}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?"
    + rf"|{_BEFORE}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?"
    + rf"|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*{_REST}",
}
# Spaces are parts, too.
PARTS = re.split(
    r"(\s)",
    "a B the word 's ' 1 22 333 . , ... _ - ( ) { } / e\u0301 \u0301 \u00e9 \u00b2 \u2019 \u216f"
    " \u4f60\u597d \u3002 \uff0c \ud55c \u1100\u1161 \u0e01\u0e47 \U0001f600 \u200d\n"
    "<|im_start|>\r\n\t\u3000",
)


@pytest.fixture(params=[None, *SPLITTERS])
def tokenizer(smollm2: Path, request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    tokenizer.encode_special_tokens = True
    if request.param:
        words = Split(Regex(SPLITTERS[request.param]), "isolated")
        tokenizer.pre_tokenizer = Sequence([words, ByteLevel(False, use_regex=False)])
        tokenizer.normalizer = normalizers.NFC()
    return tokenizer


def test_a_text_has_the_tokens_of_its_pieces(tokenizer: Tokenizer) -> None:
    pieces = TextPieces(tokenizer, characters=1)

    @settings(deadline=None)
    @given(st.lists(st.sampled_from(PARTS), max_size=40).map("".join))
    def check(text: str) -> None:
        cut = pieces.of(text)
        assert "".join(cut) == text
        encoded = tokenizer.encode_batch_fast([text, *cut], add_special_tokens=False)
        whole, *parts = [each.ids for each in encoded]
        assert whole == [id for each in parts for id in each]

    check()


@pytest.mark.parametrize(
    "text", ["one two three", "1.5,2.5\n3.5", "a1b2c3d4", "\u4f60\u3002\u597d\u3002"]
)
def test_texts_of_all_kinds_are_cut(tokenizer: Tokenizer, text: str) -> None:
    assert len(TextPieces(tokenizer, characters=1).of(text)) >= 2


@pytest.mark.parametrize("text", ["a" * 1000, " " * 1000, "\u4f60" * 1000, "1" * 1000])
def test_a_word_is_not_cut(tokenizer: Tokenizer, text: str) -> None:
    assert TextPieces(tokenizer, characters=1).of(text) == [text]


def test_a_tokenizer_that_looks_at_texts_as_wholes_gets_them_so(smollm2: Path) -> None:
    text = "one two three"
    for change in (
        {"pre_tokenizer": ByteLevel(add_prefix_space=True)},
        {"normalizer": normalizers.Replace(" ", "\u2581")},
    ):
        tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
        for name, value in change.items():
            setattr(tokenizer, name, value)
        assert TextPieces(tokenizer, characters=1).of(text) == [text]


def test_a_long_text_is_encoded_as_one(smollm2: Path) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    text = "".join(f"line {n}: 'tis {n * n}.\n" for n in range(20_000))
    assert len(TextPieces(tokenizer).of(text)) > 3
    ids, again = EncodedTexts(tokenizer).of([text, text])
    assert ids.tolist() == again.tolist() == tokenizer.encode(text).ids
