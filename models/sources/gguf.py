"""GGUF files, converted to an MLX folder.

Weights become float32, exactly what the file's blocks stand for: on a CPU that is the fast form,
and quantising again for a device starts from it without a second loss. A block's scale has 11
significant bits and its steps 4 to 8 more, so half the size could not hold their product.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from gguf import GGMLQuantizationType as T
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize

from models.catalog import CheckpointError, Sampling
from models.safetensors_file import write_float32
from models.sources.gguf_architectures import Architecture, Array, architecture_of, unsupported
from models.sources.gguf_metadata import Metadata
from models.sources.gguf_tokenizer import write_tokenizer
from models.sources.progress import Advance, stage

EMBEDDING, OUTPUT = "token_embd.weight", "output.weight"
TOP_NAMES = {
    EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    OUTPUT: "lm_head.weight",
}
# Types whose blocks the gguf package turns into float32.
READABLE = {
    *(T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0),
    *(T.Q2_K, T.Q3_K, T.Q4_K, T.Q5_K, T.Q6_K),
}
# The two matrices over the vocabulary are converted in parts: they can be most of a small model.
ROWS_AT_A_TIME = 4096
ROWS_TO_COMPARE = 512


def convert(
    gguf: Path, out: Path, *, stop_tokens: Sequence[str] = (), sampling: Sampling | None = None
) -> None:
    """Write the MLX folder `out` from the file `gguf`, one layer's tensor in memory at a time.

    `stop_tokens` end an answer beside the file's own; `sampling` becomes the folder's default.
    Raises `CheckpointError` that names the architecture, tensor, tensor type or tokenizer that is
    not supported.
    """
    try:
        reader = GGUFReader(gguf)
    except (ValueError, IndexError) as error:
        raise CheckpointError(
            f"{gguf.name} is not a readable GGUF file ({error}): pull or copy it again"
        ) from error
    metadata = Metadata(reader)
    architecture = architecture_of(metadata)
    config = architecture.config(metadata)
    sources = _sources(reader, architecture, config["num_hidden_layers"])
    config["tie_word_embeddings"] = TOP_NAMES[OUTPUT] not in sources
    out.mkdir()
    ends = write_tokenizer(metadata, out, context_tokens=config["max_position_embeddings"])
    _write_json(out / "config.json", {**config, **ends})
    generation = {**ends, **_stops(metadata, ends, stop_tokens), **_defaults(sampling)}
    _write_json(out / "generation_config.json", generation)
    shapes = {name: _shape(tensor) for name, tensor in sources.items()}
    with stage("converting", sum(int(t.n_bytes) for t in sources.values())) as advance:
        dense = _dense(sources, architecture, config, advance)
        write_float32(out / "model.safetensors", shapes, dense)


def _sources(
    reader: GGUFReader, architecture: Architecture, layers: int
) -> dict[str, ReaderTensor]:
    """The file's tensors by the name they get; every one is known, and every expected one there."""
    names = TOP_NAMES | {
        f"blk.{layer}.{old}": f"model.layers.{layer}.{new}"
        for layer in range(layers)
        for old, new in architecture.layer_names.items()
    }
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name, tensor in tensors.items():
        if name not in names:
            raise unsupported(f"its tensor {name}")
        if tensor.tensor_type not in READABLE:
            raise unsupported(f"{tensor.tensor_type.name} (tensor {name})")
    missing = sorted(names.keys() - tensors.keys() - {OUTPUT})
    if missing:
        raise CheckpointError(
            f"the GGUF file lacks {missing[0]} ({len(missing)} tensors are missing): get it again"
        )
    _tie(tensors)
    return {names[name]: tensor for name, tensor in tensors.items()}


def _tie(tensors: dict[str, ReaderTensor]) -> None:
    """Where the output matrix is a second copy of the embedding, keep the better one of them.

    Of a model that has one matrix for both, quantisers may write two copies, the output's with
    more bits. That one for both is nearer to the model than the file's pair, and half as large.
    """
    embedding, output = tensors[EMBEDDING], tensors.get(OUTPUT)
    if output is None or _shape(output) != _shape(embedding):
        return
    first, second = (_rows(each, 0, ROWS_TO_COMPARE) for each in (embedding, output))
    # Quantising changes a matrix by some hundredths, to 2 bits by a third; matrices that were
    # trained apart differ by more than either's own size.
    if np.linalg.norm(first - second) < np.linalg.norm(second) / 2:
        tensors[EMBEDDING] = max(embedding, output, key=lambda tensor: int(tensor.n_bytes))
        del tensors[OUTPUT]


def _shape(tensor: ReaderTensor) -> tuple[int, ...]:
    """GGUF counts dimensions from the innermost."""
    return tuple(int(n) for n in reversed(tensor.shape))


def _rows(tensor: ReaderTensor, start: int, stop: int | None) -> Array:
    return dequantize(tensor.data[start:stop], tensor.tensor_type)


def _dense(
    sources: dict[str, ReaderTensor],
    architecture: Architecture,
    config: dict[str, Any],
    advance: Advance,
) -> Iterator[Array]:
    """The float32 tensors in order, the largest in parts."""
    for tensor in sources.values():
        if tensor.name in (EMBEDDING, OUTPUT):
            for start in range(0, _shape(tensor)[0], ROWS_AT_A_TIME):
                yield _rows(tensor, start, start + ROWS_AT_A_TIME)
        else:
            yield architecture.restored(tensor.name, _rows(tensor, 0, None), config)
        advance(int(tensor.n_bytes))


def _stops(
    metadata: Metadata, ends: dict[str, int], stop_tokens: Sequence[str]
) -> dict[str, list[int]]:
    if not stop_tokens:
        return {}
    tokens = metadata.texts("tokenizer.ggml.tokens")
    return {"eos_token_id": [ends["eos_token_id"], *map(tokens.index, stop_tokens)]}


def _defaults(sampling: Sampling | None) -> dict[str, Any]:
    if sampling is None:
        return {}
    return {
        "do_sample": True,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
    }


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2))
