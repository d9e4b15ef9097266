"""The tokenizer inside a GGUF file, as the files that Hugging Face tokenizers read."""

from pathlib import Path
from typing import Any

import orjson
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

from models.catalog import CheckpointError
from models.sources.gguf_metadata import Metadata

# Values of tokenizer.ggml.token_type, from llama.cpp's llama_token_type.
CONTROL, USER_DEFINED = 3, 4


def write_tokenizer(metadata: Metadata, out: Path) -> dict[str, int]:
    """Write tokenizer.json and tokenizer_config.json; returns the ids of start, end and padding.

    The ids carry the names that config.json uses: `bos_token_id`, `eos_token_id`, `pad_token_id`.
    """
    tokens = metadata.texts("tokenizer.ggml.tokens")
    _tokenizer(metadata, tokens).save(str(out / "tokenizer.json"))
    ids = _special_ids(metadata)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.integer("llama.context_length"),
        **{name.removesuffix("_id"): tokens[id] for name, id in ids.items()},
    }
    template = metadata.get("tokenizer.chat_template", None)
    if template is not None:
        config["chat_template"] = template
    (out / "tokenizer_config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
    return ids


def _tokenizer(metadata: Metadata, tokens: list[str]) -> Tokenizer:
    model = metadata.text("tokenizer.ggml.model")
    if model != "gpt2" or metadata.get("tokenizer.ggml.add_bos_token", False):
        raise CheckpointError(
            f"the GGUF file's tokenizer ({model}) is not plain byte-level BPE: use a Hugging Face "
            "or MLX folder of this model"
        )
    merges = [_pair(merge) for merge in metadata.texts("tokenizer.ggml.merges")]
    vocabulary = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(metadata.text("tokenizer.ggml.pre"))
    tokenizer.decoder = decoders.ByteLevel()
    types = metadata.integers("tokenizer.ggml.token_type")
    added = [
        AddedToken(token, special=type == CONTROL, normalized=False)
        for token, type in zip(tokens, types, strict=True)
        if type in (CONTROL, USER_DEFINED)
    ]
    tokenizer.add_tokens(added)  # pyright: ignore[reportUnknownMemberType]
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
    raise CheckpointError(
        f"the GGUF file's pre-tokenizer {kind} is not supported (gpt-2 and smollm are): use a "
        "Hugging Face or MLX folder of this model"
    )


def _special_ids(metadata: Metadata) -> dict[str, int]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    found = {
        name: metadata.get(f"tokenizer.ggml.{key}_token_id", None) for name, key in keys.items()
    }
    return {name: int(id) for name, id in found.items() if id is not None}
