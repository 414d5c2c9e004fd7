"""Reads the weights of recurrent layers. Knows no files and no states."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config.decoder import DecoderConfig
from specqd.config.recurrent import ConvolutionConfig, DeltaConfig
from specqd.config.tensor_names import TensorNames
from specqd.model.importance import LayerInputs
from specqd.model.loader import Bits, Loader, Source
from specqd.model.mixers import MixerWeights


@dataclass(frozen=True, slots=True)
class RecurrentReader:
    """Reads the tensors of one recurrent layer, whose names begin with `at`."""

    loader: Loader
    config: DecoderConfig
    names: TensorNames
    at: str
    inputs: LayerInputs

    def read(self) -> MixerWeights:
        recurrent = self.config.recurrent
        if isinstance(recurrent, DeltaConfig):
            return self._delta_net(recurrent)
        assert isinstance(recurrent, ConvolutionConfig)
        return self._gated_convolution(recurrent)

    def _delta_net(self, delta: DeltaConfig) -> MixerWeights:
        values = delta.value_heads * delta.value_dim
        return MixerWeights(
            inputs=self._pack(self._delta_inputs(delta)),
            output=self._output(values),
            convolution=self._convolution(delta.channels, delta.taps),
            delta=self._delta_weights(delta),
        )

    def _delta_inputs(self, delta: DeltaConfig) -> list[Source]:
        """Queries, keys and values of all heads, then the gates of their outputs."""
        values, group = delta.value_heads * delta.value_dim, delta.value_heads // delta.key_heads
        modules = [self._name(f"{name}.weight") for name in self.names.recurrent_inputs]
        if len(modules) == 1:
            parts = delta.key_dim, delta.key_dim, group * delta.value_dim, group * delta.value_dim
            return _by_part(modules[0], delta.key_heads, parts)
        counts = delta.channels, values
        return [Source.whole(*each) for each in zip(modules, counts, strict=True)]

    def _delta_weights(self, delta: DeltaConfig) -> _native.DeltaWeights:
        """The weights of the rule itself; rates and norms that are FP32 in the file stay FP32."""
        modules = [self._name(f"{name}.weight") for name in self.names.recurrent_rates]
        group = delta.value_heads // delta.key_heads
        if len(modules) == 1:
            sources = _by_part(modules[0], delta.key_heads, (group, group))
        else:
            sources = [Source.whole(name, delta.value_heads) for name in modules]
        return _native.DeltaWeights(
            rates=self.loader.pack(sources, self.config.hidden_size),
            log_rate=self.loader.wide(self._name("A_log"), delta.value_heads),
            step_bias=self.loader.wide(self._name("dt_bias"), delta.value_heads),
            norm=self.loader.wide(self._name("norm.weight"), delta.value_dim),
        )

    def _gated_convolution(self, convolution: ConvolutionConfig) -> MixerWeights:
        """One tensor holds gates of inputs, gates of outputs, and values, in this order."""
        channels, [inputs] = convolution.channels, self.names.recurrent_inputs

        def bias(module: str, length: int) -> Bits | None:
            return self.loader.bias(self._name(module), length, convolution.has_bias)

        return MixerWeights(
            inputs=self._pack([Source.whole(self._name(f"{inputs}.weight"), 3 * channels)]),
            output=self._output(channels),
            convolution=self._convolution(channels, convolution.taps),
            input_bias=bias(inputs, 3 * channels),
            output_bias=bias("out_proj", self.config.hidden_size),
            convolution_bias=bias(self.names.convolution, channels),
        )

    def _name(self, part: str) -> str:
        return f"{self.at}{self.names.recurrent}.{part}"

    def _pack(self, sources: Sequence[Source]) -> _native.PackedWeight:
        importance = self.inputs.query_key_value
        return self.loader.pack(sources, self.config.hidden_size, importance=importance)

    def _output(self, columns: int) -> _native.PackedWeight:
        shape = self.config.hidden_size, columns
        return self.loader.linear(self._name("out_proj"), shape, self.inputs.output)

    def _convolution(self, channels: int, taps: int) -> Bits:
        name = self._name(f"{self.names.convolution}.weight")
        weights = self.loader.small(name, (channels, 1, taps))
        return np.ascontiguousarray(weights[:, 0].T).reshape(-1)


def _by_part(name: str, heads: int, parts: Sequence[int]) -> list[Source]:
    """One source per part of a tensor that holds, for each head, rows of all `parts`."""
    total = heads * sum(parts)

    def part(first: int, count: int) -> Source:
        def take(rows: NDArray[np.int64]) -> NDArray[np.int64]:
            return rows.reshape(heads, -1)[:, first : first + count].reshape(-1)

        return Source(name, total, heads * count, take)

    return [part(sum(parts[:i]), count) for i, count in enumerate(parts)]
