"""Defines the draft formats and their nesting in BF16 in NumPy; the native cast has the same bits.

MXFP4 follows the OCP Microscaling Formats specification v1.0: blocks of 32 along the last axis have
one scale, and elements are E2M1.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specqd.formats.bf16 import widened
from specqd.formats.fp4 import BLOCK, DraftFormat

Bits = NDArray[np.uint16]  # BF16 bit patterns
Bytes = NDArray[np.uint8]
Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

# A code is sign << 3 | index into this grid (OCP MX v1.0, table 5).
GRID = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], np.float32)
# |value| / scale rounds to grid index 1 + i from BOUNDARY[i] on; a tie goes to the even index.
BOUNDARY = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
TIE_GOES_UP = np.array([False, True, False, True, False, True, False])

# BF16 bits of the lowest magnitude that rounds to each grid index: BOUNDARY, and 0.0625 below it.
LOW = np.array([0x3D80, 0x3E80, 0x3F40, 0x3FA0, 0x3FE0, 0x4020, 0x4060, 0x40A0], np.int32)
ONE = 0x3F80  # BF16 bits

# Scales as E8M3 numbers: BF16 bits >> 4. These are tried for a block, relative to its largest
# magnitude, which MXFP4 first rounds down to a power of two. The first one with the least error is
# chosen.
OFFSETS = {
    DraftFormat.MXFP4_FLOOR: [-16],
    DraftFormat.MXFP4: [-16, -24, -8],
    DraftFormat.FP4: list(range(-26, -13)),
}
LEAST_SCALE, MOST_SCALE = 4 << 3, 250 << 3


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """A tensor in a draft format; its last axis is cut into blocks of 32."""

    codes: Bytes  # [..., blocks, 32], 0..15
    scales: Bytes  # [..., blocks]
    shift: int = 23  # a scale is the fp32 with the bits (byte << shift) + base
    base: int = 0

    @property
    def scale_bits(self) -> Ints:
        """The scales' BF16 bits, [..., blocks]."""
        bits: Ints = (self.scales.astype(np.int32) << self.shift - 16) + (self.base >> 16)
        return bits


@dataclass(frozen=True, slots=True, eq=False)
class Nested:
    """A BF16 tensor, split into a tensor in a draft format and the rest of its bits.

    bits(|w|) = LOW[index] + scale_bits - ONE + residual. Where `is_patch` is true, this holds for
    the lower byte only, and `patches` has the upper one as sign << 6 | bits(|w|) >> 8, in row-major
    order. The padding of a last partial block has no patches; only its draft weights are zero. If a
    patch would have a magnitude of 2 or more, the tensor cannot be split, and `is_plain` is true.
    """

    blocks: Blocks
    residuals: Bytes  # [..., blocks, 32]
    is_patch: NDArray[np.bool_]  # [..., blocks, 32]
    patches: Bits  # [number of patches]
    columns: int  # length of the last axis before padding
    is_plain: bool


def bf16_values(bits: Bits) -> NDArray[np.float64]:
    """The exact values of BF16 bit patterns."""
    return widened(np.asarray(bits, np.uint16)).astype(np.float64)


def cast(bits: Bits, draft: DraftFormat, importance: Floats | None = None) -> Blocks:
    """Cast a matrix of BF16 `bits` [rows, K]; the last block is padded with zeros.

    Elements round |w| / scale to the nearest grid value, ties to the even code, saturate at 6, and
    keep their sign (-0 is code 8). `importance` [K] weights the squared errors of FP4's inputs.
    """
    padded = _padded(np.asarray(bits, np.uint16))
    magnitudes = (padded & 0x7FFF).astype(np.int32)
    shift, base = 23, 0
    first, last = LEAST_SCALE, MOST_SCALE
    largest = magnitudes.max(axis=-1)
    if draft is DraftFormat.FP4:
        top = int(largest.max(initial=0)) >> 4
        first = min(max(top + OFFSETS[draft][-1] - 255, LEAST_SCALE), MOST_SCALE - 255)
        shift, base, last = 20, first << 20, first + 255
    relative = _Relative(magnitudes, largest)
    weights = np.ones(bits.shape[-1], np.float32) if importance is None else importance
    weights = _filled(weights, np.float32(1))
    start = largest >> 4 if draft is DraftFormat.FP4 else largest >> 7 << 3
    candidates = [np.clip(start + offset, first, last) for offset in OFFSETS[draft]]
    best, best_error = candidates[0], relative.squared_error(candidates[0], weights)
    for scales in candidates[1:]:
        error = relative.squared_error(scales, weights)
        best = np.where(error < best_error, scales, best)
        best_error = np.minimum(error, best_error)
    signs = ((padded >> 15) << 3).astype(np.uint8)
    bytes_ = (best - (base >> 20)) >> shift - 20
    return Blocks(_grid_index(relative.scaled(best)) | signs, bytes_.astype(np.uint8), shift, base)


def cast_with_feedback(bits: Bits, importance: Floats, factors: Floats) -> Blocks:
    """Cast to FP4; later weights make up for the errors of earlier ones.

    The error of input k (exact minus rounded weight), times `factors` [padded K, group], is added
    to the inputs j > k of its group, in the order of k. A weight plus these corrections takes the
    nearest code of the weight's sign whose residual fits or, if the weight is a patch with any
    code, the nearest of all 16.
    """
    nearest = cast(bits, DraftFormat.FP4, importance)
    padded = _padded(np.asarray(bits, np.uint16)).reshape(len(bits), -1)
    scale_bits = np.repeat(nearest.scale_bits, BLOCK, axis=1)
    scales, weights = _float32(scale_bits), _float32(padded)
    from_low = (padded & 0x7FFF).astype(np.int32) - scale_bits + ONE
    codes = np.zeros(padded.shape, np.uint8)
    group = factors.shape[1]
    pending = np.zeros(padded.shape, np.float32)
    for k in range(padded.shape[1]):
        scaled = (weights[:, k] + pending[:, k]) * (np.float32(1) / scales[:, k])
        residuals = from_low[:, k, None] - LOW
        fits = (residuals >= 0) & (residuals <= 255)
        is_patch = ~fits.any(1)
        is_negative = np.where(is_patch, np.signbit(scaled), padded[:, k] >> 15).astype(bool)
        along = np.where(is_negative, -scaled, scaled)
        index = _grid_index(along)
        least, most = fits.argmax(1), 7 - fits[:, ::-1].argmax(1)
        index = np.where(is_patch, index, np.clip(index, least, most)).astype(np.uint8)
        codes[:, k] = index | is_negative.astype(np.uint8) << 3
        error = weights[:, k] - np.where(is_negative, -GRID[index], GRID[index]) * scales[:, k]
        first = k // group * group
        later = slice(k + 1, min(first + group, padded.shape[1]))
        pending[:, later] += error[:, None] * factors[k, later.start - first : later.stop - first]
    shape = nearest.codes.shape
    return Blocks(codes.reshape(shape), nearest.scales, nearest.shift, nearest.base)


def decode(blocks: Blocks) -> NDArray[np.float64]:
    """The exact values of a tensor, [..., blocks, 32]. No scale may be NaN."""
    values = np.where(blocks.codes & 8, -GRID[blocks.codes & 7], GRID[blocks.codes & 7])
    return values * bf16_values(blocks.scale_bits.astype(np.uint16))[..., None]


def nest(bits: Bits, draft: DraftFormat, importance: Floats | None = None) -> Nested:
    """Split BF16 `bits` [rows, K] into a draft, 8-bit residuals and patches, losslessly."""
    return nest_blocks(bits, cast(bits, draft, importance))


def nest_blocks(bits: Bits, blocks: Blocks) -> Nested:
    """Split BF16 `bits` [rows, K] into these blocks, 8-bit residuals and patches, losslessly."""
    bits = np.asarray(bits, np.uint16)
    padded = _padded(bits)
    magnitudes = (padded & 0x7FFF).astype(np.int32)
    residuals = magnitudes - _lowest(blocks)
    is_real = _padded(np.ones(bits.shape, np.uint16)).astype(np.bool_)
    is_patch = is_real & ((residuals < 0) | (residuals > 255))
    residuals = np.where(is_real, residuals & 255, 0)
    patches = ((padded >> 15 << 6) | (padded >> 8 & 0x3F))[is_patch]
    is_plain = bool((magnitudes[is_patch] >= 0x4000).any())
    return Nested(blocks, residuals.astype(np.uint8), is_patch, patches, bits.shape[-1], is_plain)


def unnest(nested: Nested) -> Bits:
    """The BF16 bits that `nest` was given, [rows, K]."""
    assert not nested.is_plain
    magnitudes = _lowest(nested.blocks) + nested.residuals
    bits = magnitudes | (nested.blocks.codes.astype(np.int32) & 8) << 12
    upper = (nested.patches & 0x3F) | (nested.patches & 0x40) << 1
    bits[nested.is_patch] = bits[nested.is_patch] & 255 | upper.astype(np.int32) << 8
    bits = bits.astype(np.uint16)
    return bits.reshape(*bits.shape[:-2], -1)[..., : nested.columns]


def _padded(bits: Bits) -> Bits:
    """Reshapes [..., K] to [..., ceil(K / 32), 32], padded with zeros."""
    return _filled(bits, np.uint16(0))


def _filled(array: NDArray, filler: np.generic) -> NDArray:
    missing = -array.shape[-1] % BLOCK
    padding = [(0, 0)] * (array.ndim - 1) + [(0, missing)]
    padded = np.pad(array, padding, constant_values=filler)
    return padded.reshape(*array.shape[:-1], -1, BLOCK)


class _Relative:
    """Blocks divided by the greatest power of two up to their largest magnitude, in float32.

    Quotients below 2^-40 become zero, so that no square is subnormal.
    """

    def __init__(self, magnitudes: Ints, largest: Ints) -> None:
        self._exponent = largest & 0x7F80
        least = np.maximum(self._exponent - (40 << 7), 0x80)[..., None]
        bits = magnitudes - self._exponent[..., None] + ONE
        self._values = np.where(magnitudes < least, np.float32(0), _float32(bits))

    def _over(self, scales: Ints) -> Floats:
        """Scales (E8M3), divided by the same power; at most 2^64, where all values round to 0."""
        return _float32(np.minimum((scales << 4) - self._exponent + ONE, 0x5F80))[..., None]

    def scaled(self, scales: Ints) -> Floats:
        return self._values * (np.float32(1) / self._over(scales))

    def squared_error(self, scales: Ints, importance: Floats) -> Floats:
        """The sum over k = 0..31, in order, of squared errors times the input's importance."""
        errors = GRID[_grid_index(self.scaled(scales))] * self._over(scales) - self._values
        terms = errors * errors * importance
        total = np.zeros(scales.shape, np.float32)
        for k in range(BLOCK):
            total = total + terms[..., k]
        return total


def _float32(bf16_bits: Ints) -> Floats:
    return (bf16_bits.astype(np.uint32) << 16).view(np.float32)


def _grid_index(scaled: Floats) -> Bytes:
    index = np.zeros(scaled.shape, np.uint8)
    for boundary, tie_goes_up in zip(BOUNDARY, TIE_GOES_UP, strict=True):
        index += (scaled >= boundary) if tie_goes_up else (scaled > boundary)
    return index


def _lowest(blocks: Blocks) -> Ints:
    """The BF16 bits that each element has if its residual is 0."""
    lowest: Ints = LOW[blocks.codes & 7] + (blocks.scale_bits - ONE)[..., None]
    return lowest
