"""Tokenizers rebuilt from tiny GGUF files."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor, sentencepiece_model_pb2
from tokenizers import Tokenizer

from models.catalog import CheckpointError
from models.parsing.token_text import TokenBytes
from models.sources.gguf import convert
from tests.models.sources.tiny import PIECES, TOKENS, write_gguf


def rebuilt(folder: Path, **changes: object) -> Tokenizer:
    convert(write_gguf(folder / "tiny.gguf", **changes), folder / "out")
    return Tokenizer.from_file(str(folder / "out" / "tokenizer.json"))


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("qwen2")
    return rebuilt(folder, architecture="qwen2", pre="qwen2")


@pytest.fixture(scope="module")
def gemma3(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return rebuilt(tmp_path_factory.mktemp("gemma3"), architecture="gemma3")


@pytest.fixture(scope="module")
def sentencepiece() -> SentencePieceProcessor:
    """Google's own implementation with the same pieces."""
    model = sentencepiece_model_pb2.ModelProto()
    for text, score, type in PIECES:
        piece = text.replace(" ", "▁")
        model.pieces.add(piece=piece, score=score, type=2 if piece == "<unk>" else type)
    model.trainer_spec.model_type = model.trainer_spec.BPE
    model.trainer_spec.byte_fallback = True
    model.trainer_spec.vocab_size = len(PIECES)
    model.trainer_spec.pad_id, model.trainer_spec.eos_id = 0, 1
    model.trainer_spec.bos_id, model.trainer_spec.unk_id = 2, 3
    model.normalizer_spec.name = "identity"
    model.normalizer_spec.add_dummy_prefix = False
    model.normalizer_spec.remove_extra_whitespaces = False
    return SentencePieceProcessor(model_proto=model.SerializeToString())


def spelled(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.id_to_token(id) for id in tokenizer.encode(text).ids]


def test_qwen2_cuts_digits_apart_and_keeps_lines_ends_and_contractions_together(qwen2: Tokenizer):
    assert spelled(qwen2, "the 12") == ["t", "he", "Ġ", "1", "2"]
    assert spelled(qwen2, "a\n\nt") == ["a", "ĊĊ", "t"]
    assert spelled(qwen2, "a'T 't") == ["a", "'", "T", "Ġ", "'", "t"]
    assert spelled(qwen2, "a't") == ["a", "'t"]


def test_qwen2_composes_characters_as_its_authors_do(qwen2: Tokenizer):
    assert qwen2.encode("e\u0301").ids == qwen2.encode("\u00e9").ids


def test_tokens_that_only_fill_the_vocabulary_are_not_in_the_tokenizer(qwen2: Tokenizer):
    assert TOKENS[-1] == "[PAD]"
    assert qwen2.id_to_token(len(TOKENS) - 1) is None
    assert "[PAD]" not in spelled(qwen2, "[PAD]")


def test_special_tokens_and_the_start_of_gemma_are_whole(gemma3: Tokenizer):
    ids = gemma3.encode("<start_of_turn>the<table>").ids
    assert [PIECES[id][0] for id in ids] == ["<bos>", "<start_of_turn>", "t", "he", "<table>"]
    assert gemma3.decode(ids, skip_special_tokens=True) == "the<table>"


TEXTS = st.text(st.sampled_from(" \n\tabctheé<>12日🙂"), max_size=40) | st.text(
    st.characters(exclude_categories=("Cs",), exclude_characters="▁\0"), max_size=20
)


@settings(deadline=None, max_examples=300)
@given(TEXTS)
def test_gemmas_tokenizer_gives_the_ids_of_sentencepiece(
    gemma3: Tokenizer, sentencepiece: SentencePieceProcessor, text: str
):
    ids = gemma3.encode(text, add_special_tokens=False).ids
    assert ids == sentencepiece.encode(text)
    assert gemma3.decode(ids) == text


@settings(deadline=None, max_examples=100)
@given(TEXTS)
def test_any_text_comes_back_to_the_byte(gemma3: Tokenizer, qwen2: Tokenizer, text: str):
    ids = gemma3.encode(text, add_special_tokens=False).ids
    assert b"".join(map(TokenBytes(gemma3).__getitem__, ids)) == text.encode()
    composed = qwen2.normalizer.normalize_str(text)
    ids = qwen2.encode(text, add_special_tokens=False).ids
    assert b"".join(map(TokenBytes(qwen2).__getitem__, ids)) == composed.encode()


def test_a_leading_space_that_sentencepiece_would_add_is_refused(tmp_path: Path):
    with pytest.raises(CheckpointError, match="without a leading space"):
        rebuilt(tmp_path, architecture="gemma3", add_space_prefix=True)


def test_a_base_model_has_no_chat_template(gemma3: Tokenizer, tmp_path: Path):
    rebuilt(tmp_path, architecture="gemma3")
    assert "chat_template" not in json.loads(
        (tmp_path / "out" / "tokenizer_config.json").read_text()
    )
