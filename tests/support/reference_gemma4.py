"""Gemma 4 in the reference: per-layer embeddings, and layers that share keys and values."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from support.reference_positions import Array, Config


def kv_layer(config: Config, index: int) -> int:
    """The layer whose keys and values layer `index` reads."""
    first_shared = config["num_hidden_layers"] - config.get("num_kv_shared_layers", 0)
    if index < first_shared:
        return index
    types = config["layer_types"]
    return max(i for i in range(first_shared) if types[i] == types[index])


def per_layer_inputs(
    config: Config, weights: Mapping[str, Array], tokens: Sequence[int], x: Array
) -> Array | None:
    """The part that each layer takes of the tokens whose embeddings are x, [n, layers, width]."""
    if "model.embed_tokens_per_layer.weight" not in weights:
        return None
    norm = weights["model.per_layer_projection_norm.weight"]
    shape = len(x), config["num_hidden_layers"], len(norm)
    context = x @ weights["model.per_layer_model_projection.weight"].T
    context = (context / math.sqrt(x.shape[1])).reshape(shape)
    squares = (context * context).mean(axis=-1, keepdims=True)
    context = context / np.sqrt(squares + config.get("rms_norm_eps", 1e-6)) * norm
    own = weights["model.embed_tokens_per_layer.weight"][np.asarray(tokens)].reshape(shape)
    summed: Array = (context + own * math.sqrt(len(norm))) / math.sqrt(2)
    return summed
