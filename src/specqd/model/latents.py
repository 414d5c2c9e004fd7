"""Reads the attention of a latent layer. Knows no files and no rotations."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config.decoder import DecoderConfig, LatentConfig
from specqd.config.tensor_names import TensorNames
from specqd.formats.bf16 import widened
from specqd.model.importance import Importance, LayerInputs
from specqd.model.loader import HeadPart, Loader, Source
from specqd.model.mixers import MixerWeights

Rows = Callable[[NDArray[np.int64]], NDArray[np.int64]]


class LatentReader:
    """Reads latent attention from a loader, by a family's names.

    The rotated dimensions come first in the queries and keys of the core.
    """

    def __init__(
        self, loader: Loader, config: DecoderConfig, latent: LatentConfig, names: TensorNames
    ) -> None:
        self._loader = loader
        self._config = config
        self._latent = latent
        self._names = names

    def read(self, at: str, inputs: LayerInputs) -> MixerWeights:
        return MixerWeights(
            inputs=self._inputs(at, inputs),
            output=self._output(at, inputs),
            latent=self._weights(at, inputs),
        )

    def _inputs(self, at: str, inputs: LayerInputs) -> _native.PackedWeight:
        """The first product: queries or their latent, then the row that is cached."""
        latent, names = self._latent, self._names
        row = f"{at}{names.latent}.weight"
        width = latent.rank + latent.rope_dim
        sources = [self._queries(at), Source(row, width, width, self._turned_first(width))]
        if latent.query_rank is not None:
            sources[0] = Source.whole(f"{at}{names.query_latent}.weight", latent.query_rank)
        return self._loader.pack(
            sources, self._config.hidden_size, importance=inputs.query_key_value
        )

    def _output(self, at: str, inputs: LayerInputs) -> _native.PackedWeight:
        columns = self._config.num_heads * self._latent.value_dim
        shape = self._config.hidden_size, columns
        return self._loader.linear(at + self._names.output, shape, inputs.output)

    def _weights(self, at: str, inputs: LayerInputs) -> _native.LatentWeights:
        """All weights but those of the first product and of the output."""
        latent, names, heads = self._latent, self._names, self._config.num_heads
        queries, query_norm = None, None
        if latent.query_rank is not None:
            norm = self._loader.vector(f"{at}{names.query_latent_norm}.weight", latent.query_rank)
            query_norm = _native.Norm(weight=norm, bias=None)
            importance = inputs.latent_queries or Importance(widened(norm).astype(np.float64) ** 2)
            queries = self._loader.pack(
                [self._queries(at)], latent.query_rank, importance=importance
            )
        norm_of_latents = self._loader.norm(at + names.latent_norm, latent.rank)
        name, dim = f"{at}{names.latent_keys_values}.weight", latent.plain_dim + latent.value_dim
        keys = HeadPart(name, heads, dim, latent.rank, 0, latent.plain_dim, is_transposed=True)
        values = HeadPart(name, heads, dim, latent.rank, latent.plain_dim, latent.value_dim)
        return _native.LatentWeights(
            queries=queries,
            query_norm=query_norm,
            norm=norm_of_latents,
            keys=self._loader.pack(
                [keys.rows("keys")], latent.plain_dim, importance=inputs.latent_keys
            ),
            values=self._loader.pack(
                [values.rows("values")], latent.rank, importance=inputs.latent_values
            ),
        )

    def _queries(self, at: str) -> Source:
        latent, names = self._latent, self._names
        module = names.query_key_value[0] if latent.query_rank is None else names.latent_queries
        rows = self._config.num_heads * latent.query_dim
        return Source(f"{at}{module}.weight", rows, rows, self._turned_first(latent.query_dim))

    def _turned_first(self, dim: int) -> Rows:
        """Moves the rotated rows of each head of `dim` from its end to its front, in halves."""

        def take(rows: NDArray[np.int64]) -> NDArray[np.int64]:
            plain, turned = np.split(rows.reshape(-1, dim), [dim - self._latent.rope_dim], axis=1)
            if self._config.rope_pairs == "neighbours":
                turned = np.concatenate([turned[:, ::2], turned[:, 1::2]], axis=1)
            return np.concatenate([turned, plain], axis=1).reshape(-1)

        return take
