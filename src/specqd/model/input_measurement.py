"""Measures on a text how much each input of a matrix matters to a draft. Knows only token ids."""

from collections.abc import Sequence

from specqd._native import PAGE_POSITIONS, Context
from specqd.model.importance import Importance, LayerInputs, MeasuredInputs
from specqd.model.loader import Progress
from specqd.model.model import Model


def measure_inputs(
    model: Model, sequences: Sequence[Sequence[int]], progress: Progress | None = None
) -> MeasuredInputs:
    """Runs an exact forward over each sequence of token ids.

    Sequences that exceed the model's context or its cache are truncated.
    """
    most = min(model.config.max_positions, model.cache.total_pages * PAGE_POSITIONS)
    model.decoder.watch_inputs()
    try:
        for done, sequence in enumerate(sequences, 1):
            _read(model, sequence[:most])
            if progress:
                progress(done, len(sequences))
    finally:
        parts = model.decoder.take_input_products()  # watches no longer
    *of_layers, others = (
        {name: Importance.measured(products) for name, products in part.items()} for part in parts
    )
    layers = [LayerInputs(**inputs) for inputs in of_layers]
    return MeasuredInputs(layers, others.get("per_layer"), others["head"])


def _read(model: Model, tokens: Sequence[int]) -> None:
    model.check_tokens(tokens)
    slot = model.cache.create()
    try:
        for _ in model.prefill(Context(slot), tokens, len(tokens)):
            pass
    finally:
        model.cache.release(slot)
