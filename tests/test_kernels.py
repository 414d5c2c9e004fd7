"""Every instruction set computes the same bits, for every number of rows, and the right ones.

The portable kernels are held to NumPy, all others to the portable ones. The core hands out arrays
full of NaN, so that what a kernel does not write is seen.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native, mxfp4

Floats = NDArray[np.float32]
Bits = NDArray[np.uint16]

PANEL, BLOCK, TILE = 16, 32, 512
ROUNDING = 2.0**-24  # the relative error of one fp32 operation
ROWS = [*range(1, 18), 33, 50, 64, 101]  # around every group of rows that some kernel takes at once
READINGS = ["exact", "draft"]

PORTABLE = _native.kernels("portable")
OTHERS = [name for name in _native.kernel_names() if name != "portable"]
each_isa = pytest.mark.parametrize("isa", _native.kernel_names())
each_other_isa = pytest.mark.parametrize("isa", OTHERS)
each_reading = pytest.mark.parametrize("reading", READINGS)


def bf16_bits(values: NDArray[Any]) -> Bits:
    """fp32 values rounded to BF16, nearest even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def bf16_values(bits: Bits) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def tiled(matrix: NDArray[Any]) -> NDArray[Any]:
    """[16 * P, 32 * T] in tile order, [P, T, 512]."""
    panels, tiles = matrix.shape[0] // PANEL, matrix.shape[1] // BLOCK
    split = matrix.reshape(panels, PANEL, tiles, BLOCK // 2, 2)
    return np.ascontiguousarray(split.transpose(0, 2, 3, 1, 4)).reshape(panels, tiles, TILE)


def assert_same_bits(actual: NDArray[Any], expected: NDArray[Any]) -> None:
    """Equal bits; a NaN equals a NaN, as its payload is not arithmetic."""
    assert actual.shape == expected.shape
    if actual.dtype == np.float32:
        both_nan = np.isnan(actual) & np.isnan(expected)
        actual, expected = actual.view(np.uint32), expected.view(np.uint32)
        actual, expected = np.where(both_nan, 0, actual), np.where(both_nan, 0, expected)
    np.testing.assert_array_equal(actual, expected)


def any_finite(rng: np.random.Generator, *shape: int) -> Bits:
    """BF16 bits of any finite value: zeros of both signs, subnormal, huge."""
    bits = rng.integers(0, 0x7F80, shape)
    bits = np.where(rng.random(shape) < 0.1, rng.integers(0, 0x100, shape), bits)
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
    """Rows of different sizes, some so small or large that sums underflow or overflow."""
    scale = 10.0 ** rng.choice([0, 0, 0, -3, -38, -20, 20, 37], (rows, 1))
    x = (rng.standard_normal((rows, inputs)) * scale).astype(np.float32)
    x[rng.random(x.shape) < 0.05] = 0
    x[rng.random(x.shape) < 0.05] = -0.0
    return x


# --- The same bits on every instruction set -----------------------------------------------------


@each_other_isa
@each_reading
@pytest.mark.parametrize("kind", KINDS)
def test_products_have_the_portable_bits_for_every_number_of_rows(
    isa: str, reading: str, kind: str, rng: np.random.Generator
) -> None:
    panels, tiles = int(rng.integers(1, 4)), int(rng.integers(1, 20))
    matrix = tiled(weights_of(kind, rng, panels * PANEL, tiles * BLOCK))
    table = _native.kernels(isa)
    for plain in (False, True):
        packed = PORTABLE.pack(matrix, "mse", plain)
        for rows in ROWS:
            x = random_inputs(rng, rows, tiles * BLOCK - int(rng.integers(0, BLOCK)))
            expected = PORTABLE.product(reading, packed, x)
            assert_same_bits(table.product(reading, packed, x), expected)


@each_other_isa
def test_attention_products_have_the_portable_bits(isa: str, rng: np.random.Generator) -> None:
    table = _native.kernels(isa)
    for rows in ROWS:
        panels, tiles = int(rng.integers(1, 4)), int(rng.integers(1, 9))
        plain = tiled(any_finite(rng, panels * PANEL, tiles * BLOCK))
        x = random_inputs(rng, rows, tiles * BLOCK)
        start = random_inputs(rng, rows, panels * PANEL)
        expected = PORTABLE.accumulate_plain(plain, x, start)
        assert_same_bits(table.accumulate_plain(plain, x, start), expected)


@each_other_isa
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", ["floor", "mse"])
def test_tiles_are_cast_to_the_portable_planes_and_back(
    isa: str, kind: str, rule: str, rng: np.random.Generator
) -> None:
    matrix = tiled(weights_of(kind, rng, 3 * PANEL, 5 * BLOCK))
    table = _native.kernels(isa)
    packed = table.pack(matrix, rule)
    for plane, expected in zip(packed.planes, PORTABLE.pack(matrix, rule).planes, strict=True):
        np.testing.assert_array_equal(plane, expected)
    np.testing.assert_array_equal(table.unpack(packed), matrix)


@each_isa
@pytest.mark.parametrize("inputs", [1, 31, 32, 33, 64, 100, 512, 2048])
def test_inputs_are_prepared_to_the_same_values(
    isa: str, inputs: int, rng: np.random.Generator
) -> None:
    table, tiles = _native.kernels(isa), -(-inputs // BLOCK)
    x = random_inputs(rng, 5, inputs)
    x[3, rng.integers(0, inputs)] = np.inf
    x[4, rng.integers(0, inputs)] = np.nan
    np.testing.assert_array_equal(
        table.prepare("draft", x, tiles), PORTABLE.prepare("draft", x, tiles)
    )
    expected = np.zeros((3, tiles * BLOCK), np.float32)
    expected[:, :inputs] = bf16_values(bf16_bits(x[:3]))
    rows = table.prepare("exact", x[:3], tiles)
    if "amx" in isa or "bf16" in isa:
        actual = bf16_values(np.ascontiguousarray(rows[:, : tiles * BLOCK * 2]).view(np.uint16))
        if "bf16" in isa:  # pairs of one chain, the later one first: 2 0 3 1
            actual = actual.reshape(3, -1, 4)[:, :, [1, 3, 0, 2]].reshape(3, -1)
    else:
        actual = np.ascontiguousarray(rows[:, : tiles * BLOCK * 4]).view(np.float32)
    assert_same_bits(actual, expected)


# --- Rows and panels do not see one another -----------------------------------------------------


@each_isa
@each_reading
def test_a_row_has_the_same_bits_alone_and_among_others(
    isa: str, reading: str, rng: np.random.Generator
) -> None:
    table = _native.kernels(isa)
    packed = table.pack(tiled(weights_of("gaussian", rng, 2 * PANEL, 7 * BLOCK)))
    x = random_inputs(rng, max(ROWS), 7 * BLOCK)
    alone = np.concatenate([table.product(reading, packed, x[i : i + 1]) for i in range(len(x))])
    for rows in ROWS:
        assert_same_bits(table.product(reading, packed, x[:rows]), alone[:rows])


@each_isa
@each_reading
def test_a_panel_has_the_same_bits_alone_and_among_others(
    isa: str, reading: str, rng: np.random.Generator
) -> None:
    table = _native.kernels(isa)
    packed = table.pack(tiled(weights_of("gaussian", rng, 5 * PANEL, 6 * BLOCK)))
    x = random_inputs(rng, 3, 6 * BLOCK)
    whole = table.product(reading, packed, x)
    for first in range(6):
        for last in range(first, 6):
            part = table.product(reading, packed, x, first, last)
            assert_same_bits(part, np.ascontiguousarray(whole[:, first * PANEL : last * PANEL]))


# --- The right bits -----------------------------------------------------------------------------


def chained_sum(matrix: Floats, x: Floats) -> Floats:
    """x @ matrix.T in the order of docs/exactness.md, for normal BF16 values.

    The product of two BF16 values and its sum with an fp32 value are at most one rounding away
    from fp32 in fp64, where that rounding is innocent.
    """
    total = np.zeros((len(x), len(matrix)), np.float32)
    for block in range(0, matrix.shape[1], BLOCK):
        chains = [np.zeros_like(total), np.zeros_like(total)]
        for k in range(BLOCK):
            product = np.multiply.outer(x[:, block + k], matrix[:, block + k], dtype=np.float64)
            chains[k % 2] = (product + chains[k % 2]).astype(np.float32)
        total = total + (chains[0] + chains[1])
    return total


@each_isa
def test_the_exact_product_is_the_documented_sum(isa: str, rng: np.random.Generator) -> None:
    matrix = bf16_bits(rng.normal(0, 0.02, (2 * PANEL, 9 * BLOCK)))
    x = rng.standard_normal((3, 9 * BLOCK)).astype(np.float32)
    table = _native.kernels(isa)
    actual = table.product("exact", table.pack(tiled(matrix)), x)
    assert_same_bits(actual, chained_sum(bf16_values(matrix), bf16_values(bf16_bits(x))))


@each_isa
@pytest.mark.parametrize("kind", ["gaussian", "heavy tails"])
def test_the_exact_product_is_within_its_error_bound_of_float64(
    isa: str, kind: str, rng: np.random.Generator
) -> None:
    tiles = 40
    matrix = weights_of(kind, rng, 2 * PANEL, tiles * BLOCK)
    x = rng.standard_normal((9, tiles * BLOCK)).astype(np.float32)
    table = _native.kernels(isa)
    actual = table.product("exact", table.pack(tiled(matrix)), x)
    w, rounded = bf16_values(matrix).astype(np.float64), bf16_values(bf16_bits(x))
    # A product passes at most 16 roundings of its chain, one where the chains meet, one a block.
    roundings = (16 + 1 + tiles) * ROUNDING
    bound = roundings / (1 - roundings) * (np.abs(rounded).astype(np.float64) @ np.abs(w).T)
    assert np.all(np.abs(actual - rounded @ w.T) <= bound)


@each_isa
@pytest.mark.parametrize("kind", ["gaussian", "heavy tails"])
def test_the_draft_product_is_within_its_error_bound_of_float64(
    isa: str, kind: str, rng: np.random.Generator
) -> None:
    tiles = 40
    matrix = weights_of(kind, rng, 2 * PANEL, tiles * BLOCK)
    x = rng.standard_normal((9, tiles * BLOCK)).astype(np.float32)
    table = _native.kernels(isa)
    actual = table.product("draft", table.pack(tiled(matrix), "mse"), x)
    w = mxfp4.decode(mxfp4.cast(matrix, mxfp4.ScaleRule.MSE)).reshape(matrix.shape)
    largest = np.abs(x).reshape(len(x), tiles, BLOCK).max(axis=2).astype(np.float64)
    # int8 inputs are off by half a step, largest / 254, and by the three roundings of
    # x * (127 / largest) * (largest / 127); sums by that of the input scale, and by one a block.
    quantised = np.repeat(largest / 254 * (1 + 2**-20) + largest * 3 * ROUNDING, BLOCK, axis=1)
    roundings = (2 + tiles) * ROUNDING
    bound = (quantised + roundings * 1.01 * (np.abs(x) + quantised)) @ np.abs(w).T
    assert np.all(np.abs(actual - x.astype(np.float64) @ w.T) <= bound)


# --- Elementwise operations -----------------------------------------------------------------------

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
    """What an operation returns: one array, or an array and fp32 numbers."""
    if isinstance(result, np.ndarray):
        return [result]
    return [result[0], *(np.asarray(number, np.float32) for number in result[1:])]


def gated(name: str) -> Operation:
    return lambda t, r, n: t.gated(name, r.standard_normal(n, np.float32) * 40, vector(r, n))


def alone(name: str) -> Operation:
    nothing = np.zeros(0, np.float32)
    return lambda t, r, n: t.gated(name, r.standard_normal(n, np.float32) * 40, nothing)


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
    **{f"{name}, gated": gated(name) for name in ("silu", "gelu", "gelu_tanh", "clamped_swiglu")},
    **{f"{name}, alone": alone(name) for name in ("gelu", "gelu_tanh")},
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
    table, operation = _native.kernels(isa), OPERATIONS[name]
    for n in LENGTHS:
        actual = operation(table, np.random.default_rng(seed), n)
        expected = operation(PORTABLE, np.random.default_rng(seed), n)
        for a, e in zip(parts(actual), parts(expected), strict=True):
            assert_same_bits(a, e)


@pytest.mark.parametrize("n", LENGTHS)
def test_rms_norm_is_within_its_error_bound_of_float64(n: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal(n, np.float32)
    weight = bf16_bits(rng.standard_normal(n))
    w = bf16_values(weight).astype(np.float64)
    expected = x / np.sqrt(np.mean(np.square(x, dtype=np.float64)) + 1e-5) * w
    # Squares: one rounding a vector and four to fold them, all of positive terms; then mean and
    # epsilon; the root, which halves what came before; reciprocal, and two products.
    roundings = ((n + 15) // 16 + 4 + 2) / 2 + 1 + 1 + 2
    actual = PORTABLE.rms_norm(x, weight, 1e-5, 0.0)
    assert np.all(np.abs(actual - expected) <= roundings * ROUNDING * 1.01 * np.abs(expected))


@pytest.mark.parametrize("n", LENGTHS)
def test_layer_norm_is_right(n: int, rng: np.random.Generator) -> None:
    x = rng.standard_normal(n, np.float32) + np.float32(0.5)
    weight, bias = bf16_bits(rng.standard_normal(n)), bf16_bits(rng.standard_normal(n))
    w, b = (bf16_values(bits).astype(np.float64) for bits in (weight, bias))
    exact = x.astype(np.float64)
    centred = exact - exact.mean()
    deviation = np.sqrt((centred**2).mean() + 1e-5)
    # The mean errs by the roundings of its sum of values up to `largest`, each difference by that
    # and its own rounding; the deviation as the root of a sum of squares.
    largest, sums = np.abs(exact).max(), (n + 15) // 16 + 5
    error = (
        (2 * sums + 2) * largest / deviation * (1 + np.abs(centred) / deviation) + 4
    ) * ROUNDING
    difference = np.abs(PORTABLE.layer_norm(x, weight, bias, 1e-5) - (centred / deviation * w + b))
    assert np.all(difference <= error * (np.abs(w) * 2 + np.abs(b)))


def erf(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([math.erf(value) for value in x])


# The activations of two inputs, and how far from zero their slopes are at most.
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
def test_activations_are_those_of_their_definitions(name: str, rng: np.random.Generator) -> None:
    """To 2^-21 of the gate's size: an error of Phi or of an exponential, and a few roundings."""
    gate = (rng.standard_normal(1000) * 5).astype(np.float32)
    up = rng.standard_normal(1000, np.float32)
    expected = ACTIVATIONS[name](gate.astype(np.float64), up.astype(np.float64))
    error = np.abs(PORTABLE.gated(name, gate, up) - expected)
    assert np.all(error <= 2.0**-21 * np.abs(gate) * (1 + np.abs(up)))


def test_soft_cap_bounds_and_keeps_small_values(rng: np.random.Generator) -> None:
    x = (rng.standard_normal(1000) * np.exp(rng.uniform(-20, 3, 1000))).astype(np.float32)
    expected = 5.0 * np.tanh(x.astype(np.float64) * 0.3 / 5.0)
    error = np.abs(PORTABLE.soft_cap(x, 0.3, 5.0) - expected)
    assert np.all(error <= 8 * ROUNDING * np.abs(expected))


def test_softmax_part_sums_what_is_visible(rng: np.random.Generator) -> None:
    scores = (rng.standard_normal(512) * 20).astype(np.float32)
    for begin, end in [(0, 512), (0, 1), (511, 512), (17, 300), (100, 100)]:
        weights, maximum, total = PORTABLE.softmax_part(scores, begin, end, 0.25)
        scaled = scores[begin:end].astype(np.float64) * 0.25
        assert np.all(weights[:begin] == 0)
        assert np.all(weights[end:] == 0)
        if begin == end:
            assert (maximum, total) == (-np.inf, 0)
            continue
        assert maximum == scaled.max()
        expected = np.exp(scaled - maximum)
        # A scale of 2^-2 is exact. The difference rounds once, the exponential is good to two units
        # in its last place, and what is below e^-87.3 is zero.
        error = (np.abs(scaled - maximum) + 4) * ROUNDING * expected + np.exp(-87.3)
        assert np.all(np.abs(weights[begin:end] - expected) <= error)
        assert abs(total - expected.sum()) <= error.sum() + 36 * ROUNDING * expected.sum()
