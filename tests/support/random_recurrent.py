"""Tensors of recurrent layers for random models. Written from the models' definitions."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from support.random_models import Shape

Sizes = Iterator[tuple[str, tuple[int, ...]]]
Linears = dict[str, tuple[int, int, bool]]  # rows, columns and whether there is a bias

# Two value heads a key head, so that their order matters.
DELTA_NET = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
}


def _sizes(shape: "Shape") -> tuple[int, int, int]:
    """Channels of the convolution, outputs, and value heads."""
    e = shape.extra
    keys = e["linear_num_key_heads"] * e["linear_key_head_dim"]
    values = e["linear_num_value_heads"] * e["linear_value_head_dim"]
    return 2 * keys + values, values, e["linear_num_value_heads"]


def recurrent_linears(shape: "Shape") -> Linears:
    channels, values, heads = _sizes(shape)
    rows = {"in_proj_qkv": channels, "in_proj_z": values, "in_proj_b": heads, "in_proj_a": heads}
    if shape.model_type == "qwen3_next":  # by key head
        rows = {"in_proj_qkvz": channels + values, "in_proj_ba": 2 * heads}
    linears = {f"linear_attn.{name}": (count, shape.hidden, False) for name, count in rows.items()}
    return linears | {"linear_attn.out_proj": (shape.hidden, values, False)}


def recurrent_vectors(shape: "Shape") -> Sizes:
    channels, _, heads = _sizes(shape)
    yield "linear_attn.conv1d.weight", (channels, 1, shape.extra["linear_conv_kernel_dim"])
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.norm.weight", (shape.extra["linear_value_head_dim"],)


def draw_recurrent(
    rng: np.random.Generator, name: str, size: tuple[int, ...]
) -> NDArray[np.float32] | None:
    """Decays from none to all of a state, as in trained models; None for other tensors."""
    if name.endswith("A_log"):
        drawn = np.log(rng.uniform(0.01, 16, size))
    elif name.endswith("dt_bias"):
        drawn = rng.uniform(-6, 1, size)
    elif name.endswith(("conv1d.weight", "conv.conv.weight")):
        drawn = rng.normal(0, 0.5, size)
    elif name.endswith("linear_attn.norm.weight"):
        drawn = rng.normal(1, 0.2, size)
    else:
        return None
    return drawn.astype(np.float32)
