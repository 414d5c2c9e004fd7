"""Random models with MTP layers in their checkpoints. Knows nothing of our readers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from support.random_families import ZERO_CENTRED, tensor_sizes
from support.random_models import Shape, Tensors, draw, make_model, read_model
from support.writers import bf16_bits, write_safetensors

Sizes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class MtpForm:
    """How a family's MTP layer is named; those of each layer follow `layers` and its number."""

    model_type: str
    layers: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str


MIMO = MtpForm(
    "mimo", "model.mtp_layers", *(f"model.mtp_layers.0.{name}" for name in (
        "token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm",
    )),
)  # fmt: skip
QWEN3_5 = MtpForm(
    "qwen3_5_text", "mtp.layers", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc",
    "mtp.norm",
)  # fmt: skip
FORMS = {  # by the type of the shape: MiMo is Qwen 2 with such a layer
    "qwen2": MIMO,
    "qwen3_5_text": QWEN3_5,
    "qwen3_5_moe_text": replace(QWEN3_5, model_type="qwen3_5_moe_text"),
    "qwen3_next": replace(QWEN3_5, model_type="qwen3_next"),
}


def make_mtp_model(
    directory: Path, shape: Shape, seed: int, *, is_knowing: bool = False, **entries: Any
) -> Path:
    """Writes a model of that shape with a random MTP layer, and `entries` of config.json.

    A knowing layer picks each token's successor, in peaked models without tied embeddings.
    """
    make_model(directory, shape, seed)
    config, tensors = read_model(directory)
    config |= {"model_type": FORMS[shape.model_type].model_type, **entries}
    (directory / "config.json").write_text(json.dumps(config))
    layer = mtp_tensors(shape, seed + 1)
    if is_knowing:
        _teach(shape, tensors, layer, config.get("mtp_hidden_first", shape.model_type == "qwen2"))
    write_safetensors(directory / "model.safetensors", tensors | layer)
    return directory


def mtp_tensors(shape: Shape, seed: int) -> Tensors:
    """Gaussian BF16 weights, by their names in the checkpoint."""
    rng = np.random.default_rng(seed)
    return {name: bf16_bits(draw(rng, shape, name, size)) for name, size in _sizes(shape)}


def _sizes(shape: Shape) -> Sizes:
    form, hidden = FORMS[shape.model_type], shape.hidden
    yield f"{form.projection}.weight", (hidden, 2 * hidden)
    for norm in (form.embedding_norm, form.hidden_norm, form.final_norm):
        yield f"{norm}.weight", (hidden,)
    like = replace(shape, layers=1, extra={**shape.extra, "full_attention_interval": 1})
    for name, size in tensor_sizes(like):
        if name.startswith("model.layers."):
            yield name.replace("model.layers", form.layers), size


def _teach(shape: Shape, model: Tensors, layer: Tensors, hidden_first: bool) -> None:
    """The residual stream is the token's embedding; the layer adds nothing to it."""
    form, hidden = FORMS[shape.model_type], shape.hidden
    parts = [np.eye(hidden), np.zeros((hidden, hidden))]
    parts = parts[::-1] if hidden_first else parts
    layer[f"{form.projection}.weight"] = bf16_bits(np.concatenate(parts, 1).astype(np.float32))
    for name, bits in layer.items():
        if "o_proj" in name or "down_proj" in name:
            layer[name] = np.zeros_like(bits)
    plain = np.full(hidden, shape.model_type not in ZERO_CENTRED, np.float32)
    layer[f"{form.embedding_norm}.weight"] = bf16_bits(plain)
    layer[f"{form.final_norm}.weight"] = model["model.norm.weight"]
