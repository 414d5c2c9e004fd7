"""Latent attention of the reference, with every head's keys and values expanded."""

import numpy as np

from specqd.config import DecoderConfig
from specqd.config.decoder import LatentConfig
from specqd.config.tensor_names import TensorNames
from support.reference_feed_forward import Weights, linear, rms_norm
from support.reference_positions import Array, is_visible, rotate

_NORM_EPS = 1e-6  # of latents; fixed in every model


def latent_attention(
    config: DecoderConfig, latent: LatentConfig, names: TensorNames, layer: Weights, x: Array
) -> Array:
    n, heads, plain = len(x), config.num_heads, latent.plain_dim
    queries = _queries(latent, names, layer, x).reshape(n, heads, -1)
    queries = np.concatenate([queries[..., :plain], rotate(config, 0, queries[..., plain:])], -1)
    row = linear(layer, names.latent, x)
    norm = layer[f"{names.latent_norm}.weight"]
    inner = rms_norm(row[:, : latent.rank], norm, _NORM_EPS)
    expanded = linear(layer, names.latent_keys_values, inner).reshape(n, heads, -1)
    rotated = rotate(config, 0, row[:, None, latent.rank :]).repeat(heads, axis=1)
    keys = np.concatenate([expanded[..., :plain], rotated], axis=-1)
    assert config.attention_scale is not None
    scores = np.einsum("thd,shd->hts", queries, keys) * config.attention_scale
    scores = np.where(is_visible(n, 0), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hts,shd->thd", weights, expanded[..., plain:])
    return linear(layer, names.output, mixed.reshape(n, -1))


def _queries(latent: LatentConfig, names: TensorNames, layer: Weights, x: Array) -> Array:
    if latent.query_rank is None:
        return linear(layer, names.query_key_value[0], x)
    inner = linear(layer, names.query_latent, x)
    inner = rms_norm(inner, layer[f"{names.query_latent_norm}.weight"], _NORM_EPS)
    return linear(layer, names.latent_queries, inner)
