"""BF16 bits of wider floats. Knows nothing of files."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SLICE = 1 << 18  # values at a time, so that what lies between stays in the cache
_NAN = 0x7FC0


def rounded_to_bf16(values: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """The BF16 bits nearest to float16 or float32 values, ties to even; NaN stays NaN."""
    flat = values.reshape(-1)
    bits = np.empty(flat.shape, np.uint16)
    for first in range(0, flat.size, _SLICE):
        part = np.asarray(flat[first : first + _SLICE], np.float32)
        wide = part.view(np.uint32)
        rounded = (wide + ((wide >> 16 & 1) + 0x7FFF)) >> 16
        rounded[np.isnan(part)] = _NAN
        bits[first : first + _SLICE] = rounded
    return bits.reshape(values.shape)
