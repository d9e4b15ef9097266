"""`mererun models convert`: an installed model in fewer bits, as a model of its own."""

# pyright: basic, reportMissingTypeStubs=false, reportArgumentType=false, reportAttributeAccessIssue=false
# since mlx-lm has no types, and those of mlx do not know trees and buffers.

import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import orjson
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model

from models.catalog import (
    PACKAGED,
    Checkpoint,
    CheckpointError,
    folder_name,
    inspect,
    installed_paths,
    read_json,
    weight_files,
)
from models.quantization.codes import coded
from models.quantization.forms import GROUP_SIZE, Form
from models.safetensors_file import write
from models.sources.progress import stage
from models.sources.staging import one_pull, partial_folder, publish, write_receipt

_WEIGHTS = "model.safetensors"
_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
_TEXTS = ("*.json", "*.jinja", "*.txt", "*.model", "LICENSE*")
_NOT_COPIED = {"config.json", "receipt.json", "model.safetensors.index.json"}


def convert(
    source: Checkpoint, id: str, form: Form, kept: Sequence[str], models_dir: Path
) -> Checkpoint:
    """Install `source` in `form` as the model `id`; all of it or nothing.

    Not coded are modules whose path one of the patterns `kept` matches, those that their
    architecture keeps, and those that have no whole groups. What is not coded is stored in
    bfloat16. Raises `CheckpointError`.
    """
    if not _ID.fullmatch(id):
        raise CheckpointError(f"{id} is no name for a model: use letters, digits, -, _ and .")
    if id in PACKAGED:
        raise CheckpointError(f"{id} is the name of another model: choose another --as")
    final = models_dir / folder_name(id)
    if final in installed_paths(models_dir):
        raise CheckpointError(
            f"a model is installed as {id}: run `mererun models remove {id}` or choose another --as"
        )
    parameters, modules = _parts(source, kept)
    with one_pull(models_dir), partial_folder(models_dir, folder_name(id)) as folder:
        for pattern in _TEXTS:
            for file in source.path.glob(pattern):
                if file.name not in _NOT_COPIED:
                    shutil.copyfile(file, folder / file.name)
        config = read_json(source.path / "config.json")
        config["quantization"] = {"group_size": GROUP_SIZE, "bits": form.bits, "mode": "affine"}
        (folder / "config.json").write_bytes(orjson.dumps(config, option=orjson.OPT_INDENT_2))
        kinds = dict(_kinds(parameters, modules, form))
        with stage("converting", sum(each.nbytes for _, each in parameters)) as advance:
            write(folder / _WEIGHTS, kinds, _arrays(parameters, modules, form, advance))
        write_receipt(
            folder,
            {
                "source": "conversion",
                "display_name": f"{source.display_name} ({form.display})",
                "sha256": _sha256(folder / _WEIGHTS),
                "form": form.id,
                "group_size": GROUP_SIZE,
                "modules": sorted(modules),
                "kept": sorted(kept),
                "of": {
                    "id": source.id,
                    "receipt": read_json(source.path / "receipt.json", optional=True),
                    "files": {each.name: _sha256(each) for each in weight_files(source.path)},
                },
                "converter": f"mererun {version('mererun')}",
            },
        )
        inspect(folder)
        publish(folder, final)
    return inspect(final)


def _parts(
    source: Checkpoint, kept: Sequence[str]
) -> tuple[list[tuple[str, mx.array]], frozenset[str]]:
    """The parameters, none of which has been read, and the paths of the modules to be coded."""
    try:
        model, config = load_model(source.path, lazy=True)
    except Exception as error:  # mlx-lm raises whatever comes
        raise CheckpointError(f"{source.id} cannot be loaded: {error}") from error
    if "quantization" in config:
        raise CheckpointError(
            f"{source.id} has been converted to fewer bits before: convert the model that it was "
            "made of"
        )
    wants = getattr(model, "quant_predicate", None) or (lambda path, module: True)
    codable = [
        path
        for path, module in model.named_modules()
        if hasattr(module, "to_quantized")
        and module.weight.shape[-1] % GROUP_SIZE == 0
        and wants(path, module) is True
    ]
    for pattern in kept:
        if not any(fnmatchcase(path, pattern) for path in codable):
            example = max(codable, key=len, default="not there")
            raise CheckpointError(
                f"{source.id} has no module {pattern} that would be coded: one is {example}, and "
                "* stands for anything"
            )
    coded_ones = frozenset(
        path for path in codable if not any(fnmatchcase(path, pattern) for pattern in kept)
    )
    parameters: Any = tree_flatten(model.parameters())
    return parameters, coded_ones


def _kinds(
    parameters: list[tuple[str, mx.array]], modules: frozenset[str], form: Form
) -> Iterator[tuple[str, tuple[str, tuple[int, ...]]]]:
    """Dtype and shape of what is written."""
    for name, array in parameters:
        path, _, kind = name.rpartition(".")
        if kind == "weight" and path in modules:
            *outer, inputs = array.shape
            yield name, ("U32", (*outer, inputs * form.bits // 32))
            yield f"{path}.scales", ("BF16", (*outer, inputs // GROUP_SIZE))
            yield f"{path}.biases", ("BF16", (*outer, inputs // GROUP_SIZE))
        else:
            yield name, ("BF16", array.shape)


def _arrays(
    parameters: list[tuple[str, mx.array]], modules: frozenset[str], form: Form, advance: Any
) -> Iterator[np.ndarray[Any, Any]]:
    """The same, in that order; each is read when its turn has come, and then forgotten."""
    parameters.reverse()
    while parameters:
        name, array = parameters.pop()
        path, _, kind = name.rpartition(".")
        size = array.nbytes
        if not mx.isfinite(array).all().item():
            raise CheckpointError(f"{name} has weights that are no numbers: get the model again")
        if kind == "weight" and path in modules:
            codes, scales, biases = coded(array, form)
            yield np.array(codes)
            yield _bfloat16(scales)
            yield _bfloat16(biases)
        else:
            yield _bfloat16(array)
        del array
        advance(size)


def _bfloat16(array: mx.array) -> np.ndarray[Any, Any]:
    """Its bytes, since NumPy has no such dtype."""
    return np.array(array.astype(mx.bfloat16).view(mx.uint16))


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
