"""A DFlash or DFlash2 drafter in torch, over transformers' residuals: what ours is compared with.

All rows of a block at once, under an explicit mask. Reads config.json itself.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

Tensor = torch.Tensor


class Dflash:
    """The drafter of a directory, with the target's embedding and output head if it has none."""

    def __init__(self, drafter: Path, target: Path, dtype: torch.dtype) -> None:
        self.config: dict[str, Any] = json.loads((drafter / "config.json").read_text())
        self.layer = self.config.get("transformer_layer_config", self.config)
        self.own = self.config.get("dflash_config", self.config)
        raw, theirs = (
            load_file(directory / "model.safetensors", str(torch.get_default_device()))
            for directory in (drafter, target)
        )
        self.w = {n: t.to(dtype) for n, t in raw.items() if t.is_floating_point()}
        embedding = theirs["model.embed_tokens.weight"].to(dtype)
        output = theirs.get("lm_head.weight", embedding).to(dtype)
        self.embedding = self.w.get("embed_tokens.weight", embedding)
        self.head = self.w.get("lm_head.weight", output)
        self.ids = torch.arange(len(self.head)) + raw.get("d2t", torch.zeros(1, dtype=torch.int64))

    def boundaries(self) -> list[int]:
        """The residuals that make a feature, in the order of fc's columns."""
        if "aux_hidden_state_layer_ids" in self.config:
            return list(self.config["aux_hidden_state_layer_ids"])
        return [layer + 1 for layer in self.own["target_layer_ids"]]

    def norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt((wide**2).mean(-1, keepdim=True) + self.layer["rms_norm_eps"])
        return self.w[f"{name}.weight"] * scaled.to(x.dtype)

    def linear(self, x: Tensor, name: str) -> Tensor:
        return torch.nn.functional.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def frequencies(self, half: int) -> tuple[Tensor, float]:
        """Angles per position of each pair, and YaRN's factor on cosines and sines."""
        theta = self.layer["rope_theta"]
        plain = theta ** (-torch.arange(half, dtype=torch.float32) / half)
        scaling = self.layer.get("rope_scaling")
        if not scaling:
            return plain, 1.0
        assert scaling.get("rope_type", scaling.get("type")) == "yarn"
        factor, context = scaling["factor"], scaling["original_max_position_embeddings"]

        def pair(turns: float) -> float:
            return half * math.log(context / (2 * math.pi * turns)) / math.log(theta)

        low = max(math.floor(pair(scaling.get("beta_fast", 32))), 0)
        high = min(math.ceil(pair(scaling.get("beta_slow", 1))), 2 * half - 1)
        ramp = ((torch.arange(half) - low) / max(high - low, 0.001)).clamp(0, 1)
        return plain * (1 - ramp) + plain / factor * ramp, 0.1 * math.log(factor) + 1

    def rotate(self, x: Tensor, first: int) -> Tensor:
        """x: [n, heads, head_dim] at positions from `first` on."""
        half = x.shape[-1] // 2
        frequencies, scale = self.frequencies(half)
        angles = (first + torch.arange(len(x)))[:, None, None] * frequencies
        cos, sin = (angles.cos() * scale).to(x.dtype), (angles.sin() * scale).to(x.dtype)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def heads(self, x: Tensor, at: str, kind: str, first: int) -> Tensor:
        made = self.linear(x, f"{at}{kind}_proj").view(len(x), -1, self.layer["head_dim"])
        if kind != "v":
            if f"{at}{kind}_norm.weight" in self.w:
                made = self.norm(made, f"{at}{kind}_norm")
            made = self.rotate(made, first)
        return made

    def mask(self, layer: int, rows: int, context: int) -> Tensor:
        """Returns the positions of the context and the block that each row of the block sees."""
        row, key = context + torch.arange(rows)[:, None], torch.arange(context + rows)
        types = self.layer.get("layer_types") or ["full_attention"] * (layer + 1)
        if types[layer] == "full_attention":
            return torch.ones(rows, context + rows, dtype=torch.bool)
        seen = key > row - self.layer["sliding_window"]
        return seen & (key <= row) if self.config.get("is_causal", True) else seen

    def block(self, features: Tensor, token: int, rows: int) -> Tensor:
        """Logits by the target's ids for the rows after the first, [rows - 1, vocabulary].
        `features`, [n, taps * hidden], are those of all tokens before `token`."""
        return self.logits(self.hidden(features, token, rows))

    def logits(self, hidden: Tensor) -> Tensor:
        logits = torch.full((len(hidden), len(self.embedding)), -torch.inf)
        scaled = (hidden @ self.head.T).float() * self.own.get("output_multiplier", 1.0)
        cap = self.own.get("final_logit_softcapping")
        logits[:, self.ids] = scaled if cap is None else cap * (scaled / cap).tanh()
        return logits

    def hidden(self, features: Tensor, token: int, rows: int) -> Tensor:
        """The inputs of the output head for the rows after the first, [rows - 1, hidden]."""
        context = self.norm(self.linear(features, "fc"), "hidden_norm")
        n, groups = len(context), self.layer["num_attention_heads"]
        groups //= self.layer["num_key_value_heads"]
        x = self.embedding[[token] + [self.own["mask_token_id"]] * (rows - 1)]
        for layer in range(self.layer["num_hidden_layers"]):
            at = f"layers.{layer}."
            a, around = self.convolved(self.norm(x, f"{at}input_layernorm"), f"{at}attention_conv")
            own = f"{at}self_attn."
            q = self.heads(a, own, "q", n)
            k, v = (torch.cat([self.heads(context, own, kind, 0), self.heads(a, own, kind, n)])
                    for kind in "kv")  # fmt: skip
            k, v = (part.repeat_interleave(groups, 1) for part in (k, v))
            scores = torch.einsum("thd,shd->hts", q, k).float() / self.layer["head_dim"] ** 0.5
            scores = scores.masked_fill(~self.mask(layer, rows, n), -torch.inf)
            mixed = torch.einsum("hts,shd->thd", scores.softmax(-1).to(v.dtype), v)
            x = x + around(self.linear(mixed.reshape(rows, -1), f"{own}o_proj"))
            b = self.norm(x, f"{at}post_attention_layernorm")
            b, around = self.convolved(b, f"{at}mlp_conv")
            gate = torch.nn.functional.silu(self.linear(b, f"{at}mlp.gate_proj"))
            made = self.linear(gate * self.linear(b, f"{at}mlp.up_proj"), f"{at}mlp.down_proj")
            x = x + around(made)
        return self.norm(x, "norm")[1:]

    def convolved(self, x: Tensor, at: str) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """The convolution of a part's inputs, [rows, hidden], and that of its outputs."""
        if "conv_kernel_size" not in self.own:
            return x, lambda y: y
        taps, (rows, hidden) = self.own["conv_kernel_size"], x.shape
        groups = hidden // self.own["conv_group_size"]
        base = self.w[f"{at}.base_kernel"].view(2, taps, groups, -1)
        kernels = self.linear(x, f"{at}.kernel_projection").view(rows, 2, taps, groups, 1) + base

        def convolve(side: int, y: Tensor) -> Tensor:
            padded = torch.cat([y.new_zeros(taps - 1, hidden), y])
            before = padded.unfold(0, taps, 1).flip(-1)  # [rows, hidden, taps], newest first
            before = before.transpose(1, 2).reshape(rows, taps, groups, -1)
            return (kernels[:, side] * before).sum(1).reshape(rows, hidden)

        return convolve(0, x), lambda y: convolve(1, y)

    def path(self, features: Tensor, token: int, rows: int) -> list[int]:
        """The tokens of a block that the selector chooses greedily, one after the other."""
        hidden = self.hidden(features, token, rows)
        best, candidates = self.logits(hidden).topk(self.own["selector_top_k"], -1)
        at, path = "candidate_selector.", [token]
        gates = self.linear(hidden, f"{at}hidden_projection")
        for row in range(rows - 1):
            gated = self.w[f"{at}predecessor_codebook"][path[-1]] * gates[row]
            pairs = self.w[f"{at}successor_codebook"][candidates[row]] @ gated
            path.append(int(candidates[row][(best[row] + pairs).argmax()]))
        return path[1:]


def features_of(drafter: Dflash, layers: Sequence[Tensor]) -> Tensor:
    """The features that a drafter reads, [tokens, taps * hidden], of the target's residuals by
    boundary, [tokens, hidden]."""
    return torch.cat([layers[at] for at in drafter.boundaries()], -1)


def blocks(
    drafter: Dflash,
    layers: Sequence[Tensor],
    tokens: Sequence[int],
    lengths: Sequence[int],
    rows: int,
) -> Tensor:
    """The blocks after the first `length` tokens, [lengths, rows - 1, vocabulary]."""
    features = features_of(drafter, layers)
    with torch.inference_mode():
        made = [drafter.block(features[: at - 1], tokens[at - 1], rows) for at in lengths]
    return torch.stack(made)
