"""Reads the weights of a gated DeltaNet layer. Knows no files and no states."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config.decoder import DecoderConfig, DeltaConfig
from specqd.model.importance import LayerInputs
from specqd.model.loader import Loader, Source
from specqd.model.tensor_names import TensorNames


def recurrent_inputs(
    loader: Loader,
    config: DecoderConfig,
    delta: DeltaConfig,
    names: TensorNames,
    at: str,
    inputs: LayerInputs,
) -> _native.PackedWeight:
    """Queries, keys and values of all heads, then the gates of their outputs."""
    values, group = delta.value_heads * delta.value_dim, delta.value_heads // delta.key_heads
    modules = [f"{at}{names.recurrent}.{name}.weight" for name in names.recurrent_inputs]
    if len(modules) == 1:
        parts = delta.key_dim, delta.key_dim, group * delta.value_dim, group * delta.value_dim
        sources = _by_part(modules[0], delta.key_heads, parts)
    else:
        counts = delta.channels, values
        sources = [Source.whole(*each) for each in zip(modules, counts, strict=True)]
    return loader.pack(sources, config.hidden_size, importance=inputs.query_key_value)


def _by_part(name: str, heads: int, parts: Sequence[int]) -> list[Source]:
    """The rows of a tensor that holds `parts` for each head: a source for each part."""
    total = heads * sum(parts)

    def part(first: int, count: int) -> Source:
        def take(rows: NDArray[np.int64]) -> NDArray[np.int64]:
            return rows.reshape(heads, -1)[:, first : first + count].reshape(-1)

        return Source(name, total, heads * count, take)

    return [part(sum(parts[:i]), count) for i, count in enumerate(parts)]


def recurrent_output(
    loader: Loader,
    config: DecoderConfig,
    delta: DeltaConfig,
    names: TensorNames,
    at: str,
    inputs: LayerInputs,
) -> _native.PackedWeight:
    source = Source.whole(f"{at}{names.recurrent}.out_proj.weight", config.hidden_size)
    return loader.pack([source], delta.value_heads * delta.value_dim, importance=inputs.output)


def delta_weights(
    loader: Loader, config: DecoderConfig, delta: DeltaConfig, names: TensorNames, at: str
) -> _native.DeltaWeights:
    """The layer's other weights; FP32 rates and norms of outputs stay FP32."""
    at += names.recurrent
    modules = [f"{at}.{name}.weight" for name in names.recurrent_rates]
    group = delta.value_heads // delta.key_heads
    if len(modules) == 1:
        sources = _by_part(modules[0], delta.key_heads, (group, group))
    else:
        sources = [Source.whole(name, delta.value_heads) for name in modules]
    taps = loader.small(f"{at}.conv1d.weight", (delta.channels, 1, delta.taps))
    return _native.DeltaWeights(
        rates=loader.pack(sources, config.hidden_size),
        convolution=np.ascontiguousarray(taps[:, 0].T).reshape(-1),
        log_rate=loader.wide(f"{at}.A_log", delta.value_heads),
        step_bias=loader.wide(f"{at}.dt_bias", delta.value_heads),
        norm=loader.wide(f"{at}.norm.weight", delta.value_dim),
    )
