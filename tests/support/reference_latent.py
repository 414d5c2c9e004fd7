"""Latent attention of the reference, with every head's keys and values expanded."""

import math

import numpy as np

from support.reference_feed_forward import Weights, linear, rms_norm
from support.reference_positions import Array, Config, is_visible, rotate

_NORM_EPS = 1e-6  # of latents; fixed in every model


def is_latent(layer: Weights) -> bool:
    return "self_attn.kv_a_layernorm.weight" in layer


def latent_attention(config: Config, layer: Weights, x: Array) -> Array:
    n, heads = len(x), config["num_attention_heads"]
    plain, rank = config["qk_nope_head_dim"], config["kv_lora_rank"]
    queries = _queries(layer, x).reshape(n, heads, -1)
    queries = np.concatenate([queries[..., :plain], rotate(config, 0, queries[..., plain:])], -1)
    row = linear(layer, "self_attn.kv_a_proj_with_mqa", x)
    latent = rms_norm(row[:, :rank], layer["self_attn.kv_a_layernorm.weight"], _NORM_EPS)
    expanded = linear(layer, "self_attn.kv_b_proj", latent).reshape(n, heads, -1)
    turned = rotate(config, 0, row[:, None, rank:]).repeat(heads, axis=1)
    keys = np.concatenate([expanded[..., :plain], turned], axis=-1)
    scores = np.einsum("thd,shd->hts", queries, keys) * _score_scale(config, keys.shape[-1])
    scores = np.where(is_visible(n, None), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hts,shd->thd", shares, expanded[..., plain:])
    return linear(layer, "self_attn.o_proj", mixed.reshape(n, -1))


def _queries(layer: Weights, x: Array) -> Array:
    if "self_attn.q_proj.weight" in layer:
        return linear(layer, "self_attn.q_proj", x)
    latent = linear(layer, "self_attn.q_a_proj", x)
    latent = rms_norm(latent, layer["self_attn.q_a_layernorm.weight"], _NORM_EPS)
    return linear(layer, "self_attn.q_b_proj", latent)


def _score_scale(config: Config, dim: int) -> float:
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    mscale = settings.get("mscale_all_dim", 0.0)
    growth = 0.1 * mscale * math.log(settings["factor"]) + 1.0 if mscale else 1.0
    return float(growth**2 / math.sqrt(dim))
