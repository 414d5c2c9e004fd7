"""A model that is broken on purpose, which the exactness harness must detect."""

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd._native import Rows, testing
from specqd.model.model import Model


def position_of_words(model: Model) -> NDArray[np.int64]:
    """The position within the page of each word of a cache page."""
    layers = model.config.recurrent_layers.count(False)
    heads = layers * model.config.num_kv_heads
    dim = model.config.head_dim
    key_tiles, value_panels = -(-dim // 32), -(-dim // 16)
    at = np.arange(_native.PAGE_POSITIONS)
    # Keys: [panel of 16 positions, tile of 32 dimensions, pair, position, 2]; values: [panel of 16
    # dimensions, tile of 32 positions, pair, dimension, 2] (see docs/kernels.md).
    keys = np.broadcast_to(at.reshape(4, 1, 1, 16, 1), (4, key_tiles, 16, 16, 2))
    values = np.broadcast_to(at.reshape(1, 2, 16, 1, 2), (value_panels, 2, 16, 16, 2))
    return np.tile(np.concatenate([keys.ravel(), values.ravel()]), heads)


class KeepsDraftedCache:
    """A model that is broken on purpose: verification leaves the draft's rows in the cache.

    Verification computes the right logits; then the words of the positions that the draft had
    written are put back.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._positions = position_of_words(model)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def forward(self, batch: SequenceOf[Rows]) -> None:
        cache, size = self._model.cache, _native.PAGE_POSITIONS
        drafted = {}
        for rows in batch:
            slot, end = rows.context.slot, rows.start + rows.logits - 1
            if rows.logits > 1:
                for page in range(rows.start // size, (end - 1) // size + 1):
                    drafted[slot, page] = (rows.start, end, cache.page_bits(slot, page))
        self._model.forward(batch)
        for (slot, page), (start, end, before) in drafted.items():
            at = self._positions + page * size
            kept = np.where((start <= at) & (at < end), before, cache.page_bits(slot, page))
            testing.write_page_bits(cache, slot, page, kept)
