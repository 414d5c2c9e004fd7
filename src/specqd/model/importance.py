"""The importance of a matrix's inputs to a draft. Knows no weights and no text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Importance:
    """The importance of one matrix's inputs.

    squares: [columns], weights of the squared errors.
    products: [columns, group], fp32: of each input with those of its group, summed over the tokens
        of a text. A weight then makes up for the errors of those before it. None: not measured.
    """

    squares: NDArray[np.float64]
    products: NDArray[np.float32] | None = None

    @classmethod
    def measured(cls, products: NDArray[np.float32]) -> "Importance":
        columns, group = products.shape
        at = np.arange(columns)
        return cls(products[at, at % group].astype(np.float64), products)


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """The importance of the inputs of a layer's products; None: all inputs count the same."""

    query_key_value: Importance | None = None
    output: Importance | None = None
    gate_up: Importance | None = None  # of all experts alike
    down: Importance | None = None
    shared_gate_up: Importance | None = None  # of the feed forward beside experts
    shared_down: Importance | None = None
    per_layer_gate: Importance | None = None
    per_layer_projection: Importance | None = None
    latent_queries: Importance | None = None
    latent_keys: Importance | None = None  # of all heads alike, as the next
    latent_values: Importance | None = None


@dataclass(frozen=True, slots=True)
class MeasuredInputs:
    """The importance of all matrices' inputs, measured on a calibration text."""

    layers: Sequence[LayerInputs]
    per_layer: Importance | None  # of the projection of all per-layer embeddings
    head: Importance | None
