"""Random models with MTP layers in their checkpoints. Knows nothing of our readers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from support.random_families import RECURRENT, ZERO_CENTRED, tensor_sizes
from support.random_models import Shape, Tensors, draw, make_model, read_model
from support.writers import bf16_bits, write_safetensors

Sizes = Iterator[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class MtpForm:
    """Names a family's MTP layer; the names of the layer's own modules begin with `layer`."""

    model_type: str
    layer: str
    embedding_norm: str
    hidden_norm: str
    projection: str
    final_norm: str


def form_of(shape: Shape) -> MtpForm:
    """MiMo is Qwen 2 with such a layer."""
    if shape.model_type == "qwen2":
        at = "model.mtp_layers.0."
        names = ("token_layernorm", "hidden_layernorm", "input_proj", "final_layernorm")
        return MtpForm("mimo", at, *(at + name for name in names))
    if shape.model_type in RECURRENT:
        names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
        return MtpForm(shape.model_type, "mtp.layers.0.", *(f"mtp.{name}" for name in names))
    at = f"model.layers.{shape.layers}."
    names = ("enorm", "hnorm", "eh_proj", "shared_head.norm")
    return MtpForm(shape.model_type, at, *(at + name for name in names))


def make_mtp_model(
    directory: Path, shape: Shape, seed: int, *, is_knowing: bool = False, **entries: Any
) -> Path:
    """Writes a model of that shape with a random MTP layer, and `entries` of config.json.

    A knowing layer picks each token's successor, in peaked models without tied embeddings.
    """
    make_model(directory, shape, seed)
    config, tensors = read_model(directory)
    config |= {"model_type": form_of(shape).model_type, **entries}
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
    form, hidden = form_of(shape), shape.hidden
    yield f"{form.projection}.weight", (hidden, 2 * hidden)
    for norm in (form.embedding_norm, form.hidden_norm, form.final_norm):
        yield f"{norm}.weight", (hidden,)
    every = {"full_attention_interval": 1, "first_k_dense_replace": 0}
    for name, size in tensor_sizes(replace(shape, layers=1, extra={**shape.extra, **every})):
        if name.startswith("model.layers.0."):
            yield name.replace("model.layers.0.", form.layer), size


def _teach(shape: Shape, model: Tensors, layer: Tensors, hidden_first: bool) -> None:
    """The residual stream is the token's embedding; the layer adds nothing to it."""
    form, hidden = form_of(shape), shape.hidden
    parts = [np.eye(hidden), np.zeros((hidden, hidden))]
    parts = parts[::-1] if hidden_first else parts
    layer[f"{form.projection}.weight"] = bf16_bits(np.concatenate(parts, 1).astype(np.float32))
    for name, bits in layer.items():
        if "o_proj" in name or "down_proj" in name:
            layer[name] = np.zeros_like(bits)
    plain = np.full(hidden, shape.model_type not in ZERO_CENTRED, np.float32)
    layer[f"{form.embedding_norm}.weight"] = bf16_bits(plain)
    layer[f"{form.final_norm}.weight"] = model["model.norm.weight"]
