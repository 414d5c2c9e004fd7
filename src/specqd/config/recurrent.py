"""Layers with a short convolution instead of attention, and which layers of a model they are."""

from dataclasses import dataclass

from specqd.config.fields import Fields

MOST_TAPS = 8
FULL, SLIDING = "full_attention", "sliding_attention"
_FULL = (FULL, "attention")  # the second is an old name


@dataclass(frozen=True, slots=True)
class DeltaConfig:
    """Layers with a gated delta rule, after a convolution of `taps` rows.

    Each key head serves the same number of value heads, consecutive ones.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    taps: int
    layers: tuple[bool, ...]

    @property
    def channels(self) -> int:
        """Queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclass(frozen=True, slots=True)
class ConvolutionConfig:
    """Layers with a convolution of `taps` rows alone, between gates of its inputs and outputs.

    `has_bias`: so do the convolution and both linears around it.
    """

    channels: int
    taps: int
    layers: tuple[bool, ...]
    has_bias: bool = False


def read_recurrent_layers(
    fields: Fields,
    num_layers: int,
    recurrent: str,
    older: tuple[str, ...] = (),
    may_slide: bool = False,
) -> tuple[bool, ...]:
    """Whether each layer is of the type `recurrent`, which may have older names, or has attention:
    full attention, or if `may_slide` one with a window."""
    attention = (*_FULL, SLIDING) if may_slide else _FULL
    known = (FULL, *attention[len(_FULL) :], recurrent)
    types = fields.kinds("layer_types", num_layers, known, (*_FULL[1:], *older))
    if not set(types) & set(attention):
        raise fields.error("layer_types", f"has no {FULL}; one layer at least needs it")
    return tuple(kind not in attention for kind in types)
