"""Reads the weights of a layer by the family's names of tensors. Knows no files."""

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config import AttentionConfig, DecoderConfig, PerLayerConfig
from specqd.config.tensor_names import TensorNames
from specqd.formats.bf16 import widened
from specqd.model.feed_forwards import FeedForwardReader
from specqd.model.importance import Importance, LayerInputs, MeasuredInputs
from specqd.model.latents import LatentReader
from specqd.model.loader import Bits, Loader, Source
from specqd.model.mixers import MixerWeights
from specqd.model.recurrent import RecurrentReader

_ONE = 0x3F80  # as BF16 bits


class LayerReader:
    """Reads layers and norms from a loader. `inputs` are the measured importances, if any."""

    def __init__(
        self,
        loader: Loader,
        config: DecoderConfig,
        names: TensorNames,
        inputs: MeasuredInputs | None = None,
    ) -> None:
        self._loader = loader
        self._config = config
        self._names = names
        self._inputs = inputs
        self._feed_forwards = FeedForwardReader(loader, config, names)

    def norm(self, name: str | None, length: int) -> _native.Norm | None:
        """A norm of the residual stream; None without a name."""
        if name is None:
            return None
        has_bias = self._config.norm == "layer" and self._config.norm_bias
        bias = self._loader.bias(name, length, has_bias)
        return _native.Norm(weight=self._loader.vector(f"{name}.weight", length), bias=bias)

    def head_inputs(self) -> Importance | None:
        """The importance of the output head's inputs. The final norm must have been read."""
        return self._inputs.head if self._inputs else self.squared_norm(self._names.final_norm)

    def _layer_inputs(self, index: int, at: str) -> LayerInputs:
        """The measured importances, or else the squared weights of the norms before products."""
        if self._inputs:
            return self._inputs.layers[index]
        norms = self._names.attention_norm, self._names.feed_forward_norm
        attention, feed_forward = (
            None if name is None else self.squared_norm(at + name) for name in norms
        )
        experts, experts_norm = self._config.experts, self._names.experts_norm
        gate_up = feed_forward
        if experts is not None and experts.has_own_norms and experts_norm is not None:
            gate_up = self.squared_norm(at + experts_norm)
        return LayerInputs(attention, None, gate_up, None, shared_gate_up=feed_forward)

    def squared_norm(self, name: str) -> Importance:
        """The importance of inputs that a norm scales. The norm must have been read."""
        weights = widened(self._loader.unpacked[f"{name}.weight"]).astype(np.float64)
        return Importance((self._config.norm_offset + weights) ** 2)

    def layer(self, index: int, at: str | None = None) -> _native.LayerWeights:
        """Reads layer `index`. The names of its modules begin with `at`, by default its number."""
        c, names = self._config, self._names
        at = at or f"{names.layers}.{index}."

        def norm(name: str | None) -> _native.Norm | None:
            return self.norm(name and at + name, c.hidden_size)

        rotation, attention = c.rotation(index), c.attention(index)
        attention_norm = norm(names.attention_norm)
        feed_forward_norm = norm(names.feed_forward_norm)
        if c.experts and c.experts.has_own_norms:
            norm(names.experts_norm)  # for the importance of inputs
        inputs = self._layer_inputs(index, at)
        feed_forwards, mixture = self._feed_forwards.read(index, at, inputs)
        attention_post_norm = norm(names.attention_post_norm)
        feed_forward_post_norm = norm(names.feed_forward_post_norm)
        mixer = self._mixer(index, at, inputs)
        return _native.LayerWeights(
            attention_norm=attention_norm,
            attention_post_norm=attention_post_norm,
            feed_forward_norm=feed_forward_norm,
            feed_forward_post_norm=feed_forward_post_norm,
            query_norm=mixer.query_norm,
            key_norm=mixer.key_norm,
            value_norm=mixer.value_norm,
            query_key_value=mixer.inputs,
            output=mixer.output,
            query_key_value_bias=mixer.input_bias,
            output_bias=mixer.output_bias,
            sinks=mixer.sinks,
            feed_forwards=feed_forwards,
            mixture=mixture,
            window=c.windows[index],
            is_causal=c.causal[index] if c.causal else True,
            rope=-1 if rotation is None else c.distinct_rotations.index(rotation),
            attention=c.distinct_heads.index((attention.num_kv_heads, attention.head_dim)),
            kv_layer=-1 if attention.kv_layer is None else attention.kv_layer,
            values_are_keys=attention.values_are_keys,
            per_layer=self._per_layer_input(c.per_layer, at, inputs) if c.per_layer else None,
            output_scale=self._scale(at + names.layer_scale) if c.scales_layers else 1.0,
            convolution=mixer.convolution,
            convolution_bias=mixer.convolution_bias,
            delta=mixer.delta,
            latent=mixer.latent,
            attention_convolution=self._convolution(at + names.attention_convolution),
            feed_forward_convolution=self._convolution(at + names.feed_forward_convolution),
        )

    def _convolution(self, module: str) -> _native.DynamicConvolution | None:
        config, hidden = self._config.dynamic_convolution, self._config.hidden_size
        if config is None:
            return None
        groups = hidden // config.group
        base = self._loader.small(f"{module}.base_kernel", (2, config.taps, hidden))
        projection = f"{module}.kernel_projection"
        return _native.DynamicConvolution(
            projection=self._loader.linear(projection, (2 * config.taps * groups, hidden)),
            base=base.reshape(-1),
            taps=config.taps,
            groups=groups,
        )

    def _mixer(self, index: int, at: str, inputs: LayerInputs) -> MixerWeights:
        c = self._config
        if c.recurrent_layers[index]:
            return RecurrentReader(self._loader, c, self._names, at, inputs).read()
        if c.latent is not None:
            return LatentReader(self._loader, c, c.latent, self._names).read(at, inputs)
        return self._attention(c.attention(index), at, inputs)

    def _attention(self, attention: AttentionConfig, at: str, inputs: LayerInputs) -> MixerWeights:
        c, names, load = self._config, self._names, self._loader
        heads, kv_heads, dim = c.num_heads, attention.num_kv_heads, attention.head_dim
        has_keys = attention.kv_layer is None
        return MixerWeights(
            query_norm=self._head_norm(at + names.query_norm, heads, dim),
            key_norm=self._head_norm(at + names.key_norm, kv_heads, dim) if has_keys else None,
            value_norm=_unweighted_norm(dim) if c.norms_values and has_keys else None,
            inputs=self._query_key_value(at, attention, inputs),
            output=load.linear(at + names.output, (c.hidden_size, heads * dim), inputs.output),
            input_bias=self._query_key_value_bias(at, attention),
            output_bias=load.bias(at + names.output, c.hidden_size, c.output_bias),
            sinks=load.vector(at + names.sinks, heads) if c.has_sinks else None,
        )

    def _head_norm(self, module: str, heads: int, dim: int) -> _native.Norm | None:
        match self._config.qk_norm:
            case None:
                return None
            case "one":
                return self._loader.norm(module, dim)
            case "row":
                return self._loader.norm(module, heads * dim)
            case "each":
                each = [
                    self._loader.vector(f"{module}.norms.{head}.weight", dim)
                    for head in range(heads)
                ]
                return _native.Norm(weight=np.concatenate(each), bias=None)

    def _query_key_value_sources(
        self, at: str, attention: AttentionConfig, kind: str
    ) -> list[Source]:
        """The tensors of a kind ("weight" or "bias") that hold queries and the layer's own keys and
        values."""
        c, names = self._config, self._names.query_key_value
        heads = [c.num_heads, attention.num_kv_heads, attention.num_kv_heads]
        rows = [count * attention.head_dim for count in heads]
        has_neighbours = c.rope_pairs == "neighbours" and c.distinct_ropes
        rotated = self._in_halves if has_neighbours else None
        orders = [rotated, rotated, None]
        if c.attention_gates and self._names.attention_gates is None:
            return self._gated_sources(at, kind)
        if len(names) == 1:
            rows, orders = [sum(rows)], [self._by_kind if self._names.fused_by_head else None]
        elif attention.kv_layer is not None or attention.values_are_keys:
            parts = 2 if attention.kv_layer is None else 1
            names, rows, orders = names[:parts], rows[:parts], orders[:parts]
        sources = [
            Source(f"{at}{name}.{kind}", count, count, order)
            for name, count, order in zip(names, rows, orders, strict=True)
        ]
        if c.attention_gates and kind == "weight":
            gates = c.num_heads * (attention.head_dim if c.attention_gates == "values" else 1)
            sources.append(Source.whole(f"{at}{self._names.attention_gates}.weight", gates))
        return sources

    def _gated_sources(self, at: str, kind: str) -> list[Source]:
        """Queries, keys, values and gates; in the tensor, a head's gates follow its query."""
        c, (query, *others) = self._config, self._names.query_key_value
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim

        def half(which: int) -> Source:
            def take(rows: NDArray[np.int64]) -> NDArray[np.int64]:
                return rows.reshape(c.num_heads, 2, c.head_dim)[:, which].reshape(-1)

            return Source(f"{at}{query}.{kind}", 2 * queries, queries, take)

        each = [Source.whole(f"{at}{name}.{kind}", keys) for name in others]
        return [half(0), *each, half(1)]

    def _in_halves(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Orders rows of queries or keys: the first of each rotated pair before all second ones."""
        dim, [rope] = self._config.head_dim, self._config.distinct_ropes
        heads, rotated = rows.reshape(-1, dim), int(dim * rope.share)
        first, second = heads[:, 0:rotated:2], heads[:, 1:rotated:2]
        return np.concatenate([first, second, heads[:, rotated:]], axis=1).reshape(-1)

    def _by_kind(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Orders rows that are fused by head: all queries, then all keys, then all values."""
        heads = rows.reshape(self._config.num_heads, 3, self._config.head_dim)
        return heads.transpose(1, 0, 2).reshape(-1)

    def _query_key_value(
        self, at: str, attention: AttentionConfig, inputs: LayerInputs
    ) -> _native.PackedWeight:
        sources = self._query_key_value_sources(at, attention, "weight")
        columns = self._config.hidden_size * (2 if self._config.reads_pairs else 1)
        return self._loader.pack(sources, columns, importance=inputs.query_key_value)

    def _query_key_value_bias(self, at: str, attention: AttentionConfig) -> Bits | None:
        if not self._config.qkv_bias:
            return None
        sources = self._query_key_value_sources(at, attention, "bias")
        return np.concatenate([s.of(self._loader.vector(s.name, s.rows)) for s in sources])

    def _scale(self, name: str) -> float:
        return float(widened(self._loader.vector(name, 1))[0])

    def _per_layer_input(
        self, per_layer: PerLayerConfig, at: str, inputs: LayerInputs
    ) -> _native.PerLayerInput:
        names, load = self._names, self._loader
        hidden, size = self._config.hidden_size, per_layer.size
        post_norm = load.norm(at + names.per_layer_post_norm, hidden)
        gate = load.linear(at + names.per_layer_gate, (size, hidden), inputs.per_layer_gate)
        projection = load.linear(
            at + names.per_layer_projection, (hidden, size), inputs.per_layer_projection
        )
        return _native.PerLayerInput(gate=gate, projection=projection, post_norm=post_norm)

    def per_layer_embedding(self) -> _native.PerLayerEmbedding | None:
        """The tokens' embeddings for every layer, whose table is read in place; None if absent."""
        c, names, per_layer = self._config, self._names, self._config.per_layer
        if per_layer is None:
            return None
        width = c.num_layers * per_layer.size
        norm = self._loader.norm(names.per_layer_norm, per_layer.size)
        table = f"{names.per_layer_table}.weight"
        importance = self._inputs.per_layer if self._inputs else None
        return _native.PerLayerEmbedding(
            table=self._loader.embedding(table, (per_layer.vocab_size, width)),
            projection=self._loader.linear(
                names.per_layer_embedding, (width, c.hidden_size), importance
            ),
            norm=norm,
        )


def _unweighted_norm(length: int) -> _native.Norm:
    return _native.Norm(weight=np.full(length, _ONE, np.uint16), bias=None)
