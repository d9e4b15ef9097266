"""The tokenizer inside a GGUF file, as the files that Hugging Face tokenizers read."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.pre_tokenizers import PreTokenizer

from models.catalog import CheckpointError
from models.sources.gguf_metadata import Metadata

# Values of tokenizer.ggml.token_type, from llama.cpp's llama_token_type.
NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5

# How Qwen 2 and later cut text before merging; from their own tokenizer.json.
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def write_tokenizer(metadata: Metadata, out: Path, *, context_tokens: int) -> dict[str, int]:
    """Write tokenizer.json and tokenizer_config.json; returns the ids of start, end and padding.

    The ids carry the names that config.json uses: `bos_token_id`, `eos_token_id`, `pad_token_id`.
    """
    tokens = metadata.texts("tokenizer.ggml.tokens")
    _tokenizer(metadata, tokens).save(str(out / "tokenizer.json"))
    ids = _special_ids(metadata)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context_tokens,
        **{name.removesuffix("_id"): tokens[id] for name, id in ids.items()},
    }
    template = metadata.get("tokenizer.chat_template", None)
    if template is not None:
        config["chat_template"] = template
    (out / "tokenizer_config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    return ids


def _tokenizer(metadata: Metadata, tokens: list[str]) -> Tokenizer:
    types = metadata.integers("tokenizer.ggml.token_type")
    # Unused ones only fill the vocabulary up to a round number.
    vocabulary = {token: id for id, token in enumerate(tokens) if types[id] != UNUSED}
    kind = metadata.text("tokenizer.ggml.model")
    starts = metadata.get("tokenizer.ggml.add_bos_token", kind == "llama")
    if kind == "gpt2" and not starts:
        tokenizer = _byte_level(metadata, vocabulary)
    elif kind == "llama" and starts and not metadata.get("tokenizer.ggml.add_space_prefix", True):
        tokenizer = _sentencepiece(metadata, vocabulary, types)
    else:
        raise CheckpointError(
            f"the GGUF file's tokenizer ({kind}) is neither plain byte-level BPE nor SentencePiece "
            "BPE without a leading space: use a Hugging Face or MLX folder of this model"
        )
    added = [
        AddedToken(token, special=type == CONTROL, normalized=False)
        for token, type in zip(tokens, types, strict=True)
        if type in (CONTROL, USER_DEFINED)
    ]
    tokenizer.add_tokens(added)  # pyright: ignore[reportUnknownMemberType]
    return tokenizer


def _byte_level(metadata: Metadata, vocabulary: dict[str, int]) -> Tokenizer:
    merges = [_pair(merge) for merge in metadata.texts("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    kind = metadata.text("tokenizer.ggml.pre")
    tokenizer.pre_tokenizer = _pre_tokenizer(kind)
    if kind == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right


def _pre_tokenizer(kind: str) -> PreTokenizer:
    """How text is cut before merging, by the name llama.cpp gives that cut."""
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "gpt-2":
        return words
    if kind == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, words])
    if kind == "qwen2":
        cut = pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated")
        letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([cut, letters])
    raise CheckpointError(
        f"the GGUF file's pre-tokenizer {kind} is not supported (gpt-2, smollm and qwen2 are): use "
        "a Hugging Face or MLX folder of this model"
    )


def _sentencepiece(metadata: Metadata, vocabulary: dict[str, int], types: list[int]) -> Tokenizer:
    """SentencePiece joins the neighbours whose piece has the best score, the leftmost first.

    Ordered by score, that is the order of merges in BPE. Pieces that it takes out of the text
    before, such as runs of spaces, are the added tokens.
    """
    scores = metadata.decimals("tokenizer.ggml.scores")
    pieces = {piece: id for piece, id in vocabulary.items() if types[id] == NORMAL}
    best_first = sorted(pieces, key=lambda piece: -scores[pieces[piece]])
    merges = [pair for piece in best_first for pair in _splits(piece, pieces)]
    unknown = metadata.integer("tokenizer.ggml.unknown_token_id")
    start = metadata.integer("tokenizer.ggml.bos_token_id")
    names = {id: token for token, id in vocabulary.items()}
    tokenizer = Tokenizer(
        models.BPE(
            vocab=vocabulary,
            merges=merges,
            unk_token=names[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[names[start], "$A"],
        pair=[names[start], "$A", names[start], "$B:1"],
        special_tokens=[(names[start], start)],
    )
    return tokenizer


def _splits(piece: str, pieces: dict[str, int]) -> Iterator[tuple[str, str]]:
    for place in range(1, len(piece)):
        if piece[:place] in pieces and piece[place:] in pieces:
            yield piece[:place], piece[place:]


def _special_ids(metadata: Metadata) -> dict[str, int]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {
        name: metadata.get(f"tokenizer.ggml.{key}_token_id", None) for name, key in keys.items()
    }
    return {name: int(id) for name, id in found.items() if id is not None}
