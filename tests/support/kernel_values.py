"""Weights and inputs for tests of kernels, and comparison of bits."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd._native import testing
from support.writers import bf16_bits

Floats = NDArray[np.float32]
Bits = NDArray[np.uint16]

PANEL, BLOCK, TILE = 16, 32, 512
ROUNDING = 2.0**-24  # the relative error of one fp32 operation
ROWS = [*range(1, 18), 33, 50, 64, 101]  # around the numbers of rows that kernels take at once
PRECISIONS = ["exact", "fp4"]

PORTABLE = testing.kernels("portable")
OTHERS = [name for name in testing.kernel_names() if name != "portable"]
each_isa = pytest.mark.parametrize("isa", testing.kernel_names())
each_other_isa = pytest.mark.parametrize("isa", OTHERS)
each_precision = pytest.mark.parametrize("precision", PRECISIONS)


def bf16_values(bits: Bits) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def tiled(matrix: NDArray[Any]) -> NDArray[Any]:
    """A matrix [16 * P, 32 * T] in tile order, [P, T, 512]."""
    panels, tiles = matrix.shape[0] // PANEL, matrix.shape[1] // BLOCK
    split = matrix.reshape(panels, PANEL, tiles, BLOCK // 2, 2)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4)).reshape(panels, tiles, TILE)


def in_tiles(plane: NDArray[Any]) -> NDArray[Any]:
    """A plane [rows, blocks, 32] in tile order, [tiles, 512]."""
    return tiled(plane.reshape(len(plane), -1)).reshape(-1, 512)


def nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The codes of a plane in tile order, [tiles, 512]. A 16-bit word holds four rows k / 2."""
    words = codes.reshape(-1, 4, 32, 2).astype(np.uint16)  # tile, k / 8, lane, byte
    words = words[..., 0] | words[..., 1] << 8
    rows = [words >> 4 * i & 15 for i in range(4)]
    return np.stack(rows, axis=2).reshape(-1, 512).astype(np.uint8)


def assert_same_bits(actual: NDArray[Any], expected: NDArray[Any], name: str = "") -> None:
    """Asserts equal bits. All NaN count as equal, because no rule defines their payload."""
    assert actual.shape == expected.shape
    if actual.dtype == np.float32:
        both_nan = np.isnan(actual) & np.isnan(expected)
        actual, expected = actual.view(np.uint32), expected.view(np.uint32)
        actual, expected = np.where(both_nan, 0, actual), np.where(both_nan, 0, expected)
    np.testing.assert_array_equal(actual, expected, name)


def any_finite(rng: np.random.Generator, *shape: int) -> Bits:
    """BF16 bits of any finite values: zeros of both signs, subnormal, huge."""
    bits = rng.integers(0, 0x7F80, shape)
    bits = np.where(rng.random(shape) < 0.1, rng.integers(0, 0x100, shape), bits)
    bits = np.where(rng.random(shape) < 0.1, 0, bits)
    return (bits | rng.integers(0, 2, shape) << 15).astype(np.uint16)


def with_exponents(rng: np.random.Generator, exponents: NDArray[Any]) -> Bits:
    """BF16 bits of random values whose biased exponents are these or one less; some are zero."""
    shape = exponents.shape
    bits = exponents - rng.integers(0, 2, shape) << 7 | rng.integers(0, 128, shape)
    bits = np.where(rng.random(shape) < 0.1, 0, bits)
    return (bits | rng.integers(0, 2, shape) << 15).astype(np.uint16)


def weights_of(kind: str, rng: np.random.Generator, outputs: int, inputs: int) -> Bits:
    match kind:
        case "gaussian":
            return bf16_bits(rng.normal(0, 0.02, (outputs, inputs)))
        case "heavy tails":
            return bf16_bits(rng.standard_t(2, (outputs, inputs)))
        case "tiny":
            return bf16_bits(rng.normal(0, 1e-37, (outputs, inputs)))
        case "huge":
            return bf16_bits(rng.normal(0, 1e37, (outputs, inputs)))
        case "any":
            return any_finite(rng, outputs, inputs)
    raise AssertionError(kind)


KINDS = ["gaussian", "heavy tails", "tiny", "huge", "any"]


def random_inputs(rng: np.random.Generator, rows: int, inputs: int) -> Floats:
    """Rows of different magnitudes; the sums of some underflow or overflow."""
    scale = 10.0 ** rng.choice([0, 0, 0, -3, -38, -20, 20, 37], (rows, 1))
    x = (rng.standard_normal((rows, inputs)) * scale).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = 0
    x[rng.random(x.shape) < 0.05] = -0.0
    return x
