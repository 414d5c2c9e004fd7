"""Positions in the reference: keys that a query sees, and rope angles."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Config = Mapping[str, Any]  # the content of config.json


def is_qwen3_5(config: Config) -> bool:
    """Whether the model has gated attention between recurrent layers."""
    return config["model_type"].startswith(("qwen3_5", "qwen3_next"))


def head_dim(config: Config, index: int = 0) -> int:
    if config["model_type"] == "gemma4_text" and window(config, index) is None:
        return int(config.get("global_head_dim", 512))
    if "qk_rope_head_dim" in config:  # the part that rotates
        return int(config["qk_rope_head_dim"])
    if config.get("head_dim") is not None:
        return int(config["head_dim"])
    if config["model_type"] == "qwen3":
        return 128
    return int(config["hidden_size"] // config["num_attention_heads"])


def window(config: Config, index: int) -> int | None:
    """Number of keys that a query of layer `index` sees, its own included; None: all."""
    kind, types = config["model_type"], config.get("layer_types")
    if kind == "qwen3_moe" and not config.get("use_sliding_window", False):
        return None
    if kind in ("mistral", "ministral3", "phi3", "starcoder2", "mixtral", "qwen3_moe"):
        return config.get("sliding_window", 4096 if kind == "mistral" else None)
    if kind.startswith("gemma") or kind in ("gpt_oss", "olmo3"):
        every = 4 if kind == "olmo3" else 2
        if kind == "gemma3_text":
            every = config.get("sliding_window_pattern", 6)
        slides = (index + 1) % every != 0
    elif is_qwen3_5(config):
        return None
    elif kind.startswith("qwen") or kind == "smollm3":
        if not config.get("use_sliding_window", False):
            return None
        slides = index >= config.get("max_window_layers", 28)
        if kind == "smollm3":
            slides = not tells_positions(config, index)
    else:
        return None
    if types is not None:
        slides = types[index] == "sliding_attention"
    return config.get("sliding_window", 4096) if slides else None


def tells_positions(config: Config, index: int) -> bool:
    if config["model_type"] == "granitemoehybrid":
        return bool(config.get("position_embedding_type") == "rope")
    if config["model_type"] != "smollm3":
        return True
    if "no_rope_layers" in config:
        return bool(config["no_rope_layers"][index])
    return bool((index + 1) % config.get("no_rope_layer_interval", 4))


def rotated_dims(config: Config) -> int:
    """Number of dimensions of a head that rotate: the first ones."""
    shares = {"gpt_neox": 0.25, "stablelm": 0.25, "glm4": 0.5, "glm4_moe": 0.5}
    default = 0.25 if is_qwen3_5(config) else shares.get(config["model_type"], 1.0)
    share = config.get("rotary_pct", config.get("partial_rotary_factor", default))
    share = (config.get("rope_parameters") or {}).get("partial_rotary_factor", share)
    return int(head_dim(config) * share)


def rope(config: Config, index: int = 0, length: int = 0) -> tuple[Array, float]:
    """Angles per position of each rotated pair of dimensions, and the factor on cos and sin."""
    settings = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    base = config.get("rotary_emb_base", config.get("rope_theta", 10000.0))
    if config["model_type"] == "gemma4_text" and not settings:
        full = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
        settings = {"full_attention": full, "sliding_attention": {"rope_theta": 1e4}}
    if config["model_type"] in ("gemma3_text", "gemma4_text", "olmo3"):
        is_local = window(config, index) is not None
        nested = settings.get("sliding_attention" if is_local else "full_attention")
        settings = dict(nested or ({} if is_local else settings))
        if is_local and config["model_type"] == "gemma3_text":
            base = config.get("rope_local_base_freq", 10000.0)
    base = settings.get("rope_theta", base)
    kind = settings.get("rope_type", settings.get("type", "default"))
    if kind == "proportional":  # pairs behind the rotated ones have the frequency 0
        dim = head_dim(config, index)
        frequencies = 1.0 / base ** (np.arange(0, dim, 2) / dim) / settings.get("factor", 1.0)
        turning = int(dim * settings.get("partial_rotary_factor", 1.0) // 2)
        return np.where(np.arange(dim // 2) < turning, frequencies, 0.0), 1.0
    dim = rotated_dims(config)
    frequencies = 1.0 / base ** (np.arange(0, dim, 2) / dim)
    if kind in ("default", "dynamic"):
        return frequencies, 1.0
    if kind == "linear":
        return frequencies / settings["factor"], 1.0
    context = config.get("original_max_position_embeddings") or settings.get(
        "original_max_position_embeddings", config.get("max_position_embeddings")
    )
    if kind == "llama3":
        return _llama3(frequencies, settings, context), 1.0
    if kind == "yarn":
        return _yarn(frequencies, settings, context, base)
    if kind == "longrope":
        grown = settings.get("factor") or config["max_position_embeddings"] / context
        factors = settings["long_factor" if length > context else "short_factor"]
        scale = math.sqrt(1 + math.log(grown) / math.log(context)) if grown > 1 else 1.0
        return frequencies / np.asarray(factors), settings.get("attention_factor", scale)
    raise ValueError(f"rope type {kind!r}")


def query_scales(config: Config, length: int) -> Array:
    """Factors on rotated queries by position, [length]."""
    settings = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if config["model_type"] != "ministral3":
        return np.ones(length)
    lengths = np.arange(length) // settings["original_max_position_embeddings"]
    return 1 + settings["llama_4_scaling_beta"] * np.log1p(lengths)


def _llama3(frequencies: Array, settings: Config, context: int) -> Array:
    """Keeps fast dimensions, stretches slow ones, blends those between."""
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


def is_visible(n: int, window: int | None) -> NDArray[np.bool_]:
    distance = np.arange(n)[:, None] - np.arange(n)
    return (distance >= 0) & (distance < (window or n))


def rotate(config: Config, index: int, x: Array) -> Array:
    """Rotates dimensions i and i + half of x, [n, heads, head_dim], by position * angle i; in some
    families dimensions 2i and 2i + 1."""
    frequencies, scale = rope(config, index, len(x))
    angles = np.arange(len(x))[:, None, None] * frequencies
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    half = len(frequencies)
    if config["model_type"] == "glm4" or config.get("rope_interleave", "kv_lora_rank" in config):
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        turned = np.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return np.concatenate([turned.reshape(*x.shape[:2], -1), x[..., 2 * half :]], axis=-1)
    first, second, rest = np.split(x, (half, 2 * half), axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
