"""The importance of each input of a matrix to a draft. Knows no weights and no text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Squares = NDArray[np.float64]  # [columns], of one matrix's inputs


@dataclass(frozen=True, slots=True)
class LayerInputs:
    """The importance of the inputs of a layer's products; None: all inputs count the same."""

    query_key_value: Squares | None = None
    output: Squares | None = None
    gate_up: Squares | None = None  # of all experts alike
    down: Squares | None = None
    shared_gate_up: Squares | None = None  # of the feed forward beside experts
    shared_down: Squares | None = None
    per_layer_gate: Squares | None = None
    per_layer_projection: Squares | None = None


@dataclass(frozen=True, slots=True)
class InputSquares:
    """Sums of squared inputs over the tokens of a calibration text."""

    layers: Sequence[LayerInputs]
    per_layer: Squares | None  # of the projection of all per-layer embeddings
    head: Squares
