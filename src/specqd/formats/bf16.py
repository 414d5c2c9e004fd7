"""Converts BF16 bits to wider floats and back. Knows nothing of files."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SLICE = 1 << 17  # values per step, so that intermediate values stay in the processor's cache
_NAN = 0x7FC0


def widened(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Returns the float32 values of BF16 bits, exactly, in the same shape."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded_to_bf16(values: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """Rounds float16 or float32 values to the nearest BF16 bits, in the same shape.

    Ties go to even. NaN stays NaN.
    """
    flat = values.reshape(-1)
    bits = np.empty(flat.shape, np.uint16)
    rounded = np.empty(min(_SLICE, flat.size), np.uint32)
    for first in range(0, flat.size, _SLICE):
        part = np.asarray(flat[first : first + _SLICE], np.float32)
        wide = part.view(np.uint32)
        # (wide + 0x7FFF + the lowest kept bit) >> 16; working in place halves the time
        sums = rounded[: wide.size]
        np.right_shift(wide, 16, out=sums)
        np.bitwise_and(sums, 1, out=sums)
        np.add(sums, 0x7FFF, out=sums)
        np.add(sums, wide, out=sums)
        np.right_shift(sums, 16, out=sums)
        done = bits[first : first + _SLICE]
        done[:] = sums
        if not np.isfinite(part).all():
            done[np.isnan(part)] = _NAN
    return bits.reshape(values.shape)
