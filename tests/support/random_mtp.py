"""Random models with MTP layers in their checkpoints."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from specqd.config.families import mtp_names_of
from specqd.config.tensor_names import MtpNames
from support.model_tensors import layer_sizes
from support.random_models import Shape, Tensors, draw, make_config, make_model, read_model
from support.reference import config_of
from support.writers import bf16_bits, write_safetensors


def make_mtp_model(
    directory: Path, shape: Shape, seed: int, *, is_knowing: bool = False, **entries: Any
) -> Path:
    """Writes a model of that shape with a random MTP layer, and `entries` of config.json.

    A knowing layer predicts each token's successor, in peaked models without tied embeddings.
    """
    shape = _with_mtp(shape)
    make_model(directory, shape, seed)
    config, tensors = read_model(directory)
    config |= entries
    (directory / "config.json").write_text(json.dumps(config))
    layer = mtp_tensors(shape, seed + 1)
    if is_knowing:
        _teach(config, tensors, layer)
    write_safetensors(directory / "model.safetensors", tensors | layer)
    return directory


def _with_mtp(shape: Shape) -> Shape:
    """MiMo is Qwen 2 with such a layer."""
    return replace(shape, model_type="mimo") if shape.model_type == "qwen2" else shape


def names_for(shape: Shape) -> MtpNames:
    return mtp_names_of(config_of(make_config(_with_mtp(shape))))


def mtp_tensors(shape: Shape, seed: int) -> Tensors:
    """Gaussian BF16 weights, by their names in the checkpoint."""
    rng = np.random.default_rng(seed)
    shape = _with_mtp(shape)
    config, hidden = config_of(make_config(shape)), shape.hidden
    names = mtp_names_of(config)
    attending = replace(config, recurrent=None)
    like = names.feed_forward_of % config.num_layers
    sizes: dict[str, tuple[int, ...]] = {f"{names.projection}.weight": (hidden, 2 * hidden)}
    for norm in (names.embedding_norm, names.hidden_norm, names.final_norm):
        sizes[f"{norm}.weight"] = (hidden,)
    sizes |= layer_sizes(attending, like, names.layer)
    return {name: bf16_bits(draw(rng, config, name, size)) for name, size in sizes.items()}


def _teach(entries: dict[str, Any], model: Tensors, layer: Tensors) -> None:
    """The residual stream is the token's embedding; the layer adds nothing to it."""
    config = config_of(entries)
    names, hidden = mtp_names_of(config), config.hidden_size
    assert config.mtp is not None
    parts = [np.eye(hidden), np.zeros((hidden, hidden))]
    parts = parts[::-1] if config.mtp.hidden_first else parts
    layer[f"{names.projection}.weight"] = bf16_bits(np.concatenate(parts, 1).astype(np.float32))
    for name, bits in layer.items():
        if "o_proj" in name or "down_proj" in name:
            layer[name] = np.zeros_like(bits)
    plain = np.full(hidden, 1 - config.norm_offset, np.float32)
    layer[f"{names.embedding_norm}.weight"] = bf16_bits(plain)
    layer[f"{names.final_norm}.weight"] = model["model.norm.weight"]
