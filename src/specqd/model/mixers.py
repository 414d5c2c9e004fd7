"""The weights of a layer's mixer of positions: attention, or a recurrent rule."""

from dataclasses import dataclass

from specqd import _native
from specqd.model.loader import Bits


@dataclass(frozen=True, slots=True)
class MixerWeights:
    """`inputs` is the first product: of queries, keys and values, or for a recurrent rule."""

    inputs: _native.PackedWeight
    output: _native.PackedWeight
    input_bias: Bits | None = None
    output_bias: Bits | None = None
    query_norm: _native.Norm | None = None
    key_norm: _native.Norm | None = None
    value_norm: _native.Norm | None = None
    sinks: Bits | None = None
    latent: _native.LatentWeights | None = None
    convolution: Bits | None = None  # [taps * channels]
    convolution_bias: Bits | None = None
    delta: _native.DeltaWeights | None = None
