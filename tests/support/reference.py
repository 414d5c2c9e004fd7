"""The decoder in NumPy float64; only the weights are rounded.

Written from the models' definitions, to be read, and driven by the traits of a configuration: which
traits a family has is witnessed by the recorded logits of transformers, tests/goldens. Knows
nothing of caches, batches or speed.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd.config import DecoderConfig, read_decoder_config
from specqd.config.families import names_of
from specqd.config.fields import Fields
from specqd.config.tensor_names import TensorNames
from support.fp4 import bf16_values
from support.reference_feed_forward import (
    ACTIVATIONS,
    Weights,
    feed_forward,
    linear,
    norm,
    norm_if_any,
    rms_norm,
)
from support.reference_latent import latent_attention
from support.reference_positions import Array, is_visible, query_scales, rotate
from support.reference_recurrent import recurrent

KeysValues = dict[int, tuple[Array, Array]]  # by layer


def config_of(entries: Mapping[str, Any]) -> DecoderConfig:
    """The configuration in the content of a `config.json`."""
    return read_decoder_config(Fields(Path("config.json"), entries))


def logits(
    entries: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], tokens: Sequence[int]
) -> Array:
    """Logits after each token, [n, vocab], of a model with this `config.json`; BF16 `tensors` have
    their Hugging Face names."""
    return forward(config_of(entries), values(tensors), tokens)


def values(tensors: Mapping[str, NDArray[Any]]) -> Weights:
    """Values of BF16 tensors, and of MXFP4 ones by the common name of blocks and scales."""
    weights = {n: bf16_values(bits) for n, bits in tensors.items() if bits.dtype == np.uint16}
    for name, scales in tensors.items():
        if name.endswith("_scales"):
            stem = name.removesuffix("_scales")
            pairs = tensors[f"{stem}_blocks"]
            codes = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*scales.shape, 32)
            grid = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])[codes & 7] * np.where(codes & 8, -1, 1)
            blocks = np.ldexp(grid, scales[..., None].astype(int) - 127)
            weights[stem] = blocks.reshape(*scales.shape[:-1], -1)
    return weights


def router_margins(
    entries: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]], tokens: Sequence[int]
) -> Array:
    """By how much scores of experts may err before another one is chosen, over their RMS: the least
    of all layers for each token, [n]."""
    margins: list[Array] = []
    forward(config_of(entries), values(tensors), tokens, margins)
    return np.minimum.reduce([np.full(len(tokens), np.inf), *margins])


def rms_error(found: NDArray[Any], truth: NDArray[Any]) -> float:
    """RMS of the difference over RMS of `truth`, in float64."""
    truth = truth.astype(np.float64)
    return float(np.sqrt(((found - truth) ** 2).mean() / (truth**2).mean()))


def forward(
    config: DecoderConfig,
    weights: Weights,
    tokens: Sequence[int],
    margins: list[Array] | None = None,
    attended: list[Array] | None = None,
) -> Array:
    """Logits after each token, [n, vocab]. Appends each router's margins, [n], and the softmax
    weights of each layer that attends to keys of heads, [heads, n, n]."""
    margins = [] if margins is None else margins
    attended = [] if attended is None else attended
    names = names_of(config)
    embedding = weights[f"{names.embedding}.weight"]
    x = embedding[np.asarray(tokens)] * config.embedding_scale
    per_layer = _per_layer_inputs(config, names, weights, tokens, x)
    keys_values: KeysValues = {}
    for index in range(config.num_layers):
        layer = _layer(weights, f"{names.layers}.{index}.")
        before = x
        inputs = norm_if_any(config, layer, names.attention_norm, x)
        mixed = _mix(config, names, layer, index, inputs, keys_values, attended)
        mixed = norm_if_any(config, layer, names.attention_post_norm, mixed)
        x = x + mixed * config.residual_scale
        source = before if config.is_parallel else x
        added = feed_forward(config, names, layer, index, source, margins)
        added = norm_if_any(config, layer, names.feed_forward_post_norm, added)
        x = x + added * config.residual_scale
        if per_layer is not None:
            gate = ACTIVATIONS["gelu_tanh"](linear(layer, names.per_layer_gate, x))
            added = linear(layer, names.per_layer_projection, gate * per_layer[:, index])
            x = x + norm_if_any(config, layer, names.per_layer_post_norm, added)
        if config.scales_layers:
            x = x * layer[names.layer_scale]
    x = norm_if_any(config, weights, names.final_norm, x)
    head = embedding if config.tied_embeddings else weights[f"{names.head}.weight"]
    return _soft_cap(x @ head.T * config.logit_scale, config.logit_softcap)


def _layer(weights: Weights, prefix: str) -> Weights:
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}


def _soft_cap(x: Array, cap: float | None) -> Array:
    return x if cap is None else cap * np.tanh(x / cap)


def _per_layer_inputs(
    config: DecoderConfig, names: TensorNames, weights: Weights, tokens: Sequence[int], x: Array
) -> Array | None:
    """The part that each layer takes of the tokens whose embeddings are x, [n, layers, size]."""
    if config.per_layer is None:
        return None
    size = config.per_layer.size
    shape = len(x), config.num_layers, size
    context = linear(weights, names.per_layer_embedding, x) / math.sqrt(x.shape[1])
    norm_weight = weights[f"{names.per_layer_norm}.weight"]
    context = rms_norm(context.reshape(shape), norm_weight, config.norm_eps)
    own = weights[f"{names.per_layer_table}.weight"][np.asarray(tokens)].reshape(shape)
    summed: Array = (context + own * math.sqrt(size)) / math.sqrt(2)
    return summed


def _mix(
    config: DecoderConfig,
    names: TensorNames,
    layer: Weights,
    index: int,
    x: Array,
    keys_values: KeysValues,
    attended: list[Array],
) -> Array:
    """The output of the layer's attention or recurrence."""
    if config.recurrent is not None and config.recurrent.layers[index]:
        return recurrent(config, names, layer, x)
    if config.latent is not None:
        return latent_attention(config, config.latent, names, layer, x)
    return _attention(config, names, layer, index, x, keys_values, attended)


def _attention(
    config: DecoderConfig,
    names: TensorNames,
    layer: Weights,
    index: int,
    x: Array,
    keys_values: KeysValues,
    attended: list[Array],
) -> Array:
    """Keeps keys and values by layer, for later layers that share them."""
    own, heads, n = config.attention(index), config.num_heads, len(x)
    query, gates, *key_value = _projections(config, names, layer, index, x)
    if own.kv_layer is None:
        keys_values[index] = _keys_values(config, names, layer, index, key_value)
    q = _rotated(config, layer, index, names.query_norm, query, heads)
    q = q * query_scales(config.ropes[index], n)[:, None, None]
    source = keys_values[index if own.kv_layer is None else own.kv_layer]
    k, v = (np.repeat(part, heads // part.shape[1], axis=1) for part in source)
    scale = config.attention_scale or 1.0 / math.sqrt(own.head_dim)
    scores = _soft_cap(np.einsum("thd,shd->hts", q, k) * scale, config.attention_softcap)
    scores = np.where(is_visible(n, config.windows[index]), scores, -np.inf)
    if config.has_sinks:  # one more score per head, with the value zero
        sinks = np.broadcast_to(layer[names.sinks][:, None, None], (heads, n, 1))
        scores = np.concatenate([scores, sinks], -1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = (weights / weights.sum(axis=-1, keepdims=True))[..., :n]
    attended.append(weights)
    mixed = np.einsum("hts,shd->thd", weights, v).reshape(n, -1)
    if gates is not None:
        mixed = mixed / (1 + np.exp(-gates))
    return linear(layer, names.output, mixed)


def _projections(
    config: DecoderConfig, names: TensorNames, layer: Weights, index: int, x: Array
) -> list[Array | None]:
    """Rows of queries, their gates, then keys and values where the layer has its own."""
    own, heads, n = config.attention(index), config.num_heads, len(x)
    if len(names.query_key_value) == 1:
        fused = linear(layer, names.query_key_value[0], x)
        if names.fused_by_head:
            parts = np.split(fused.reshape(n, heads, -1), 3, axis=-1)
            q, k, v = (part.reshape(n, -1) for part in parts)
        else:
            ends = heads * own.head_dim, (heads + own.num_kv_heads) * own.head_dim
            q, k, v = np.split(fused, ends, axis=-1)
        return [q, None, k, v]
    query_name, *others = names.query_key_value
    others = others[:1] if own.values_are_keys else others
    rest = [linear(layer, name, x) for name in others] if own.kv_layer is None else []
    query = linear(layer, query_name, x)
    if config.attention_gates is None:
        return [query, None, *rest]
    if names.attention_gates is not None:
        gates = linear(layer, names.attention_gates, x)
        return [query, np.repeat(gates, query.shape[1] // gates.shape[1], -1), *rest]
    halves = np.split(query.reshape(n, heads, -1), 2, axis=-1)
    query, gates = (half.reshape(n, -1) for half in halves)
    return [query, gates, *rest]


def _keys_values(
    config: DecoderConfig,
    names: TensorNames,
    layer: Weights,
    index: int,
    parts: Sequence[Array | None],
) -> tuple[Array, Array]:
    """Keys and values of a layer's own, [n, kv_heads, head_dim] each."""
    kv_heads = config.attention(index).num_kv_heads
    key, value = parts[0], parts[-1]
    assert key is not None
    assert value is not None
    k = _rotated(config, layer, index, names.key_norm, key, kv_heads)
    v = value.reshape(len(value), kv_heads, -1)
    return k, rms_norm(v, np.ones(v.shape[-1]), config.norm_eps) if config.norms_values else v


def _rotated(
    config: DecoderConfig, layer: Weights, index: int, norm_name: str, x: Array, heads: int
) -> Array:
    """Queries or keys, [n, heads, head_dim], normalised before the rotation or after it."""
    if config.rotates_before_norm:
        x = rotate(config, index, x.reshape(len(x), heads, -1))
        return _normed_heads(config, layer, norm_name, x, heads)
    return rotate(config, index, _normed_heads(config, layer, norm_name, x, heads))


def _normed_heads(config: DecoderConfig, layer: Weights, name: str, x: Array, heads: int) -> Array:
    """x as [n, heads, head_dim], after the norm of queries or keys, if there is one."""
    if config.qk_norm == "row":  # one norm over all heads
        x = norm(config, x, layer[f"{name}.weight"])
    x = x.reshape(len(x), heads, -1)
    if config.qk_norm == "one":
        return norm(config, x, layer[f"{name}.weight"])
    if config.qk_norm == "each":
        weights = [layer[f"{name}.norms.{head}.weight"] for head in range(heads)]
        return norm(config, x, np.stack(weights))
    return x
