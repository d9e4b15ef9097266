"""DFlash and DFlash2 once more: in float64, with nothing cached, and each thing done by hand."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Array = np.ndarray[Any, np.dtype[np.float64]]


class PlainDFlash:
    def __init__(self, companion: Path, target: Path) -> None:
        """The target's embeddings are its head, too."""
        self.config = json.loads((companion / "config.json").read_text())
        self.own = self.config["dflash_config"]
        stored = load_file(companion / "model.safetensors")
        self.w = {name: each.astype(np.float64) for name, each in stored.items()}
        self.embeddings = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
        ids = self.w.get("draft_ids")
        self.ids = np.arange(len(self.embeddings)) if ids is None else ids.astype(int)
        self.second = "conv_kernel_size" in self.own

    def draft(self, states: Array, first: int, known: int) -> list[int]:
        """The block's drafts after the token `known`, when the target gave `states` [tokens, layers
        x hidden] for the tokens from position `first` to just before it."""
        count = self.own["block_size"] - 1
        block = [known] + [self.own["mask_token_id"]] * count
        x = self.embeddings[block].astype(np.float64)
        context = self._norm(states @ self.w["fc.weight"].T, "hidden_norm")
        for layer in range(self.config["num_hidden_layers"]):
            x = self._layer(f"layers.{layer}.", layer, x, context, first)
        hidden = self._norm(x, "norm")[1:]
        logits = hidden @ self.embeddings[self.ids].T.astype(np.float64)
        if not self.second:
            return self.ids[logits.argmax(-1)].tolist()
        cap = self.own["final_logit_softcapping"]
        logits = np.tanh(logits * self.own["output_multiplier"] / cap) * cap
        return self._select(hidden, logits, known)

    def _layer(self, prefix: str, layer: int, x: Array, context: Array, first: int) -> Array:
        given = self._norm(x, prefix + "input_layernorm")
        made = self._kernels(prefix + "attention_conv.", given)
        attended = self._attend(prefix + "self_attn.", layer, made(0, given), context, first)
        x = x + made(1, attended)
        given = self._norm(x, prefix + "post_attention_layernorm")
        made = self._kernels(prefix + "mlp_conv.", given)
        return x + made(1, self._mlp(prefix + "mlp.", made(0, given)))

    def _attend(self, prefix: str, layer: int, x: Array, context: Array, first: int) -> Array:
        size, heads = self.config["head_dim"], self.config["num_attention_heads"]
        shared = heads // self.config["num_key_value_heads"]
        before, block = len(context), len(x)
        both = np.concatenate([context, x])
        places = first + np.arange(before + block)

        def split(of: Array, name: str) -> Array:
            return (of @ self.w[f"{prefix}{name}_proj.weight"].T).reshape(len(of), -1, size)

        queries = self._turn(self._norm(split(x, "q"), prefix + "q_norm"), places[before:])
        keys = self._turn(self._norm(split(both, "k"), prefix + "k_norm"), places)
        values = split(both, "v")
        kinds = self.config.get("layer_types", ["full_attention"] * 99)
        window = self.config.get("sliding_window") if kinds[layer] == "sliding_attention" else None
        out = np.zeros((block, heads, size))
        for row in range(block):
            for head in range(heads):
                seen = [
                    other
                    for other in range(before + block)
                    if (other >= before or not window or before + row - other < window)
                    and (other < before or not self.config["is_causal"] or other <= before + row)
                ]
                scores = keys[seen, head // shared] @ queries[row, head] / size**0.5
                weights = np.exp(scores - scores.max())
                out[row, head] = weights / weights.sum() @ values[seen, head // shared]
        return out.reshape(block, -1) @ self.w[prefix + "o_proj.weight"].T

    def _turn(self, x: Array, places: Array) -> Array:
        half = x.shape[-1] // 2
        angles = places[:, None] * self.config["rope_theta"] ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        one, other = x[..., :half], x[..., half:]
        return np.concatenate([one * cos - other * sin, other * cos + one * sin], -1)

    def _mlp(self, prefix: str, x: Array) -> Array:
        gate, up = (x @ self.w[f"{prefix}{name}_proj.weight"].T for name in ("gate", "up"))
        return gate / (1 + np.exp(-gate)) * up @ self.w[prefix + "down_proj.weight"].T

    def _kernels(self, prefix: str, x: Array) -> Any:
        if not self.second:
            return lambda which, y: y
        taps, group = self.own["conv_kernel_size"], self.own["conv_group_size"]
        made = (x @ self.w[prefix + "kernel_projection.weight"].T).reshape(len(x), 2, taps, -1)

        def convolve(which: int, y: Array) -> Array:
            out = np.zeros_like(y)
            for place in range(len(y)):
                for tap in range(min(taps, place + 1)):
                    kernel = np.repeat(made[place, which, tap], group)
                    kernel = kernel + self.w[prefix + "base_kernel"][which, tap]
                    out[place] += kernel * y[place - tap]
            return out

        return convolve

    def _select(self, hidden: Array, logits: Array, known: int) -> list[int]:
        before, chosen = known, list[int]()
        selector = "candidate_selector."
        for place in range(len(hidden)):
            best = np.argsort(logits[place])[-self.own["selector_top_k"] :]
            weights = self.w[selector + "hidden_projection.weight"] @ hidden[place]
            edge = self.w[selector + "predecessor_codebook"][before] * weights
            after = self.w[selector + "successor_codebook"][self.ids[best]]
            scores = logits[place, best] + after @ edge
            before = int(self.ids[best[scores.argmax()]])
            chosen.append(before)
        return chosen

    def _norm(self, x: Array, name: str) -> Array:
        size = np.sqrt((x**2).mean(-1, keepdims=True) + self.config["rms_norm_eps"])
        return x / size * self.w[name + ".weight"]
