"""What the config.json of a companion says: a block diffusion drafter made for one target.

The format is that of DFlash (Chen et al., 2026, arXiv 2602.06036; PyPI `dflash`) and DFlash2, whose
own settings are below `dflash_config`, or beside the others. Light enough for the HTTP process.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_ARCHITECTURES = {"DFlashDraftModel": 1, "DFlash2DraftModel": 2}
MOST_IN_BLOCK = 256  # tokens; published ones have 16


@dataclass(frozen=True, slots=True)
class Convolution:
    """DFlash2's, around each sublayer: over so many tokens, with kernels for groups of channels."""

    taps: int
    group: int


@dataclass(frozen=True, slots=True)
class Selector:
    """DFlash2's, which goes through the `best` candidates of each place from left to right."""

    rank: int
    best: int


@dataclass(frozen=True, slots=True)
class CompanionConfig:
    """Sizes in channels or tokens. `block` counts the token that is known, too. A layer's window is
    0 if it sees all of the context. The layers of the target are counted from 0, as is usual."""

    hidden: int
    feed_forward: int
    heads: int
    key_heads: int
    head: int
    epsilon: float
    rope_theta: float
    rope_scaling: dict[str, Any] | None
    context: int
    block: int
    mask_id: int
    windows: tuple[int, ...]
    causal: tuple[bool, ...]
    target_layers: tuple[int, ...]
    target_depth: int | None
    vocabulary: int
    embedding_scale: float = 1.0
    output_multiplier: float = 1.0
    softcap: float = 0.0
    convolution: Convolution | None = None
    selector: Selector | None = None

    @property
    def version(self) -> int:
        return 1 if self.selector is None else 2

    @staticmethod
    def is_one(config: Mapping[str, Any]) -> bool:
        return bool(_ARCHITECTURES.keys() & set(config.get("architectures") or ()))

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "CompanionConfig":
        """Raises ValueError, which completes "config.json …"."""
        own: Mapping[str, Any] = config.get("dflash_config") or {}
        rope: Mapping[str, Any] = config.get("rope_parameters") or {}

        def value(name: str, default: Any = None) -> Any:
            found = own.get(name, config.get(name))
            if found is None and default is None:
                raise ValueError(f"says no {name}")
            return default if found is None else found

        is_second = any(_ARCHITECTURES.get(each) == 2 for each in config["architectures"])
        depth = int(value("num_hidden_layers"))
        kinds: list[str] = config.get("layer_types") or ["full_attention"] * depth
        slides = [kind == "sliding_attention" for kind in kinds]
        window = int(value("sliding_window")) if any(slides) else 0
        is_causal: bool | None = config.get("is_causal")
        layers = tuple(int(each) for each in value("target_layer_ids"))
        if list(layers) != sorted(set(layers)) or not layers or layers[0] < 0:
            raise ValueError("has no ascending target_layer_ids")
        if len(kinds) != depth:
            raise ValueError(f"has {len(kinds)} layer_types for {depth} layers")
        block = int(value("block_size"))
        if not 2 <= block <= MOST_IN_BLOCK:
            raise ValueError(f"has a block_size of {block}, which is not 2 to {MOST_IN_BLOCK}")
        return cls(
            hidden=int(value("hidden_size")),
            feed_forward=int(value("intermediate_size")),
            heads=int(value("num_attention_heads")),
            key_heads=int(value("num_key_value_heads")),
            head=int(value("head_dim")),
            epsilon=float(value("rms_norm_eps")),
            rope_theta=float(rope.get("rope_theta") or value("rope_theta")),
            rope_scaling=config.get("rope_scaling"),
            context=int(value("max_position_embeddings", 1 << 20)),
            block=block,
            mask_id=int(value("mask_token_id")),
            windows=tuple(window if each else 0 for each in slides),
            causal=tuple(each if is_causal is None else is_causal for each in slides),
            target_layers=layers,
            target_depth=config.get("num_target_layers"),
            vocabulary=int(value("vocab_size")),
            embedding_scale=float(value("input_embedding_scale", 1.0)),
            output_multiplier=float(value("output_multiplier", 1.0)),
            softcap=float(value("final_logit_softcapping", 0.0)),
            convolution=(
                Convolution(int(value("conv_kernel_size")), int(value("conv_group_size")))
                if is_second
                else None
            ),
            selector=(
                Selector(int(value("selector_rank")), int(value("selector_top_k")))
                if is_second
                else None
            ),
        )
