"""An EAGLE-3 head in torch, in float32 over transformers' residuals: what ours is compared with."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from support.random_models import read_model

Tensor = torch.Tensor


def residuals(target: Path, tokens: Sequence[int], dtype: torch.dtype) -> list[Tensor]:
    """The inputs of all layers, then that of the final norm: [n, hidden] each."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        target, dtype=dtype, attn_implementation="eager"
    )
    last: list[Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, inputs: last.append(inputs[0][0]))
    with torch.inference_mode():
        output = model(torch.tensor([list(tokens)]), use_cache=False, output_hidden_states=True)
    return [*(each[0] for each in output.hidden_states[:-1]), *last]


class Eagle3:
    """Rows of one sequence, one after the other; keys and values are kept."""

    def __init__(self, head: Path, target: Path, dtype: torch.dtype) -> None:
        self.config: dict[str, Any] = json.loads((head / "config.json").read_text())
        self.layer = self.config.get("transformer_layer_config", self.config)
        eagle = self.config.get("eagle_config", {})
        self.flags = {**self.config, **eagle}
        from safetensors.torch import load_file

        self.w = {n: t.to(dtype) for n, t in load_file(head / "model.safetensors").items()
                  if t.is_floating_point()}  # fmt: skip
        raw = load_file(head / "model.safetensors")
        theirs = {n: torch.tensor(t.astype("int32") << 16, dtype=torch.int32).view(torch.float32)
                  for n, t in read_model(target)[1].items()}  # fmt: skip
        embedding = theirs["model.embed_tokens.weight"].to(dtype)
        self.embedding = self.w.get("embed_tokens.weight", embedding)
        head_weight = theirs.get("lm_head.weight", theirs["model.embed_tokens.weight"])
        self.head = self.w.get("lm_head.weight", head_weight.to(dtype))
        self.ids = torch.arange(len(self.head)) + raw.get("d2t", torch.zeros(1, dtype=torch.int64))
        self.at = "midlayer." if "midlayer.hidden_norm.weight" in self.w else "layers.0."
        self.vocab, self.keys, self.values = len(embedding), [], []

    def norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt((wide**2).mean(-1, keepdim=True) + self.layer["rms_norm_eps"])
        return self.w[f"{name}.weight"] * scaled.to(x.dtype)

    def hidden_of(self, taps: Sequence[Tensor]) -> Tensor:
        """The hidden row of a feature: fc over the taps of one position."""
        if "fc_norm.0.weight" in self.w:
            taps = [self.norm(tap, f"fc_norm.{i}") for i, tap in enumerate(taps)]
        feature = torch.cat(list(taps))
        if "input_norm.weight" in self.w:
            feature = self.norm(feature, "input_norm")
        return self.w["fc.weight"] @ feature

    def rotate(self, x: Tensor, position: int) -> Tensor:
        """x: [heads, head_dim]."""
        half = x.shape[-1] // 2
        theta = self.layer.get("rope_theta", 10000.0)
        inverse = theta ** (-torch.arange(half, dtype=torch.float32) / half)
        scaling = self.layer.get("rope_scaling")
        angles = position * inverse / (scaling["factor"] if scaling else 1.0)  # linear
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second = x[:, :half], x[:, half:]
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def row(self, hidden: Tensor, token: int) -> tuple[Tensor, Tensor]:
        """Logits by the target's ids, and the hidden row that the next row may read."""
        w, at, layer = self.w, self.at, self.layer
        heads, kv_heads, dim = (layer[n] for n in ("num_attention_heads", "num_key_value_heads",
                                                   "head_dim"))  # fmt: skip
        n = self.norm(hidden, f"{at}hidden_norm")
        pair = torch.cat([self.norm(self.embedding[token], f"{at}input_layernorm"), n])
        q, k, v = ((w[f"{at}self_attn.{x}_proj.weight"] @ pair).view(-1, dim) for x in "qkv")
        if f"{at}self_attn.q_norm.weight" in w:
            q, k = (self.norm(x, f"{at}self_attn.{i}_norm") for x, i in ((q, "q"), (k, "k")))
        position = len(self.keys)
        self.keys.append(self.rotate(k, position))
        self.values.append(v)
        q = self.rotate(q, position)
        keys, values = torch.stack(self.keys, 1), torch.stack(self.values, 1)  # [kv, n, dim]
        keys, values = (x.repeat_interleave(heads // kv_heads, 0) for x in (keys, values))
        scores = (keys @ q[:, :, None])[..., 0] / dim**0.5
        mixed = (scores.float().softmax(-1).to(q.dtype)[:, None] @ values)[:, 0].reshape(-1)
        residual = n if self.flags.get("norm_before_residual") else hidden
        residual = residual + w[f"{at}self_attn.o_proj.weight"] @ mixed
        x = self.norm(residual, f"{at}post_attention_layernorm")
        gate = torch.nn.functional.silu(w[f"{at}mlp.gate_proj.weight"] @ x)
        up = w[f"{at}mlp.up_proj.weight"] @ x
        s = residual + w[f"{at}mlp.down_proj.weight"] @ (gate * up)
        normed = self.norm(s, "norm")
        logits = torch.full((self.vocab,), -torch.inf)
        logits[self.ids] = (self.head @ normed).float()
        return logits, normed if self.flags.get("norm_output") else s

    def cut(self, rows: int) -> None:
        del self.keys[rows:], self.values[rows:]
