"""Positions in the reference: keys that a query sees, and rope angles."""

import math

import numpy as np
from numpy.typing import NDArray

from specqd.config import DecoderConfig, RopeConfig

Array = NDArray[np.float64]


def frequencies_of(rope: RopeConfig, head_dim: int) -> tuple[Array, float]:
    """Angles per position of each rotated pair of dimensions, and the factor on cos and sin."""
    if rope.kind == "proportional":  # pairs after the rotated ones have the frequency 0
        frequencies = 1.0 / rope.theta ** (np.arange(0, head_dim, 2) / head_dim) / rope.factor
        rotated = int(head_dim * rope.share // 2)
        return np.where(np.arange(head_dim // 2) < rotated, frequencies, 0.0), 1.0
    dim = int(head_dim * rope.share)
    frequencies = 1.0 / rope.theta ** (np.arange(0, dim, 2) / dim)
    if rope.kind == "linear":
        return frequencies / rope.factor, 1.0
    if rope.kind == "llama3":
        return _llama3(frequencies, rope), 1.0
    if rope.kind == "yarn":
        return _yarn(frequencies, rope), _yarn_scale(rope)
    if rope.kind == "longrope":
        grown, context = rope.factor, rope.original_max_positions
        scale = math.sqrt(1 + math.log(grown) / math.log(context)) if grown > 1 else 1.0
        return frequencies / np.asarray(rope.factors), rope.attention_factor or scale
    return frequencies, 1.0


def query_scales(rope: RopeConfig | None, length: int) -> Array:
    """Factors on rotated queries by position, [length]."""
    if rope is None or not rope.query_growth:
        return np.ones(length)
    lengths = np.arange(length) // rope.original_max_positions
    return 1 + rope.query_growth * np.log1p(lengths)


def _llama3(frequencies: Array, rope: RopeConfig) -> Array:
    """Keeps fast dimensions, stretches slow ones, blends those between."""
    turns = rope.original_max_positions * frequencies / (2 * math.pi)  # in the original context
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return keep * frequencies + (1 - keep) * frequencies / rope.factor


def _yarn(frequencies: Array, rope: RopeConfig) -> Array:
    """YaRN (arXiv 2309.00071): as llama3, but the blend is linear in the dimension's index."""
    dim, context = 2 * len(frequencies), rope.original_max_positions

    def index_with_turns(turns: float) -> float:
        return dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = index_with_turns(rope.beta_fast), index_with_turns(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    stretch = np.clip((np.arange(dim // 2) - low) / ((high - low) or 0.001), 0.0, 1.0)
    return frequencies / rope.factor * stretch + frequencies * (1 - stretch)


def _yarn_scale(rope: RopeConfig) -> float:
    def growth(mscale: float) -> float:
        return 0.1 * mscale * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return growth(rope.mscale) / growth(rope.mscale_all_dim)
    return growth(1.0)


def is_visible(n: int, window: int) -> NDArray[np.bool_]:
    """Which of n positions each of them sees, [n, n]; a window of 0 is full attention."""
    distance = np.arange(n)[:, None] - np.arange(n)
    return (distance >= 0) & (distance < (window or n))


def rotate(config: DecoderConfig, index: int, x: Array) -> Array:
    """Rotates pairs of dimensions of x, [n, heads, dim], by position times the pair's angle."""
    rotation = config.rotation(index)
    if rotation is None:
        return x
    frequencies, scale = frequencies_of(*rotation)
    angles = np.arange(len(x))[:, None, None] * frequencies
    cos, sin = np.cos(angles) * scale, np.sin(angles) * scale
    half = len(frequencies)
    if config.rope_pairs == "neighbours":
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
        turned = np.stack([first * cos - second * sin, second * cos + first * sin], axis=-1)
        return np.concatenate([turned.reshape(*x.shape[:2], -1), x[..., 2 * half :]], axis=-1)
    first, second, rest = np.split(x, (half, 2 * half), axis=-1)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)
