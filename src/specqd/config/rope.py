"""Rotary positions in a model's configuration, in old and new spellings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from specqd.config.fields import POSITIVE, Fields
from specqd.errors import ConfigError, shown

RopeKind = Literal["default", "linear", "llama3", "yarn", "longrope", "proportional"]

# Up to the trained length `dynamic` is the default rope. Beyond it, angles of cached keys would
# depend on how the sequence was split into forwards; the context ends there.
_SPELLINGS = {"dynamic": "default", "su": "longrope"}
_PROPORTIONAL = "proportional"
_KNOWN = (*get_args(RopeKind)[1:-1], "dynamic")  # in most families
_LARGEST_ANGLE = 2.0**30  # radians whose cosine the core computes accurately


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary positions. Fields that a kind does not use hold neutral values.

    The first dimensions of each head rotate; `share` is their fraction. If the kind is
    `proportional`, the first dimensions of both halves rotate. If `attention_factor` is None, it
    follows from `factor`, `mscale` and `mscale_all_dim` (0 if absent). `factors` divide the
    frequency of each pair. Rotated queries are scaled by
    1 + query_growth ln(1 + floor(position / original)).
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
    share: float = 1.0
    factors: tuple[float, ...] = ()
    query_growth: float = 0.0


@dataclass(frozen=True, slots=True)
class RopeDefaults:
    """A family's defaults for absent fields, and its field names.

    If `share` is None, whole heads rotate, and the configuration cannot change that.
    """

    theta: float = 10_000.0
    theta_name: str = "rope_theta"
    share: float | None = None
    share_name: str = "partial_rotary_factor"
    kind: str = "default"
    may_be_proportional: bool = False


def rope_fields(fields: Fields) -> Fields:
    """`rope_parameters` (transformers 5) or `rope_scaling` (before)."""
    return fields.part("rope_scaling" if fields.get("rope_scaling") else "rope_parameters")


def with_default_rope(fields: Fields, rope: Mapping[str, object]) -> Fields:
    """The fields, with `rope` as `rope_parameters` where they state no rope."""
    if fields.get("rope_scaling") or fields.get("rope_parameters"):
        return fields
    return fields.with_values(rope_parameters=rope)


def without_ropes(fields: Fields) -> Fields:
    plain = {name: value for name, value in fields.values.items() if "rope" not in name}
    return Fields(fields.path, plain, fields.within)


def read_ropes_by_type(
    fields: Fields,
    layer_types: Sequence[str],
    max_positions: int,
    head_dim: int,
    *,
    full: RopeDefaults,
    sliding: RopeDefaults,
    context: int | None,
) -> tuple[RopeConfig, ...]:
    """One rope for layers without a window, another for those with one.

    `rope_parameters` holds an object for each type; `rope_scaling` is that of full attention.
    `max_positions` is the family's default.
    """
    ropes = fields.part("rope_parameters")
    if "rope_type" in ropes.values:
        raise ropes.error(
            "rope_type", "is outside full_attention and sliding_attention; state it in them"
        )
    is_old = fields.get("rope_scaling") is not None or not ropes.values
    scaled = fields.part("rope_scaling") if is_old else ropes.part("full_attention")
    positions = fields.integer("max_position_embeddings", max_positions)
    full_rope, sliding_rope = (
        read_rope(fields, rope, positions, head_dim, defaults, context)
        for rope, defaults in ((scaled, full), (ropes.part("sliding_attention"), sliding))
    )
    return tuple(sliding_rope if kind == "sliding_attention" else full_rope for kind in layer_types)


def read_proportional_ropes(
    fields: Fields,
    layer_types: Sequence[str],
    max_positions: int,
    head_dim: int,
    *,
    share: float,
    context: int | None,
) -> tuple[RopeConfig, ...]:
    """Ropes by type of layer, where that of full attention may be proportional.

    It turns `share` of a head if the configuration states no ropes; a stated one turns all of it by
    default.
    """
    stated = fields.get("rope_parameters")
    is_stated = stated is not None
    fields = without_ropes(fields).with_values(rope_parameters=stated)
    ropes = read_ropes_by_type(
        fields,
        layer_types,
        max_positions,
        head_dim,
        full=RopeDefaults(
            theta=1_000_000.0,
            share=1.0 if is_stated else share,
            kind="default" if is_stated else _PROPORTIONAL,
            may_be_proportional=True,
        ),
        sliding=RopeDefaults(theta=10_000.0),
        context=context,
    )
    if any(rope.kind != _PROPORTIONAL and rope.share != 1.0 for rope in ropes):
        full = fields.part("rope_parameters").part("full_attention")
        raise full.wrong("rope_type", "'proportional' (for a partial_rotary_factor below 1)")
    return ropes


def read_rope(
    fields: Fields,
    rope: Fields,
    max_positions: int,
    head_dim: int,
    defaults: RopeDefaults,
    context: int | None = None,
) -> RopeConfig:
    """Reads the fields `rope`, and `fields` around them. `context` is the longest sequence."""
    stated = rope.get("rope_type") or rope.get("type") or defaults.kind
    kind = _SPELLINGS.get(stated, stated) if isinstance(stated, str) else None
    is_known = kind in get_args(RopeKind)
    if kind == _PROPORTIONAL and not defaults.may_be_proportional:
        is_known = False
    if not is_known or any(isinstance(v, dict) for v in rope.values.values()):
        what = f"rope type {shown(stated)}" if stated != "default" else "rope of several kinds"
        raise ConfigError(
            f"{rope.path}: {what} is not supported; known: default, {', '.join(_KNOWN)}"
        )
    share = _read_share(fields, rope, head_dim, defaults)
    theta = rope.positive("rope_theta", fields.positive(defaults.theta_name, defaults.theta))
    if kind == "linear":
        config = RopeConfig(kind="linear", theta=theta, factor=rope.positive("factor"))
    elif kind == "default":
        config = RopeConfig(kind="default", theta=theta)
    elif kind == _PROPORTIONAL:
        config = RopeConfig("proportional", theta, factor=rope.positive("factor", 1.0))
    else:
        # A top-level value wins over the one inside, as in transformers.
        original = fields.integer(
            "original_max_position_embeddings",
            rope.integer("original_max_position_embeddings", max_positions),
        )
        if kind == "llama3":
            config = _read_llama3_rope(rope, theta, original)
        elif kind == "yarn":
            config = _read_yarn_rope(rope, theta, original, max_positions)
        else:
            pairs = int(head_dim * share) // 2
            is_long = min(context or max_positions, max_positions) > original
            config = _read_long_rope(rope, theta, original, max_positions, pairs, is_long)
    _check_angles(rope, config, min(context or max_positions, max_positions))
    return replace(config, share=share)


def _check_angles(rope: Fields, config: RopeConfig, positions: int) -> None:
    slowing = min(1.0, config.theta) * min(1.0, config.factor, *config.factors)
    if positions >= _LARGEST_ANGLE * slowing:
        raise ConfigError(
            f"{rope.path}: the rope turns by more than 2^30 radians within {positions} positions; "
            "correct rope_theta, the rope's factors or max_position_embeddings"
        )


def _read_share(fields: Fields, rope: Fields, head_dim: int, defaults: RopeDefaults) -> float:
    """The fraction of a head that rotates."""
    for holder, name in ((rope, "partial_rotary_factor"), (fields, defaults.share_name)):
        share = holder.optional_number(name, 0.0, 1.0)
        if share is None:
            continue
        if defaults.share is None and share != 1.0:
            raise holder.wrong(name, "1 (rotating the whole head)")
        if int(head_dim * share) % 2 or int(head_dim * share) == 0:
            raise holder.wrong(name, f"a fraction of head_dim {head_dim} that is even")
        return share
    return 1.0 if defaults.share is None else defaults.share


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
    """An absent `factor` is the context's length over the original one."""
    if theta <= 1.0:
        raise rope.wrong("rope_theta", "more than 1")
    return RopeConfig(
        kind="yarn",
        theta=theta,
        factor=rope.positive("factor", max_positions / original),
        original_max_positions=original,
        beta_fast=rope.optional_number("beta_fast", 0.0, 1e30) or 32.0,
        beta_slow=rope.optional_number("beta_slow", 0.0, 1e30) or 1.0,
        attention_factor=rope.optional_number("attention_factor", *POSITIVE),
        mscale=rope.optional_number("mscale", 0.0, 1e30) or 0.0,
        mscale_all_dim=rope.optional_number("mscale_all_dim", 0.0, 1e30) or 0.0,
        truncate=rope.flag("truncate", True),
    )


def _read_long_rope(
    rope: Fields, theta: float, original: int, max_positions: int, pairs: int, is_long: bool
) -> RopeConfig:
    """Takes one list of factors for all sequences: cached keys must not change as one grows."""
    if original == 1:
        raise rope.wrong("original_max_position_embeddings", "more than 1")
    name = "long_factor" if is_long else "short_factor"
    factors = rope.get(name)
    if not (
        isinstance(factors, list)
        and len(factors) == pairs
        and all(type(x) in (int, float) and 1e-6 <= x <= 1e6 for x in factors)
    ):
        raise rope.wrong(name, f"a list of {pairs} numbers above 0")
    return RopeConfig(
        kind="longrope",
        theta=theta,
        factor=rope.positive("factor", max_positions / original),
        original_max_positions=original,
        attention_factor=rope.optional_number("attention_factor", *POSITIVE),
        factors=tuple(map(float, factors)),
    )
