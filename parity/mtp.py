"""MTP layers in torch, in float32 over transformers' residuals: what ours are compared with."""

import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from eagle3 import Tensor, residuals

MIMO = {"at": "model.mtp_layers.0.", "e": "model.mtp_layers.0.token_layernorm",
        "h": "model.mtp_layers.0.hidden_layernorm", "p": "model.mtp_layers.0.input_proj",
        "norm": "model.mtp_layers.0.final_layernorm"}  # fmt: skip
NUMBERED = ("glm4_moe", "glm4_moe_lite", "deepseek_v3")
QWEN3_5 = {"at": "mtp.layers.0.", "e": "mtp.pre_fc_norm_embedding", "h": "mtp.pre_fc_norm_hidden",
           "p": "mtp.fc", "norm": "mtp.norm"}  # fmt: skip


def last_residuals(model: Path, tokens: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The inputs of the final norm, [n, hidden]. transformers has no MiMo: it is Qwen 2 there."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(model, Path(folder) / "model"))
        config = json.loads((copy / "config.json").read_text())
        if config["model_type"] == "mimo":
            config |= {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
        (copy / "config.json").write_text(json.dumps(config))
        return residuals(copy, tokens, dtype)[-1]


class Mtp:
    """Rows of one sequence, one after the other; keys and values are kept."""

    def __init__(self, model: Path, dtype: torch.dtype) -> None:
        self.config: dict[str, Any] = json.loads((model / "config.json").read_text())
        self.is_mimo = self.config["model_type"] == "mimo"
        self.norm_offset = int(self.config["model_type"] not in ("mimo", *NUMBERED))
        self.names = MIMO if self.is_mimo else QWEN3_5
        self.w = {n: t.to(dtype) for n, t in load_file(model / "model.safetensors").items()}
        self.embedding = self.w["model.embed_tokens.weight"]
        self.head = self.w.get("lm_head.weight", self.embedding)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.config.get(f"mtp_{name}", default))

    def norm(self, x: Tensor, name: str) -> Tensor:
        wide, weight = x.float(), self.w[f"{name}.weight"].float() + self.norm_offset
        scale = torch.rsqrt((wide**2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return (wide * scale * weight).to(x.dtype)

    def hidden_of(self, residual: Tensor) -> Tensor:
        return self.norm(residual, "model.norm") if self.flag("reads_normed", True) else residual

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = self.w[f"{name}.weight"] @ x
        return out + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else out

    def rotate(self, x: Tensor, position: int) -> Tensor:
        """x: [heads, head_dim]; a quarter of a head of Qwen 3.5 rotates."""
        half = int(x.shape[-1] * (1 if self.is_mimo else 0.25)) // 2
        theta = self.config.get("rope_theta") or self.config["rope_parameters"]["rope_theta"]
        angles = position * theta ** (-torch.arange(half, dtype=torch.float32) / half)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        first, second, rest = x[:, :half], x[:, half : 2 * half], x[:, 2 * half :]
        return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)

    def attend(self, x: Tensor) -> Tensor:
        at, c, dim = f"{self.names['at']}self_attn.", self.config, self.config["head_dim"]
        heads, kv_heads = c["num_attention_heads"], c["num_key_value_heads"]
        q, k, v = (self.linear(f"{at}{n}_proj", x) for n in "qkv")
        q, k, v = q.view(heads, -1), k.view(kv_heads, dim), v.view(kv_heads, dim)
        gate = None
        if not self.is_mimo:
            q, gate = q[:, :dim], q[:, dim:]
            q, k = self.norm(q, f"{at}q_norm"), self.norm(k, f"{at}k_norm")
        position = len(self.keys)
        self.keys.append(self.rotate(k, position))
        self.values.append(v)
        keys, values = (
            torch.stack(x, 1).repeat_interleave(heads // kv_heads, 0)
            for x in (self.keys, self.values)
        )
        scores = (keys @ self.rotate(q, position)[:, :, None])[..., 0] / dim**0.5
        mixed = (scores.float().softmax(-1).to(q.dtype)[:, None] @ values)[:, 0]
        mixed = mixed if gate is None else mixed * gate.sigmoid()
        return self.linear(f"{at}o_proj", mixed.reshape(-1))

    def feed_forward(self, at: str, x: Tensor) -> Tensor:
        gate = torch.nn.functional.silu(self.linear(f"{at}gate_proj", x))
        return self.linear(f"{at}down_proj", gate * self.linear(f"{at}up_proj", x))

    def experts(self, at: str, x: Tensor) -> Tensor:
        """Qwen's experts and gated shared expert; stacked, or each with tensors of its own."""
        scores = self.linear(f"{at}gate", x).float().softmax(-1)
        weights, chosen = scores.topk(self.config["num_experts_per_tok"])
        out = self.linear(f"{at}shared_expert_gate", x).sigmoid()
        out = out * self.feed_forward(f"{at}shared_expert.", x)
        for weight, expert in zip(
            (weights / weights.sum()).to(x.dtype), chosen.tolist(), strict=True
        ):
            if f"{at}experts.gate_up_proj" in self.w:
                gate, up = (self.w[f"{at}experts.gate_up_proj"][expert] @ x).chunk(2)
                down = self.w[f"{at}experts.down_proj"][expert]
                out = out + weight * (down @ (torch.nn.functional.silu(gate) * up))
            else:
                out = out + weight * self.feed_forward(f"{at}experts.{expert}.", x)
        return out

    def row(self, hidden: Tensor, token: int) -> tuple[Tensor, Tensor]:
        """Logits, and the hidden row that the next row may read."""
        names, at = self.names, self.names["at"]
        is_blank = not self.keys and self.flag("blanks_first", self.is_mimo)
        embedded = torch.zeros_like(hidden) if is_blank else self.embedding[token]
        pair = [self.norm(embedded, names["e"]), self.norm(hidden, names["h"])]
        pair = pair[::-1] if self.flag("hidden_first", self.is_mimo) else pair
        x = self.w[f"{names['p']}.weight"] @ torch.cat(pair)
        x = x + self.attend(self.norm(x, f"{at}input_layernorm"))
        n = self.norm(x, f"{at}post_attention_layernorm")
        x = x + (
            self.experts(f"{at}mlp.", n)
            if f"{at}mlp.gate.weight" in self.w
            else self.feed_forward(f"{at}mlp.", n)
        )
        normed = self.norm(x, names["norm"])
        recycled = normed if self.flag("recycles_normed", True) else x
        return (self.head @ normed).float(), recycled

    def cut(self, rows: int) -> None:
        del self.keys[rows:], self.values[rows:]


class NumberedMtp(Mtp):
    """The MTP layer of GLM and DeepSeek, as a model of one layer in transformers. Each row forwards
    all rows before it again."""

    def __init__(self, model: Path, dtype: torch.dtype) -> None:
        super().__init__(model, dtype)
        self.at = f"model.layers.{self.config['num_hidden_layers']}."
        one = self.config | {"num_hidden_layers": 1, "first_k_dense_replace": 0}
        if one["model_type"] == "glm4_moe_lite":
            one["mlp_layer_types"] = ["sparse"]
        layer = {n.replace(self.at, "model.layers.0."): t for n, t in self.w.items()
                 if n.startswith(self.at)}  # fmt: skip
        layer |= {n: t for n, t in self.w.items() if not n.startswith("model.layers.")}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(one))
            save_file(layer, Path(folder) / "model.safetensors", {"format": "pt"})
            self.model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="eager"
            ).model
        self.model.norm = torch.nn.Identity()
        self.rows: list[Tensor] = []

    def row(self, hidden: Tensor, token: int) -> tuple[Tensor, Tensor]:
        is_blank = not self.rows and self.flag("blanks_first", True)
        embedded = torch.zeros_like(hidden) if is_blank else self.embedding[token]
        pair = [self.norm(embedded, f"{self.at}enorm"), self.norm(hidden, f"{self.at}hnorm")]
        pair = pair[::-1] if self.flag("hidden_first", False) else pair
        self.rows.append(self.w[f"{self.at}eh_proj.weight"] @ torch.cat(pair))
        inputs = torch.stack(self.rows)[None]
        x = self.model(inputs_embeds=inputs, use_cache=False).last_hidden_state[0, -1]
        normed = self.norm(x, f"{self.at}shared_head.norm")
        recycled = normed if self.flag("recycles_normed", True) else x
        return (self.head @ normed).float(), recycled

    def cut(self, rows: int) -> None:
        del self.rows[rows:]


def open_mtp(model: Path, dtype: torch.dtype) -> Mtp:
    kind = json.loads((model / "config.json").read_text())["model_type"]
    return (NumberedMtp if kind in NUMBERED else Mtp)(model, dtype)
