"""Rotary positions as a model's configuration states them, in old and new spellings."""

from dataclasses import dataclass
from typing import Literal, get_args

from specqd.errors import shown
from specqd.json_fields import Fields

RopeKind = Literal["default", "linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions. A field that its kind does not use holds a neutral value.

    `attention_factor` is None where it is derived from `factor`, `mscale` and `mscale_all_dim`;
    those two are 0 where absent.
    """

    kind: RopeKind
    theta: float
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True


def read_rope(fields: Fields, max_positions: int) -> RopeConfig:
    """From `rope_parameters` (transformers 5) or `rope_scaling` and `rope_theta` (before)."""
    rope = fields.nested("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in get_args(RopeKind) or any(isinstance(v, dict) for v in rope.values.values()):
        what = f"rope type {shown(kind)}" if kind != "default" else "rope of several kinds"
        raise rope.error(f"{what} is not supported; known: {', '.join(get_args(RopeKind))}")
    for holder in (rope, fields):
        if holder.get("partial_rotary_factor") not in (None, 1):
            raise holder.wrong("partial_rotary_factor", "1 (rotating the whole head)")
    theta = rope.positive("rope_theta", fields.positive("rope_theta", 10_000.0))
    if kind == "linear":
        return RopeConfig(kind="linear", theta=theta, factor=rope.positive("factor"))
    if kind == "default":
        return RopeConfig(kind="default", theta=theta)
    # A top-level value wins over the one inside, as in transformers.
    original = fields.integer(
        "original_max_position_embeddings",
        rope.integer("original_max_position_embeddings", max_positions),
    )
    if kind == "llama3":
        return _read_llama3_rope(rope, theta, original)
    return _read_yarn_rope(rope, theta, original, max_positions)


def _read_llama3_rope(rope: Fields, theta: float, original: int) -> RopeConfig:
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if high <= low:
        raise rope.wrong("high_freq_factor", f"more than low_freq_factor ({low:g})")
    return RopeConfig(
        kind="llama3",
        theta=theta,
        factor=rope.positive("factor"),
        original_max_positions=original,
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _read_yarn_rope(rope: Fields, theta: float, original: int, max_positions: int) -> RopeConfig:
    """Where `factor` is absent, it is by how much the context outgrows the original one."""
    if theta <= 1.0:
        raise rope.wrong("rope_theta", "more than 1")
    stated = rope.get("attention_factor") is not None
    return RopeConfig(
        kind="yarn",
        theta=theta,
        factor=rope.positive("factor", max_positions / original),
        original_max_positions=original,
        beta_fast=rope.optional_number("beta_fast", 0.0, 1e30) or 32.0,
        beta_slow=rope.optional_number("beta_slow", 0.0, 1e30) or 1.0,
        attention_factor=rope.positive("attention_factor") if stated else None,
        mscale=rope.optional_number("mscale", 0.0, 1e30) or 0.0,
        mscale_all_dim=rope.optional_number("mscale_all_dim", 0.0, 1e30) or 0.0,
        truncate=rope.flag("truncate", True),
    )
