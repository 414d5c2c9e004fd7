"""How much errors of draft weights matter, by input. Knows no weights and no text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Importance:
    """The importance of one matrix's inputs.

    squares: [columns], the weights of squared errors.
    products: [columns, group], fp32: the products of each input with the inputs of its group,
        summed over the tokens of a text. With them, a weight compensates for the errors of earlier
        weights. None if nothing was measured.
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
    """The importance of the inputs of a layer's matrices. None: all inputs count the same."""

    query_key_value: Importance | None = None
    output: Importance | None = None
    gate_up: Importance | None = None  # the same for all experts
    down: Importance | None = None
    shared_gate_up: Importance | None = None  # of the shared feed forward
    shared_down: Importance | None = None
    per_layer_gate: Importance | None = None
    per_layer_projection: Importance | None = None
    latent_queries: Importance | None = None
    latent_keys: Importance | None = None  # the same for all heads, as are the values'
    latent_values: Importance | None = None


@dataclass(frozen=True, slots=True)
class MeasuredInputs:
    """The importance of all matrices' inputs, measured on a calibration text."""

    layers: Sequence[LayerInputs]
    per_layer: Importance | None  # of the projection of all per-layer embeddings
    head: Importance | None
