"""The decoder in NumPy float64: what the logits are, without any rounding but the weights' own.

Written to be read, from the models' definitions. Knows nothing of caches, batches or speed.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd.mxfp4 import bf16_values

Array = NDArray[np.float64]
Config = Mapping[str, Any]  # as in config.json
Weights = Mapping[str, Array]


def logits(
    config: Config, tensors: Mapping[str, NDArray[np.uint16]], tokens: Sequence[int]
) -> Array:
    """Logits after each token, [n, vocab], of BF16 `tensors` by their Hugging Face names."""
    weights = {name: bf16_values(bits) for name, bits in tensors.items()}
    return forward(config, weights, tokens)


def forward(config: Config, weights: Weights, tokens: Sequence[int]) -> Array:
    """Logits after each token, [n, vocab]."""
    embedding = weights["model.embed_tokens.weight"]
    eps = config.get("rms_norm_eps", 1e-6)
    x = embedding[np.asarray(tokens)]
    for index in range(config["num_hidden_layers"]):
        layer = _layer(weights, index)
        x = x + _attention(config, layer, index, rms_norm(x, layer["input_layernorm.weight"], eps))
        x = x + _mlp(layer, rms_norm(x, layer["post_attention_layernorm.weight"], eps))
    x = rms_norm(x, weights["model.norm.weight"], eps)
    head = embedding if config.get("tie_word_embeddings") else weights["lm_head.weight"]
    return x @ head.T


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * weight


def head_dim(config: Config) -> int:
    if config.get("head_dim") is not None:
        return int(config["head_dim"])
    if config["model_type"] == "qwen3":
        return 128
    return int(config["hidden_size"] // config["num_attention_heads"])


def window(config: Config, index: int) -> int | None:
    """How many keys, its own included, a query of layer `index` sees; None for all."""
    if config["model_type"] == "llama":
        return None
    if config["model_type"] == "mistral":
        return config.get("sliding_window", 4096)
    if not config.get("use_sliding_window", False):
        return None
    types = config.get("layer_types")
    slides = (
        types[index] == "sliding_attention"
        if types is not None
        else index >= config.get("max_window_layers", 28)
    )
    return config.get("sliding_window", 4096) if slides else None


def rope(config: Config) -> tuple[Array, float]:
    """Angle per position of each pair of dimensions [head_dim / 2]; the factor on cos and sin."""
    settings = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = settings.get("rope_theta", config.get("rope_theta", 10000.0))
    kind = settings.get("rope_type", settings.get("type", "default"))
    dim = head_dim(config)
    frequencies = 1.0 / base ** (np.arange(0, dim, 2) / dim)
    if kind == "default":
        return frequencies, 1.0
    if kind == "linear":
        return frequencies / settings["factor"], 1.0
    context = settings.get("original_max_position_embeddings") or config["max_position_embeddings"]
    if kind == "llama3":
        return _llama3(frequencies, settings, context), 1.0
    if kind == "yarn":
        return _yarn(frequencies, settings, context, base)
    raise ValueError(f"rope type {kind!r}")


def _llama3(frequencies: Array, settings: Config, context: int) -> Array:
    """Keep the fast dimensions, stretch the slow ones, blend those between."""
    turns = context * frequencies / (2 * math.pi)  # over the original context
    low, high = settings["low_freq_factor"], settings["high_freq_factor"]
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return keep * frequencies + (1 - keep) * frequencies / settings["factor"]


def _yarn(frequencies: Array, settings: Config, context: int, base: float) -> tuple[Array, float]:
    """YaRN (arXiv 2309.00071): as llama3, but the blend is linear in the dimension's index."""
    dim, factor = 2 * len(frequencies), settings["factor"]

    def index_with_turns(turns: float) -> float:
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = index_with_turns(settings.get("beta_fast") or 32)
    high = index_with_turns(settings.get("beta_slow") or 1)
    if settings.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    stretch = np.clip((np.arange(dim // 2) - low) / ((high - low) or 0.001), 0.0, 1.0)

    def attention_scale(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0

    scale = settings.get("attention_factor")
    if scale is None:
        mscale, mscale_all = settings.get("mscale"), settings.get("mscale_all_dim")
        scale = attention_scale(1.0)
        if mscale and mscale_all:
            scale = attention_scale(mscale) / attention_scale(mscale_all)
    return frequencies / factor * stretch + frequencies * (1 - stretch), float(scale)


def _layer(weights: Weights, index: int) -> Weights:
    prefix = f"model.layers.{index}."
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}


def _linear(layer: Weights, name: str, x: Array) -> Array:
    return x @ layer[f"{name}.weight"].T + layer.get(f"{name}.bias", np.zeros(1))


def _attention(config: Config, layer: Weights, index: int, x: Array) -> Array:
    n, dim = len(x), head_dim(config)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    q = _linear(layer, "self_attn.q_proj", x).reshape(n, heads, dim)
    k = _linear(layer, "self_attn.k_proj", x).reshape(n, kv_heads, dim)
    v = _linear(layer, "self_attn.v_proj", x).reshape(n, kv_heads, dim)
    if "self_attn.q_norm.weight" in layer:
        eps = config.get("rms_norm_eps", 1e-6)
        q = rms_norm(q, layer["self_attn.q_norm.weight"], eps)
        k = rms_norm(k, layer["self_attn.k_norm.weight"], eps)
    q, k = _rotate(config, q), _rotate(config, k)
    k, v = (np.repeat(t, heads // kv_heads, axis=1) for t in (k, v))
    scores = np.einsum("thd,shd->hts", q, k) / math.sqrt(dim)
    scores = np.where(_is_visible(n, window(config, index)), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed = np.einsum("hts,shd->thd", shares, v).reshape(n, heads * dim)
    return _linear(layer, "self_attn.o_proj", mixed)


def _is_visible(n: int, window: int | None) -> NDArray[np.bool_]:
    distance = np.arange(n)[:, None] - np.arange(n)
    return (distance >= 0) & (distance < (window or n))


def _rotate(config: Config, x: Array) -> Array:
    """Rotate dimensions i and i + head_dim / 2 of x [n, heads, head_dim] by position * angle i."""
    frequencies, scale = rope(config)
    angles = np.arange(len(x))[:, None, None] * frequencies
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _mlp(layer: Weights, x: Array) -> Array:
    gate = _linear(layer, "mlp.gate_proj", x)
    return _linear(
        layer, "mlp.down_proj", gate / (1 + np.exp(-gate)) * _linear(layer, "mlp.up_proj", x)
    )
