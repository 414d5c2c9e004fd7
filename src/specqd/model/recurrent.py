"""Reads the weights of a gated DeltaNet layer. Knows no files and no states."""

import numpy as np

from specqd import _native
from specqd.config.decoder import DecoderConfig, DeltaConfig
from specqd.model.importance import LayerInputs
from specqd.model.loader import Loader, Source


def recurrent_inputs(
    loader: Loader, config: DecoderConfig, delta: DeltaConfig, at: str, inputs: LayerInputs
) -> _native.PackedWeight:
    """Queries, keys and values of all heads, then the gates of their outputs."""
    values = delta.value_heads * delta.value_dim
    rows = {"in_proj_qkv": delta.channels, "in_proj_z": values}
    sources = [Source.whole(f"{at}.{name}.weight", count) for name, count in rows.items()]
    return loader.pack(sources, config.hidden_size, importance=inputs.query_key_value)


def recurrent_output(
    loader: Loader, config: DecoderConfig, delta: DeltaConfig, at: str, inputs: LayerInputs
) -> _native.PackedWeight:
    source = Source.whole(f"{at}.out_proj.weight", config.hidden_size)
    return loader.pack([source], delta.value_heads * delta.value_dim, importance=inputs.output)


def delta_weights(
    loader: Loader, config: DecoderConfig, delta: DeltaConfig, at: str
) -> _native.DeltaWeights:
    """The layer's other weights; FP32 rates and norms of outputs stay FP32."""
    names = [f"{at}.{name}.weight" for name in ("in_proj_b", "in_proj_a")]
    rates = loader.pack(
        [Source.whole(name, delta.value_heads) for name in names], config.hidden_size
    )
    taps = loader.small(f"{at}.conv1d.weight", (delta.channels, 1, delta.taps))
    return _native.DeltaWeights(
        rates=rates,
        convolution=np.ascontiguousarray(taps[:, 0].T).reshape(-1),
        log_rate=loader.wide(f"{at}.A_log", delta.value_heads),
        step_bias=loader.wide(f"{at}.dt_bias", delta.value_heads),
        norm=loader.wide(f"{at}.norm.weight", delta.value_dim),
    )
