"""MXFP4 and nested MXFP4 in NumPy, to the bit: the reference for the native core's fast cast.

MXFP4 is that of the OCP Microscaling Formats specification v1.0: blocks of 32 along the last
axis share an E8M0 scale; elements are E2M1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specqd.formats.bf16 import widened
from specqd.formats.mxfp4 import BLOCK, ScaleRule

Bits = NDArray[np.uint16]  # BF16 bit patterns
Bytes = NDArray[np.uint8]

SCALE_BIAS = 127  # an E8M0 byte X means 2^(X - 127)
SCALE_MAX = 254
SCALE_NAN = 255
ZERO_BLOCK_SCALE = 127  # an all-zero block means +-0 at any scale; this one keeps it plain

# A code is sign << 3 | index into this grid (OCP MX v1.0, table 5).
GRID = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
# |value| / scale rounds to grid index 1 + i from BOUNDARY[i] on; a tie goes to the even index.
BOUNDARY = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
TIE_GOES_UP = np.array([False, True, False, True, False, True, False])

# BF16 bits of the lowest magnitude that rounds to each grid index: BOUNDARY, and 0.0625 below it.
LOW = np.array([0x3D80, 0x3E80, 0x3F40, 0x3FA0, 0x3FE0, 0x4020, 0x4060, 0x40A0], np.uint16)
RESIDUAL_MAX = 255


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """An MXFP4 tensor, its last axis cut into blocks of 32."""

    codes: Bytes  # [..., blocks, 32], 0..15
    scales: Bytes  # [..., blocks], E8M0


@dataclass(frozen=True, slots=True, eq=False)
class Nested:
    """A BF16 tensor as an MXFP4 tensor plus what that leaves out.

    Where `is_patch` is false, bits(|w|) = LOW[index] + ((X - 127) << 7) + residual. Elsewhere the
    residual is 0 and the weight's bits stand in `patches`, in row-major order. The padding of a
    last partial block is no patch: only its fp4 precision is zero.
    """

    blocks: Blocks
    residuals: Bytes  # [..., blocks, 32]
    is_patch: NDArray[np.bool_]  # [..., blocks, 32]
    patches: Bits  # [number of patches]
    columns: int  # length of the last axis before padding


def bf16_values(bits: Bits) -> NDArray[np.float64]:
    """The values that BF16 bit patterns stand for, exactly."""
    return widened(np.asarray(bits, np.uint16)).astype(np.float64)


def cast(bits: Bits, rule: ScaleRule) -> Blocks:
    """Cast BF16 `bits` [..., K] to MXFP4; the last block is padded with zeros.

    FLOOR takes X = floor(log2(amax)) - 2 + 127, held to 0..254, and X = 127 for an all-zero block.
    Elements round |w| * 2^(127 - X) to the nearest grid value, ties to the even code, saturate at
    6, and keep their sign (-0 is code 8). MSE takes the X of FLOOR's X, X - 1, X + 1 (held to
    0..254) with the least squared error, and prefers them in that order where equal.
    Raises ValueError for an infinity or NaN.
    """
    padded = _padded(np.asarray(bits, np.uint16))
    magnitudes = bf16_values(padded & np.uint16(0x7FFF))
    if not np.isfinite(magnitudes).all():
        raise ValueError(
            "MXFP4 cast: the tensor holds an infinity or NaN; only finite weights cast"
        )
    scales = _floor_scales(magnitudes)
    if rule is ScaleRule.MSE:
        scales = _least_error_scales(magnitudes, scales)
    signs = ((padded >> 15) << 3).astype(np.uint8)
    return Blocks(_grid_index(_scaled(magnitudes, scales)) | signs, scales.astype(np.uint8))


def decode(blocks: Blocks) -> NDArray[np.float64]:
    """The values of an MXFP4 tensor, exactly, [..., blocks, 32]; a NaN scale makes its block NaN.

    float64, since 6 * 2^127 is past the range of float32.
    """
    values = np.where(blocks.codes & 8, -GRID[blocks.codes & 7], GRID[blocks.codes & 7])
    exponents = blocks.scales.astype(np.int32) - SCALE_BIAS
    values = np.ldexp(values, exponents[..., None])
    return np.where((blocks.scales == SCALE_NAN)[..., None], np.nan, values)


def nest(bits: Bits, rule: ScaleRule) -> Nested:
    """Split BF16 `bits` [..., K] into an MXFP4 tensor, 8-bit residuals and patches, losslessly."""
    bits = np.asarray(bits, np.uint16)
    blocks = cast(bits, rule)
    padded = _padded(bits)
    residuals = (padded & np.uint16(0x7FFF)).astype(np.int32) - _lowest(blocks)
    is_real = _padded(np.ones(bits.shape, np.uint16)).astype(np.bool_)
    is_patch = is_real & ((residuals < 0) | (residuals > RESIDUAL_MAX))
    residuals = np.where(is_patch | ~is_real, 0, residuals)
    return Nested(blocks, residuals.astype(np.uint8), is_patch, padded[is_patch], bits.shape[-1])


def unnest(nested: Nested) -> Bits:
    """The BF16 bits that `nest` was given, [..., K]."""
    magnitudes = _lowest(nested.blocks) + nested.residuals
    signs = (nested.blocks.codes.astype(np.int32) & 8) << 12
    bits = ((magnitudes & 0x7FFF) | signs).astype(np.uint16)
    bits[nested.is_patch] = nested.patches
    return bits.reshape(*bits.shape[:-2], -1)[..., : nested.columns]


def _padded(bits: Bits) -> Bits:
    """[..., K] as [..., ceil(K / 32), 32], filled up with zeros."""
    missing = -bits.shape[-1] % BLOCK
    padded = np.pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, missing)])
    return padded.reshape(*bits.shape[:-1], -1, BLOCK)


def _floor_scales(magnitudes: NDArray[np.float64]) -> NDArray[np.int32]:
    amax = magnitudes.max(axis=-1)
    exponents = np.frexp(amax)[1] - 1  # floor(log2(amax)), of subnormals too
    scales = np.clip(exponents - 2 + SCALE_BIAS, 0, SCALE_MAX)
    return np.where(amax == 0, ZERO_BLOCK_SCALE, scales).astype(np.int32)


def _least_error_scales(
    magnitudes: NDArray[np.float64], floor_scales: NDArray[np.int32]
) -> NDArray[np.int32]:
    best = floor_scales
    best_error = _squared_error(magnitudes, floor_scales, floor_scales)
    for step in (-1, +1):
        scales = np.clip(floor_scales + step, 0, SCALE_MAX)
        error = _squared_error(magnitudes, scales, floor_scales)
        best = np.where(error < best_error, scales, best)
        best_error = np.minimum(error, best_error)
    return best


def _squared_error(
    magnitudes: NDArray[np.float64], scales: NDArray[np.int32], unit: NDArray[np.int32]
) -> NDArray[np.float64]:
    """Sum of squared errors of each block in units of 4^(unit - 127).

    Bit-defined: float64, summed over k = 0..31 in order, scaled (exactly) at the end.
    """
    scaled = _scaled(magnitudes, scales)
    errors = scaled - GRID[_grid_index(scaled)]
    total = np.zeros(scales.shape)
    for k in range(BLOCK):
        total = total + errors[..., k] * errors[..., k]
    error: NDArray[np.float64] = np.ldexp(total, 2 * (scales - unit))
    return error


def _scaled(magnitudes: NDArray[np.float64], scales: NDArray[np.int32]) -> NDArray[np.float64]:
    return np.ldexp(magnitudes, (SCALE_BIAS - scales)[..., None])


def _grid_index(scaled: NDArray[np.float64]) -> Bytes:
    index = np.zeros(scaled.shape, np.uint8)
    for boundary, tie_goes_up in zip(BOUNDARY, TIE_GOES_UP, strict=True):
        index += (scaled >= boundary) if tie_goes_up else (scaled > boundary)
    return index


def _lowest(blocks: Blocks) -> NDArray[np.int32]:
    """LOW at each element's index and scale, as an integer that may be negative."""
    shifts = (blocks.scales.astype(np.int32) - SCALE_BIAS) << 7
    lowest: NDArray[np.int32] = LOW.astype(np.int32)[blocks.codes & 7] + shifts[..., None]
    return lowest
