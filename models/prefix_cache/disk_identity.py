"""What a prompt's computed state depends on beside the prompt: it is of use only where all of this
is the same."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from pathlib import Path

import orjson

_FORMAT = 1  # of the files; raise it when what they mean changes
_DESCRIBING = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)


def identity_of(folder: Path, weights: str | None, dtype: str, layout: Sequence[str]) -> str:
    """A digest, in hexadecimal, of the model in `folder`, as it is computed in `dtype` with layers
    of the kinds in `layout`. `weights` names its weights; without, their files' names, sizes and
    times do."""
    files = [
        [file.name, stat.st_size, stat.st_mtime_ns]
        for file in sorted(folder.glob("*.safetensors"))
        if (stat := file.stat())
    ]
    described = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in _DESCRIBING
        if (folder / name).exists()
    }
    # How keys are turned and scaled is the business of mlx-lm's models.
    facts = [_FORMAT, version("mlx-lm"), weights or files, described, dtype, list(layout)]
    return hashlib.sha256(orjson.dumps(facts)).hexdigest()


def prefix_names(
    identity: str, scope: str, ids: "array[int]", ends: Sequence[int]
) -> Iterator[str]:
    """A digest of the first `end` of `ids` for each of `ends`, which ascend; those of another
    identity or scope are others."""
    digest = hashlib.sha256(identity.encode() + hashlib.sha256(scope.encode()).digest())
    done, view = 0, memoryview(ids)
    for end in ends:
        digest.update(view[done:end])
        done = end
        yield digest.copy().hexdigest()
