"""The draft formats: MXFP4 follows OCP MX v1.0, and nesting restores the bits of BF16."""

from fractions import Fraction

import numpy as np
import pytest

from specqd.formats.fp4 import DraftFormat
from support import fp4

each_format = pytest.mark.parametrize("draft", DraftFormat, ids=lambda draft: draft.value)
TINY = 2.0**-30  # relative error that float32 sums of 32 terms may have is below 2^-19


def bf16(values: object) -> fp4.Bits:
    """BF16 bits of values that BF16 holds exactly."""
    wide = np.asarray(values, np.float32).view(np.uint32)
    assert not (wide & 0xFFFF).any()
    return (wide >> 16).astype(np.uint16)


def usual_bits(rng: np.random.Generator, rows: int, columns: int, most: int = 10) -> fp4.Bits:
    """Rows of one magnitude each, from 2^-10 to 2^most, with some zeros."""
    spread = rng.normal(size=(rows, columns)) * np.exp2(rng.integers(-10, most, (rows, 1)))
    bits = (spread.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.where(rng.random(bits.shape) < 0.05, 0, bits).astype(np.uint16)


def random_bits(rng: np.random.Generator, rows: int, columns: int) -> fp4.Bits:
    """Finite BF16 numbers: rows of one magnitude each, zeros, subnormals and huge values."""
    bits = rng.integers(0, 0x7F80, (rows, columns)).astype(np.uint16)
    spread = rng.normal(size=(rows, columns)) * np.exp2(rng.integers(-126, 120, (rows, 1)))
    near = (spread.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    bits = np.where(rng.random((rows, 1)) < 0.7, near, bits)
    bits = np.where(rng.random((rows, 1)) < 0.1, rng.integers(0, 0x80, bits.shape), bits)
    bits = np.where(rng.random((rows, 1)) < 0.05, rng.integers(0x7F00, 0x7F80, bits.shape), bits)
    bits = np.where(rng.random(bits.shape) < 0.05, 0, bits)
    bits = np.where(rng.random((rows, 1)) < 0.05, 0, bits)
    return (bits ^ (rng.integers(0, 2, bits.shape) << 15)).astype(np.uint16)


def fraction_of(scale: int) -> Fraction:
    """An E8M3 number."""
    return Fraction(2) ** ((scale >> 3) - 127) * (8 + (scale & 7)) / 8


def nearest_indices(values: list[Fraction], scale: Fraction) -> list[int]:
    grid = [Fraction(float(g)) for g in fp4.GRID]
    return [min(range(8), key=lambda i: (abs(v / scale - grid[i]), i % 2)) for v in values]


@each_format
def test_scales_and_codes_have_the_least_error_in_exact_fractions(
    rng: np.random.Generator, draft: DraftFormat
) -> None:
    bits = usual_bits(rng, 60, 32)
    importance = (rng.random(32) + 0.01).astype(np.float32)
    importance = importance if draft is DraftFormat.FP4 else np.ones(32, np.float32)
    blocks = fp4.cast(bits, draft, importance)
    grid = [Fraction(float(g)) for g in fp4.GRID]
    for row in range(len(bits)):
        values = [abs(Fraction(float(v))) for v in fp4.bf16_values(bits[row])]
        weights = [Fraction(float(w)) for w in importance]

        def error_at(scale: int, values=values, weights=weights) -> Fraction:
            unit = fraction_of(scale)
            rounded = nearest_indices(values, unit)
            pairs = zip(values, rounded, weights, strict=True)
            return sum((w * (v - grid[i] * unit) ** 2 for v, i, w in pairs), Fraction(0))

        largest = int((bits[row] & 0x7FFF).max())
        top = largest >> 4 if draft is DraftFormat.FP4 else largest >> 7 << 3
        least = min(error_at(top + offset) for offset in fp4.OFFSETS[draft])
        chosen = int(blocks.scale_bits[row, 0]) >> 4
        assert chosen - top in fp4.OFFSETS[draft]
        assert error_at(chosen) <= least * (1 + Fraction(1, 1 << 18))
        for value, code in zip(values, blocks.codes[row, 0], strict=True):
            scaled = value / fraction_of(chosen)
            best = min(abs(scaled - g) for g in grid)
            assert abs(scaled - grid[code & 7]) <= best + Fraction(1, 1 << 20)
        assert ((blocks.codes[row, 0] >> 3) == (bits[row] >> 15)).all()


def test_floor_takes_the_scale_of_the_specification(rng: np.random.Generator) -> None:
    bits = usual_bits(rng, 200, 64)
    blocks = fp4.cast(bits, DraftFormat.MXFP4_FLOOR)
    largest = np.abs(fp4.bf16_values(bits)).reshape(200, 2, 32).max(axis=-1)
    expected = np.frexp(largest)[1] - 1 - 2 + 127  # floor(log2(amax)) - 2
    np.testing.assert_array_equal(blocks.scales, expected)


@pytest.mark.parametrize("draft", [DraftFormat.MXFP4, DraftFormat.MXFP4_FLOOR])
def test_every_code_at_every_nested_scale_decodes_to_its_value_and_casts_back(
    draft: DraftFormat,
) -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), 2)
    scales = np.arange(4, 251, dtype=np.uint8)
    blocks = fp4.Blocks(np.tile(codes, (len(scales), 1)), scales)
    values = fp4.decode(blocks)
    for row, scale in zip(values, scales, strict=True):
        positive = [float(g) * 2.0 ** (int(scale) - 127) for g in fp4.GRID]
        assert row.tolist() == [*positive, *(-v for v in positive)] * 2
    again = fp4.cast(bf16(values), draft)
    assert (again.scales[:, 0] == blocks.scales).all()
    assert (again.codes[:, 0] == blocks.codes).all()


def test_every_code_at_every_fp4_scale_casts_back() -> None:
    """The error is zero with any of their scales; the topmost octave is kept for outliers."""
    codes = np.tile(np.arange(16, dtype=np.uint8), 2)
    scales = np.arange(8, 256, dtype=np.uint8)
    for base in (32, 1000, 1700):
        blocks = fp4.Blocks(np.tile(codes, (248, 1)), scales, 20, base << 20)
        values = fp4.decode(blocks)
        again = fp4.decode(fp4.cast(bf16(values), DraftFormat.FP4)).reshape(values.shape)
        np.testing.assert_array_equal(again, values)


def test_ties_go_to_the_even_code_and_large_values_saturate() -> None:
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.9375]
    values = [*ties, *(-t for t in ties), *[4.0] * 16]
    codes = fp4.cast(bf16(values)[None], DraftFormat.MXFP4_FLOOR).codes[0, 0]
    assert codes[:16].tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 8, 10, 10, 12, 12, 14, 14, 15]


@each_format
def test_an_all_zero_block_needs_no_patch_and_keeps_its_signs(draft: DraftFormat) -> None:
    bits = np.where(np.arange(32) % 2, 0x8000, 0).astype(np.uint16)[None]
    nested = fp4.nest(bits, draft)
    assert nested.blocks.codes[0, 0].tolist() == [0, 8] * 16
    assert not nested.is_patch.any()
    assert (fp4.unnest(nested) == bits).all()


def test_better_formats_never_have_larger_errors(rng: np.random.Generator) -> None:
    bits = usual_bits(rng, 200, 96)
    values = fp4.bf16_values(bits).reshape(200, 3, 32)
    floor, mse, fine = (
        ((fp4.decode(fp4.cast(bits, draft)) - values) ** 2).sum(-1)
        for draft in (DraftFormat.MXFP4_FLOOR, DraftFormat.MXFP4, DraftFormat.FP4)
    )
    assert (mse <= floor * (1 + TINY)).all()
    assert mse.sum() < floor.sum()
    assert fine.sum() < 0.9 * mse.sum()


def test_importance_lowers_the_error_of_important_inputs(rng: np.random.Generator) -> None:
    bits = usual_bits(rng, 400, 64)
    importance = np.where(np.arange(64) % 8 == 0, 1.0, 0.01).astype(np.float32)
    values = fp4.bf16_values(bits)

    def error(weights: fp4.Floats | None) -> np.float64:
        decoded = fp4.decode(fp4.cast(bits, DraftFormat.FP4, weights)).reshape(values.shape)
        return ((decoded - values)[:, ::8] ** 2 / (values**2).mean(1, keepdims=True)).sum()

    assert error(importance) < 0.8 * error(None)


@each_format
def test_a_partial_block_is_padded_with_zeros(rng: np.random.Generator, draft: DraftFormat) -> None:
    bits = random_bits(rng, 5, 45)
    whole = np.zeros((5, 64), np.uint16)
    whole[:, :45] = bits
    short, full = fp4.cast(bits, draft), fp4.cast(whole, draft)
    assert short.codes.shape == (5, 2, 32)
    assert (short.codes == full.codes).all()
    assert (short.scales == full.scales).all()


@each_format
@pytest.mark.parametrize("columns", [32, 172, 300])
def test_nesting_restores_every_bit(
    rng: np.random.Generator, draft: DraftFormat, columns: int
) -> None:
    for bits in (random_bits(rng, 400, columns) & 0xBFFF, usual_bits(rng, 400, columns, most=0)):
        nested = fp4.nest(bits, draft)
        assert not nested.is_plain
        assert (fp4.unnest(nested) == bits).all()
        assert nested.is_patch.sum() == len(nested.patches)


@each_format
def test_nesting_restores_every_bf16_below_2_and_refuses_larger_patches(
    draft: DraftFormat,
) -> None:
    magnitudes = np.arange(0x4000, dtype=np.uint16)
    bits = np.concatenate([magnitudes, magnitudes | 0x8000]).reshape(-1, 32)
    for shuffle in (bits, bits.T.copy()):
        assert (fp4.unnest(fp4.nest(shuffle, draft)) == shuffle).all()
    large = bf16(np.where(np.arange(32) % 2, 1000.0, 2.0))[None]
    assert fp4.nest(large, draft).is_plain
    assert not fp4.nest(bf16(np.where(np.arange(32) % 2, 1000.0, 1.9921875))[None], draft).is_plain


@each_format
def test_gaussian_weights_have_about_3_percent_patches(
    rng: np.random.Generator, draft: DraftFormat
) -> None:
    weights = rng.normal(0, 0.02, (256, 2048)).astype(np.float32)
    bits = (weights.view(np.uint32) >> 16).astype(np.uint16)
    assert fp4.nest(bits, draft).is_patch.mean() < 0.032


@each_format
def test_padding_is_never_a_patch(rng: np.random.Generator, draft: DraftFormat) -> None:
    nested = fp4.nest(random_bits(rng, 8, 33), draft)
    assert not nested.is_patch[:, 1, 1:].any()
    assert not nested.residuals[:, 1, 1:].any()


def test_the_table_low_holds_the_rounding_boundaries() -> None:
    low = fp4.bf16_values(fp4.LOW.astype(np.uint16))
    assert low.tolist() == [0.0625, *fp4.BOUNDARY.tolist()]
