"""Measures on a text how much each input of a matrix matters to a draft. Knows token ids only."""

from collections.abc import Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from specqd._native import PAGE_POSITIONS, Context
from specqd.model.importance import Importance, LayerInputs, MeasuredInputs
from specqd.model.loader import Progress
from specqd.model.model import Model


def measure_inputs(
    model: Model, sequences: Sequence[Sequence[int]], progress: Progress | None = None
) -> MeasuredInputs:
    """Runs one exact forward over each sequence of token ids.

    A sequence is cut where the model's context or the cache ends.
    """
    most = min(model.config.max_positions, model.cache.total_pages * PAGE_POSITIONS)
    model.decoder.watch_inputs()
    for done, sequence in enumerate(sequences, 1):
        tokens = sequence[:most]
        model.check_tokens(tokens)
        slot = model.cache.create()
        try:
            for _ in model.prefill(Context(slot), tokens, len(tokens)):
                pass
        finally:
            model.cache.release(slot)
        if progress:
            progress(done, len(sequences))
    *of_layers, per_layer, head = map(_measured, model.decoder.take_input_products())
    assert head is not None
    step = len(fields(LayerInputs))
    layers = [LayerInputs(*of_layers[at : at + step]) for at in range(0, len(of_layers), step)]
    return MeasuredInputs(layers, per_layer, head)


def _measured(products: NDArray[np.float32]) -> Importance | None:
    """The importance of a matrix's inputs; None: there is no such matrix."""
    return Importance.measured(products) if products.size else None
