"""With error feedback, the later weights of a row make up for the errors of earlier ones."""

import numpy as np
import pytest
from numpy.typing import NDArray

from specqd import _native
from specqd._native import FEEDBACK_INPUTS, testing
from support import fp4
from support.kernel_values import each_isa, in_tiles, nibbles, tiled
from support.writers import bf16_bits

Floats = NDArray[np.float32]

POOL = _native.Pool(2)
ISA = _native.available_isas()[0]
DAMPING = 0.01


def correlated(rng: np.random.Generator, rows: int, columns: int) -> NDArray[np.float64]:
    """Inputs as of a text: all depend on a few directions, and their magnitudes differ."""
    shared = rng.normal(size=(rows, 8)) @ rng.normal(size=(8, columns))
    return (shared + 0.3 * rng.normal(size=(rows, columns))) * np.exp2(rng.uniform(-3, 3, columns))


def products_of(inputs: NDArray[np.float64]) -> Floats:
    """Sums of products within each group, [columns, group]; NaN where packing may not read."""
    columns = inputs.shape[1]
    products = np.full((columns, FEEDBACK_INPUTS), np.nan, np.float32)
    for first in range(0, columns, FEEDBACK_INPUTS):
        group = inputs[:, first : first + FEEDBACK_INPUTS]
        square = (group.T @ group).astype(np.float32)
        square[np.tril_indices(len(square), -1)] = np.nan
        products[first : first + len(square), : len(square)] = square
    return products


def defined_factors(products: Floats) -> NDArray[np.float64]:
    """F of (F + 1) D (F + 1)^T by a Cholesky factor of each group in reverse order, in float64."""
    columns = len(products)
    factors = np.zeros((-(-columns // 32) * 32, FEEDBACK_INPUTS))
    for first in range(0, columns, FEEDBACK_INPUTS):
        count = min(FEEDBACK_INPUTS, columns - first)
        square = np.triu(products[first : first + count, :count].astype(np.float64))
        square += np.triu(square, 1).T
        damping = DAMPING * square.trace() / count
        if damping > 0:
            square += damping * np.eye(count)
            upper = np.linalg.cholesky(square[::-1, ::-1])[::-1, ::-1]
            factors[first : first + count, :count] = upper / upper.diagonal() - np.eye(count)
    return factors


def gaussian(rng: np.random.Generator, rows: int, columns: int) -> fp4.Bits:
    return bf16_bits(rng.standard_normal((rows, columns), np.float32))


def packed(bits: fp4.Bits, products: Floats | None) -> _native.PackedWeight:
    importance = None
    if products is not None:
        at = np.arange(len(products))
        squares = products[at, at % FEEDBACK_INPUTS].astype(np.float64)
        largest = max(squares.max(), 1e-300)
        importance = np.maximum(squares / largest, 2.0**-24).astype(np.float32)
    weight = _native.pack(POOL, ISA, [bits], False, "fp4", importance, products)
    assert isinstance(weight, _native.PackedWeight)
    return weight


def draft_values(weight: _native.PackedWeight) -> NDArray[np.float64]:
    """The draft weights of a stacked matrix, [rows, columns]."""
    planes = weight.planes()
    panels, tiles = -(-weight.rows // 16), -(-weight.columns // 32)
    codes = nibbles(planes["codes"]).reshape(panels, tiles, 16, 16, 2)  # [.., k / 2, n, k % 2]
    codes = codes.transpose(0, 3, 1, 2, 4).reshape(panels * 16, tiles, 32)
    scales = planes["scales"].reshape(panels, tiles, 16).transpose(0, 2, 1).reshape(-1, tiles)
    shift, base = (int(each) for each in planes["scale_code"])
    values = fp4.decode(fp4.Blocks(codes, scales, shift, base))
    return values.reshape(panels * 16, -1)[: weight.rows, : weight.columns]


@pytest.mark.parametrize("columns", [1, 40, FEEDBACK_INPUTS, FEEDBACK_INPUTS + 33])
def test_the_factors_equal_their_definition_in_float64(
    columns: int, rng: np.random.Generator
) -> None:
    products = products_of(correlated(rng, 300, columns))
    found, expected = testing.feedback_factors(POOL, products), defined_factors(products)
    # The condition is below 256 / DAMPING, so float64 leaves less than float32 rounds.
    np.testing.assert_allclose(found, expected, rtol=2.0**-22, atol=2.0**-24)


@each_isa
def test_the_native_rounding_equals_its_definition_in_all_bits(
    isa: str, rng: np.random.Generator
) -> None:
    columns = 160
    weights = rng.normal(0, 0.02, (64, columns)) * np.where(rng.random((64, columns)) < 0.02, 20, 1)
    bits = bf16_bits(weights.astype(np.float32))
    bits[rng.random(bits.shape) < 0.05] = 0
    importance = np.exp2(rng.uniform(-24, 0, columns)).astype(np.float32)
    factors = rng.normal(0, 0.3, (columns, 64)).astype(np.float32)
    encoded = testing.kernels(isa).pack(tiled(bits), "fp4", importance=importance, factors=factors)
    codes, scales, residuals, starts, _, _ = testing.planes(encoded)
    blocks = fp4.cast_with_feedback(bits, importance, factors)
    nested = fp4.nest_blocks(bits, blocks)
    assert not nested.is_plain
    expected = blocks.scales.reshape(len(bits) // 16, 16, -1).transpose(0, 2, 1)
    np.testing.assert_array_equal(scales.reshape(expected.shape), expected)
    np.testing.assert_array_equal(nibbles(codes), in_tiles(blocks.codes))
    np.testing.assert_array_equal(residuals.reshape(-1, 512), in_tiles(nested.residuals))
    np.testing.assert_array_equal(np.diff(starts), in_tiles(nested.is_patch).sum(axis=1))
    assert (fp4.unnest(nested) == bits).all()


@pytest.mark.parametrize("columns", [64, FEEDBACK_INPUTS + 40])
def test_feedback_lowers_the_error_of_a_texts_outputs_and_adds_no_patch(
    columns: int, rng: np.random.Generator
) -> None:
    at, ratios = np.arange(columns), []
    for _ in range(6):  # one draw may be unlucky
        bits, inputs = gaussian(rng, 96, columns), correlated(rng, 500, columns)
        values, products = fp4.bf16_values(bits), products_of(inputs)
        alone = np.zeros_like(products)
        alone[at, at % FEEDBACK_INPUTS] = products[at, at % FEEDBACK_INPUTS]
        rounded, made_up = packed(bits, alone), packed(bits, products)
        errors = [(((draft_values(w) - values) @ inputs.T) ** 2).sum() for w in (made_up, rounded)]
        ratios.append(errors[0] / errors[1])
        assert made_up.patch_count <= rounded.patch_count
        np.testing.assert_array_equal(testing.unpack(made_up, ISA), bits)
    assert np.mean(ratios) < 0.7


def hostile_products(rng: np.random.Generator, columns: int) -> dict[str, Floats]:
    inputs = correlated(rng, 300, columns)
    one = rng.normal(size=(300, 1))
    silent = inputs * (rng.random(columns) < 0.5)
    loud = inputs.copy()
    loud[:, int(rng.integers(columns))] = 4096.0
    everything = {
        "zero": np.zeros_like(inputs),
        "rank 1": one @ rng.normal(size=(1, columns)),
        "one row": inputs[:1],
        "silent inputs": silent,
        "one loud input": loud,
        "all at the limit": np.full_like(inputs, 4096.0),
        "tiny": inputs * 2.0**-60,
    }
    return {name: products_of(each) for name, each in everything.items()}


@pytest.mark.parametrize("kind", ["gaussian", "one huge", "any finite", "tiny", "zero"])
def test_hostile_inputs_and_weights_keep_the_exact_bits_and_finite_drafts(
    kind: str, rng: np.random.Generator
) -> None:
    rows, columns = 37, 100
    bits = gaussian(rng, rows, columns)
    if kind == "one huge":
        bits[int(rng.integers(rows)), int(rng.integers(columns))] = 0x7F7F
    elif kind == "any finite":
        bits = (rng.integers(0, 0x7F80, bits.shape) | rng.integers(0, 2, bits.shape) << 15).astype(
            np.uint16
        )
    elif kind == "tiny":
        bits = (bits & 0x8000) | rng.integers(0, 0x100, bits.shape).astype(np.uint16)
    elif kind == "zero":
        bits &= 0x8000
    limit = 8 * np.abs(fp4.bf16_values(bits)).max(axis=1, keepdims=True)
    for name, products in hostile_products(rng, columns).items():
        weight = packed(bits, products)
        np.testing.assert_array_equal(testing.unpack(weight, ISA), bits, name)
        assert (np.abs(draft_values(weight)) <= np.maximum(limit, 2.0**-90)).all(), name


def test_products_of_another_shape_are_refused(rng: np.random.Generator) -> None:
    bits = gaussian(rng, 16, 64)
    for shape in ((63, FEEDBACK_INPUTS), (64, FEEDBACK_INPUTS // 2)):
        with pytest.raises(ValueError, match=r"products must be \[columns, group\]"):
            _native.pack(POOL, ISA, [bits], False, "fp4", None, np.zeros(shape, np.float32))
