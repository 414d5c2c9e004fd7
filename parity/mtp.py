"""MTP layers in torch, over transformers' residuals: what ours are compared with."""

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

# Where the layer's tensors begin, where those around it do, and these: the norms of the embedding
# and of the hidden row, the projection of both, and the final norm. N is the number of layers.
MIMO = ("model.mtp_layers.0.", "model.mtp_layers.0.",
        ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm"))  # fmt: skip
QWEN = ("mtp.layers.0.", "mtp.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm"))
NUMBERED = ("model.layers.N.", "model.layers.N.", ("enorm", "hnorm", "eh_proj", "shared_head.norm"))
# Of a model whose only layer attends to all positions and is like an MTP layer.
ONE_LAYER = {
    "num_hidden_layers": 1, "layer_types": ["full_attention"], "first_k_dense_replace": 0,
    "mlp_only_layers": [], "mlp_layer_types": ["sparse"],
}  # fmt: skip


def as_known(config: dict[str, Any]) -> dict[str, Any]:
    """transformers has no MiMo: it is Qwen 2 there."""
    if config["model_type"] != "mimo":
        return config
    return config | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}


def last_residuals(model: Path, tokens: Sequence[int], dtype: torch.dtype) -> Tensor:
    """The inputs of the final norm, [n, hidden]."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(shutil.copytree(model, Path(folder) / "model"))
        config = as_known(json.loads((copy / "config.json").read_text()))
        (copy / "config.json").write_text(json.dumps(config))
        return residuals(copy, tokens, dtype)[-1]


class Mtp:
    """Rows of one sequence, one after the other. The layer is a model of one layer in transformers,
    in which each row forwards all rows before it again."""

    def __init__(self, model: Path, dtype: torch.dtype) -> None:
        self.config: dict[str, Any] = json.loads((model / "config.json").read_text())
        kind = self.config["model_type"]
        self.is_mimo, self.is_qwen = kind == "mimo", kind.startswith("qwen")
        at, around, names = MIMO if self.is_mimo else QWEN if self.is_qwen else NUMBERED
        at, *names = (
            name.replace(".N.", f".{self.config['num_hidden_layers']}.")
            for name in (at, *(around + name for name in names))
        )
        self.embedding_norm, self.hidden_norm, self.projection, self.final_norm = names
        self.w = {n: t.to(dtype) for n, t in load_file(model / "model.safetensors").items()}
        self.embedding = self.w["model.embed_tokens.weight"]
        self.head = self.w.get("lm_head.weight", self.embedding)
        self.layer = self._layer(at, dtype)
        self.rows: list[Tensor] = []

    def _layer(self, at: str, dtype: torch.dtype) -> Any:
        config = as_known(self.config) | ONE_LAYER
        tensors = {n.replace(at, "model.layers.0."): t for n, t in self.w.items()
                   if n.startswith(at)}  # fmt: skip
        tensors |= {n: t for n, t in self.w.items() if n.startswith(("model.embed", "model.norm"))}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            save_file(tensors, Path(folder) / "model.safetensors", {"format": "pt"})
            layer = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="eager"
            ).model
        layer.norm = torch.nn.Identity()
        return layer

    def flag(self, name: str, default: bool) -> bool:
        return bool(self.config.get(f"mtp_{name}", default))

    def norm(self, x: Tensor, name: str) -> Tensor:
        wide, weight = x.float(), self.w[f"{name}.weight"].float() + int(self.is_qwen)
        scale = torch.rsqrt((wide**2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return (wide * scale * weight).to(x.dtype)

    def hidden_of(self, residual: Tensor) -> Tensor:
        return self.norm(residual, "model.norm") if self.flag("reads_normed", True) else residual

    def row(self, hidden: Tensor, token: int) -> tuple[Tensor, Tensor]:
        """Logits, and the hidden row that the next row may read."""
        is_blank = not self.rows and self.flag("blanks_first", not self.is_qwen)
        embedded = torch.zeros_like(hidden) if is_blank else self.embedding[token]
        pair = [self.norm(embedded, self.embedding_norm), self.norm(hidden, self.hidden_norm)]
        pair = pair[::-1] if self.flag("hidden_first", self.is_mimo) else pair
        self.rows.append(self.w[f"{self.projection}.weight"] @ torch.cat(pair))
        inputs = torch.stack(self.rows)[None]
        x = self.layer(inputs_embeds=inputs, use_cache=False).last_hidden_state[0, -1]
        normed = self.norm(x, self.final_norm)
        recycled = normed if self.flag("recycles_normed", True) else x
        return (self.head @ normed).float(), recycled

    def cut(self, rows: int) -> None:
        del self.rows[rows:]
