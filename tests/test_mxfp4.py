"""MXFP4 follows OCP MX v1.0, and nested MXFP4 gives back the bits of BF16."""

from fractions import Fraction

import numpy as np
import pytest

from specqd.formats.mxfp4 import ScaleRule
from support import mxfp4
from support.mxfp4 import Blocks

RULES = list(ScaleRule)


def bf16(values: object) -> mxfp4.Bits:
    """BF16 bits of values that BF16 holds exactly."""
    wide = np.asarray(values, np.float32).view(np.uint32)
    assert not (wide & 0xFFFF).any()
    return (wide >> 16).astype(np.uint16)


def random_bits(rng: np.random.Generator, rows: int, columns: int) -> mxfp4.Bits:
    """Finite BF16 of every size: rows of one size, zeros, subnormals and huge values."""
    bits = rng.integers(0, 0x7F80, (rows, columns)).astype(np.uint16)
    spread = rng.normal(size=(rows, columns)) * np.exp2(rng.integers(-126, 120, (rows, 1)))
    near = (spread.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    bits = np.where(rng.random((rows, 1)) < 0.7, near, bits)
    bits = np.where(rng.random((rows, 1)) < 0.1, rng.integers(0, 0x80, bits.shape), bits)
    bits = np.where(rng.random((rows, 1)) < 0.05, rng.integers(0x7F00, 0x7F80, bits.shape), bits)
    bits = np.where(rng.random(bits.shape) < 0.05, 0, bits)
    bits = np.where(rng.random((rows, 1)) < 0.05, 0, bits)
    return (bits ^ (rng.integers(0, 2, bits.shape) << 15)).astype(np.uint16)


def exact_block(bits: mxfp4.Bits, rule: ScaleRule) -> tuple[int, list[int]]:
    """One block in exact fractions, by the definition."""
    values = [Fraction(float(v)) for v in mxfp4.bf16_values(bits)]
    grid = [Fraction(float(g)) for g in mxfp4.GRID]

    def round_at(scale: int) -> list[int]:
        indices = []
        for value in values:
            scaled = abs(value) / Fraction(2) ** (scale - 127)
            indices.append(min(range(8), key=lambda i: (abs(scaled - grid[i]), i % 2)))
        return indices

    def error_at(scale: int) -> Fraction:
        unit = Fraction(2) ** (scale - 127)
        pairs = zip(values, round_at(scale), strict=True)
        return sum(((abs(v) - grid[i] * unit) ** 2 for v, i in pairs), Fraction(0))

    amax = max(abs(v) for v in values)
    floor = 127 if amax == 0 else 0
    while amax and floor < 254 and Fraction(2) ** (floor + 1 + 2 - 127) <= amax:
        floor += 1
    scale = floor
    if rule is ScaleRule.MSE:
        candidates = [c for c in (floor, floor - 1, floor + 1) if 0 <= c <= 254]
        scale = min(candidates, key=error_at)  # the first of equals
    signs = (bits >> 15).astype(int) << 3
    return scale, [int(s | i) for s, i in zip(signs, round_at(scale), strict=True)]


@pytest.mark.parametrize("rule", RULES)
def test_cast_equals_the_definition_in_exact_fractions(
    rng: np.random.Generator, rule: ScaleRule
) -> None:
    bits = random_bits(rng, 150, 32)
    blocks = mxfp4.cast(bits, rule)
    for row in range(len(bits)):
        scale, codes = exact_block(bits[row], rule)
        assert (blocks.scales[row, 0], blocks.codes[row, 0].tolist()) == (scale, codes), bits[row]


@pytest.mark.parametrize("rule", RULES)
def test_every_code_at_every_scale_decodes_to_its_value_and_casts_back(rule: ScaleRule) -> None:
    codes = np.tile(np.arange(16, dtype=np.uint8), 2)
    blocks = Blocks(np.tile(codes, (256, 1)), np.arange(256, dtype=np.uint8))
    values = mxfp4.decode(blocks)
    assert np.isnan(values[255]).all()
    for scale in range(255):
        positive = [float(g) * 2.0 ** (scale - 127) for g in mxfp4.GRID]
        assert values[scale].tolist() == [*positive, *(-v for v in positive)] * 2
    fits = values[:253]  # 6 * 2^125 and below; 0.5 * 2^-127 is a BF16 subnormal
    again = mxfp4.cast(bf16(fits), rule)
    assert (again.scales[:, 0] == blocks.scales[:253]).all()
    assert (again.codes[:, 0] == blocks.codes[:253]).all()


def test_ties_go_to_the_even_code_and_large_values_saturate() -> None:
    ties = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 7.9375]
    values = [*ties, *(-t for t in ties), *[4.0] * 16]
    codes = mxfp4.cast(bf16(values), ScaleRule.FLOOR).codes[0]
    assert codes[:16].tolist() == [0, 2, 2, 4, 4, 6, 6, 7, 8, 10, 10, 12, 12, 14, 14, 15]


def test_an_all_zero_block_has_scale_one_and_keeps_its_signs() -> None:
    bits = np.where(np.arange(32) % 2, 0x8000, 0).astype(np.uint16)
    for rule in RULES:
        blocks = mxfp4.cast(bits, rule)
        assert blocks.scales.tolist() == [127]
        assert blocks.codes[0].tolist() == [0, 8] * 16


def test_mse_is_never_worse_than_floor(rng: np.random.Generator) -> None:
    bits = bf16(
        (rng.normal(size=(200, 96)).astype(np.float32).view(np.uint32) & 0xFFFF0000).view(
            np.float32
        )
    )
    values = mxfp4.bf16_values(bits).reshape(200, 3, 32)
    floor, mse = (
        ((mxfp4.decode(mxfp4.cast(bits, rule)) - values) ** 2).sum(-1)
        for rule in (ScaleRule.FLOOR, ScaleRule.MSE)
    )
    assert (mse <= floor).all()
    assert mse.sum() < floor.sum()


@pytest.mark.parametrize("bad", [0x7F80, 0xFF80, 0x7FC0, 0xFFFF])
def test_infinities_and_nans_are_refused(bad: int) -> None:
    bits = np.zeros((2, 40), np.uint16)
    bits[1, 39] = bad
    for rule in RULES:
        with pytest.raises(ValueError, match="infinity or NaN"):
            mxfp4.cast(bits, rule)


def test_a_partial_block_is_padded_with_zeros(rng: np.random.Generator) -> None:
    bits = random_bits(rng, 5, 45)
    whole = np.zeros((5, 64), np.uint16)
    whole[:, :45] = bits
    for rule in RULES:
        short, full = mxfp4.cast(bits, rule), mxfp4.cast(whole, rule)
        assert short.codes.shape == (5, 2, 32)
        assert (short.codes == full.codes).all()
        assert (short.scales == full.scales).all()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("columns", [32, 172, 300])
def test_nesting_gives_back_every_bit(
    rng: np.random.Generator, rule: ScaleRule, columns: int
) -> None:
    bits = random_bits(rng, 400, columns)
    nested = mxfp4.nest(bits, rule)
    assert (mxfp4.unnest(nested) == bits).all()
    assert nested.is_patch.sum() == len(nested.patches)
    plain = mxfp4.cast(bits, rule)
    assert (nested.blocks.codes == plain.codes).all()
    assert (nested.blocks.scales == plain.scales).all()


@pytest.mark.parametrize("rule", RULES)
def test_nesting_gives_back_every_finite_bf16(rule: ScaleRule) -> None:
    magnitudes = np.arange(0x7F80, dtype=np.uint16)
    bits = np.concatenate([magnitudes, magnitudes | 0x8000]).reshape(-1, 32)
    for shuffle in (bits, bits.T.copy()):
        assert (mxfp4.unnest(mxfp4.nest(shuffle, rule)) == shuffle).all()


def test_gaussian_weights_have_under_3_percent_patches(rng: np.random.Generator) -> None:
    weights = rng.normal(0, 0.02, (256, 2048)).astype(np.float32)
    bits = (weights.view(np.uint32) >> 16).astype(np.uint16)
    for rule in RULES:
        assert mxfp4.nest(bits, rule).is_patch.mean() < 0.03


def test_padding_is_never_a_patch(rng: np.random.Generator) -> None:
    nested = mxfp4.nest(random_bits(rng, 8, 33), ScaleRule.FLOOR)
    assert not nested.is_patch[:, 1, 1:].any()
    assert not nested.residuals[:, 1, 1:].any()


def test_the_table_low_holds_the_rounding_boundaries() -> None:
    assert mxfp4.bf16_values(mxfp4.LOW).tolist() == [0.0625, *mxfp4.BOUNDARY.tolist()]
