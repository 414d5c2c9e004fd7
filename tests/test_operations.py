"""Elementwise operations have the same bits on every instruction set, within bounds of float64.

The portable kernels are compared with NumPy, all others with the portable ones. The core fills
arrays with NaN first, so that a value which an operation does not write fails the test.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd._native import PAGE_POSITIONS, testing
from support.kernel_values import (
    BLOCK,
    PORTABLE,
    ROUNDING,
    Floats,
    any_finite,
    assert_same_bits,
    bf16_bits,
    bf16_values,
    each_isa,
    each_other_isa,
    random_inputs,
)

LENGTHS = [1, 2, 15, 16, 17, 31, 32, 33, 40, 100, 257, 2048]
Operation = Callable[[Any, np.random.Generator, int], Any]


def vector(rng: np.random.Generator, n: int) -> Floats:
    return random_inputs(rng, n, 1)[:, 0]


def softmax_part(table: Any, rng: np.random.Generator, n: int) -> Any:
    n = -(-n // BLOCK) * BLOCK
    begin, end = sorted(rng.integers(0, n + 1, 2))
    scores = (rng.standard_normal(n) * 10.0 ** rng.integers(-2, 4)).astype(np.float32)
    return table.softmax_part(scores, int(begin), int(end), 0.125)


def merge_part(table: Any, rng: np.random.Generator, n: int) -> Any:
    maxima = [float(m) for m in rng.choice([-np.inf, -90, -1, 0, 0.5, 90], 2)]
    return table.merge_part(vector(rng, n), maxima[0], 2.5, vector(rng, n), maxima[1], 1.25)


def parts(result: Any) -> list[NDArray[Any]]:
    """The arrays of a result, which is one array, or arrays and fp32 numbers."""
    each = result if isinstance(result, tuple) else (result,)
    return [np.asarray(part, getattr(part, "dtype", np.float32)) for part in each]


def gated(name: str) -> Operation:
    return lambda t, r, n: t.gated(name, r.standard_normal(n, np.float32) * 40, vector(r, n))


def alone(name: str) -> Operation:
    nothing = np.zeros(0, np.float32)
    return lambda t, r, n: t.gated(name, r.standard_normal(n, np.float32) * 40, nothing)


XIELU = (0.75, 0.9, 0.5, -1e-6)  # of a trained layer's size

OPERATIONS: dict[str, Operation] = {
    "rms_norm": lambda t, r, n: t.rms_norm(vector(r, n), any_finite(r, n), 1e-6, 0.0),
    "rms_norm of usual sizes": lambda t, r, n: t.rms_norm(
        r.standard_normal(n, np.float32), bf16_bits(r.standard_normal(n)), 1e-5, 1.0
    ),
    "layer_norm": lambda t, r, n: t.layer_norm(
        r.standard_normal(n, np.float32),
        bf16_bits(r.standard_normal(n)),
        bf16_bits(r.standard_normal(n)),
        1e-5,
    ),
    "layer_norm without bias": lambda t, r, n: t.layer_norm(
        vector(r, n), any_finite(r, n), any_finite(r, 0), 1e-5
    ),
    "add": lambda t, r, n: t.add(vector(r, n), vector(r, n)),
    "add_bf16": lambda t, r, n: t.add_bf16(vector(r, n), any_finite(r, n)),
    "scale": lambda t, r, n: t.scale(vector(r, n), float(np.float32(r.standard_normal()))),
    **{
        f"{name}, gated": gated(name)
        for name in ("silu", "gelu", "gelu_tanh", "relu_squared", "clamped_swiglu")
    },
    **{f"{name}, alone": alone(name) for name in ("gelu", "gelu_tanh", "relu_squared")},
    "xielu": lambda t, r, n: t.xielu(r.standard_normal(n, np.float32) * 4, *XIELU),
    "soft_cap": lambda t, r, n: t.soft_cap(
        (r.standard_normal(n) * 40).astype(np.float32), 0.3, 5.0
    ),
    "rotate": lambda t, r, n: t.rotate(vector(r, 2 * n), vector(r, n), vector(r, n)),
    "round_bf16": lambda t, r, n: t.round_bf16(vector(r, n)),
    "round_bf16_finite": lambda t, r, n: t.round_bf16(
        r.integers(0, 1 << 32, n, np.uint32).view(np.float32), True
    ),
    "softmax_part": softmax_part,
    "merge_part": merge_part,
}


@each_other_isa
@pytest.mark.parametrize("name", OPERATIONS)
def test_elementwise_operations_have_the_portable_bits(isa: str, name: str, seed: int) -> None:
    table, operation = testing.kernels(isa), OPERATIONS[name]
    for n in LENGTHS:
        actual = operation(table, np.random.default_rng(seed), n)
        expected = operation(PORTABLE, np.random.default_rng(seed), n)
        for a, e in zip(parts(actual), parts(expected), strict=True):
            assert_same_bits(a, e)


@each_isa
def test_fused_multiply_adds_round_once_next_to_halfway(isa: str, rng: np.random.Generator) -> None:
    """Sums so close to halfway between two fp32 numbers that fp64 rounds them to halfway: a second
    rounding to fp32 may go wrong."""
    close_to_1 = np.array([[1 + 2**-23, 1 - 2**-23], [1 + 2**-12, 1 - 2**-12 + 2**-24]])
    n = 500
    scales = rng.choice([-1, 1], (n, 2)) * 2.0 ** rng.integers(-40, 40, (n, 2))
    factors = (close_to_1[rng.integers(0, 2, n)] * scales).astype(np.float32)
    ulps = rng.choice([-1, 1], n) * rng.integers(2**23 + 1, 2**24, n)
    addends = (ulps * 2 * scales.prod(axis=1)).astype(np.float32)
    next_ones = np.nextafter(addends, np.float32(np.inf) * factors.prod(axis=1))
    expected = []
    for (a, b), c, next_one in zip(factors, addends, next_ones, strict=True):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        expected.append(min(c, next_one, key=lambda each: abs(Fraction(float(each)) - exact)))

    ones, (a, b) = np.ones(n, np.float32), factors.T
    rotated = testing.kernels(isa).rotate(np.concatenate([ones, a]), b.copy(), addends)
    assert_same_bits(rotated[n:], np.array(expected))  # a * b + 1 * c


@pytest.mark.parametrize("n", LENGTHS)
def test_rms_norm_is_within_its_error_bound_of_float64(n: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal(n, np.float32)
    weight = bf16_bits(rng.standard_normal(n))
    w = bf16_values(weight).astype(np.float64)
    expected = x / np.sqrt(np.mean(np.square(x, dtype=np.float64)) + 1e-5) * w
    # The sum of squares is rounded once per vector and four times when lanes are added; all terms
    # are positive. Then come mean and epsilon, the root, which halves the error so far, the
    # reciprocal, and two products.
    roundings = ((n + 15) // 16 + 4 + 2) / 2 + 1 + 1 + 2
    actual = PORTABLE.rms_norm(x, weight, 1e-5, 0.0)
    assert np.all(np.abs(actual - expected) <= roundings * ROUNDING * 1.01 * np.abs(expected))


@pytest.mark.parametrize("n", LENGTHS)
def test_layer_norm_is_within_its_error_bound_of_float64(n: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal(n, np.float32) + np.float32(0.5)
    weight, bias = bf16_bits(rng.standard_normal(n)), bf16_bits(rng.standard_normal(n))
    w, b = (bf16_values(bits).astype(np.float64) for bits in (weight, bias))
    exact = x.astype(np.float64)
    centred = exact - exact.mean()
    deviation = np.sqrt((centred**2).mean() + 1e-5)
    # The error of the mean is the roundings of its sum of values up to `largest`. Each difference
    # adds a rounding of its own. The deviation is the root of a sum of squares.
    largest, sums = np.abs(exact).max(), (n + 15) // 16 + 5
    error = (
        (2 * sums + 2) * largest / deviation * (1 + np.abs(centred) / deviation) + 4
    ) * ROUNDING
    difference = np.abs(PORTABLE.layer_norm(x, weight, bias, 1e-5) - (centred / deviation * w + b))
    assert np.all(difference <= error * (np.abs(w) * 2 + np.abs(b)))


def erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([math.erf(value) for value in x])


# The activations of a gate and an input, in float64.
ACTIVATIONS: dict[str, Any] = {
    "silu": lambda g, u: g / (1 + np.exp(-g)) * u,
    "gelu": lambda g, u: g * (1 + erf(g / math.sqrt(2))) / 2 * u,
    "gelu_tanh": lambda g, u: (
        g * (1 + np.tanh(math.sqrt(2 / math.pi) * (g + 0.044715 * g**3))) / 2 * u
    ),
    "clamped_swiglu": lambda g, u: (
        np.minimum(g, 7) / (1 + np.exp(-1.702 * np.minimum(g, 7))) * (np.clip(u, -7, 7) + 1)
    ),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_are_within_their_bound_of_float64(name: str, rng: np.random.Generator) -> None:
    """Within 2^-21 of the gate, for the error of Phi or of an exponential and a few roundings."""
    gate = (rng.standard_normal(1000) * 5).astype(np.float32)
    up = rng.standard_normal(1000, np.float32)
    expected = ACTIVATIONS[name](gate.astype(np.float64), up.astype(np.float64))
    error = np.abs(PORTABLE.gated(name, gate, up) - expected)
    assert np.all(error <= 2.0**-21 * np.abs(gate) * (1 + np.abs(up)))


def test_squared_relu_is_within_two_roundings_of_float64(rng: np.random.Generator) -> None:
    gate = (rng.standard_normal(1000) * 5).astype(np.float32)
    up = rng.standard_normal(1000, np.float32)
    expected = np.maximum(gate.astype(np.float64), 0) ** 2 * up
    error = np.abs(PORTABLE.gated("relu_squared", gate, up) - expected)
    assert np.all(error <= 2.01 * ROUNDING * np.abs(expected))


def test_xielu_is_within_its_error_bound_of_float64(rng: np.random.Generator) -> None:
    """Within 2^-21 of the larger of input and output, for the error of an exponential and a few
    roundings, at every size of the input."""
    x = (rng.standard_normal(2000) * np.exp(rng.uniform(-25, 3, 2000))).astype(np.float32)
    positive, negative, slope, limit = (float(np.float32(value)) for value in XIELU)
    wide = x.astype(np.float64)
    above = positive * wide**2
    below = (np.expm1(np.minimum(wide, limit)) - wide) * negative
    expected = np.where(wide > 0, above, below) + slope * wide
    error = np.abs(PORTABLE.xielu(x, *XIELU) - expected)
    largest = np.maximum(np.abs(wide), np.abs(expected))
    assert np.all(error <= 2.0**-21 * largest + 1e-13)


def test_soft_cap_is_within_its_error_bound_of_float64(rng: np.random.Generator) -> None:
    x = (rng.standard_normal(1000) * np.exp(rng.uniform(-20, 3, 1000))).astype(np.float32)
    expected = 5.0 * np.tanh(x.astype(np.float64) * 0.3 / 5.0)
    error = np.abs(PORTABLE.soft_cap(x, 0.3, 5.0) - expected)
    assert np.all(error <= 8 * ROUNDING * np.abs(expected))


def test_softmax_part_is_within_its_error_bound_of_float64(rng: np.random.Generator) -> None:
    scores = (rng.standard_normal(512) * 20).astype(np.float32)
    for begin, end in [(0, 512), (0, 1), (511, 512), (17, 300), (100, 100)]:
        weights, maximum, total, pages = PORTABLE.softmax_part(scores, begin, end, 0.25)
        scaled = scores[begin:end].astype(np.float64) * 0.25
        assert np.all(weights[:begin] == 0)
        assert np.all(weights[end:] == 0)
        if begin == end:
            assert (maximum, total) == (-np.inf, 0)
            assert not pages.any()
            continue
        assert maximum == scaled.max()
        expected = np.exp(scaled - maximum)
        # A scale of 2^-2 is exact. The difference is rounded once, the error of the exponential is
        # at most two units in its last place, and results below e^-87.3 are zero.
        error = (np.abs(scaled - maximum) + 4) * ROUNDING * expected + np.exp(-87.3)
        assert np.all(np.abs(weights[begin:end] - expected) <= error)
        assert abs(total - expected.sum()) <= error.sum() + 36 * ROUNDING * expected.sum()
        by_page = weights.astype(np.float64).reshape(-1, PAGE_POSITIONS).sum(axis=1)
        assert np.all(np.abs(pages - by_page) <= 8 * ROUNDING * by_page)
