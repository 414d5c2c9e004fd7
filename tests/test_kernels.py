"""Every instruction set multiplies and casts to the same, correct bits, for any number of rows.

Portable kernels are compared with NumPy, all others with the portable ones. The core fills output
arrays with NaN, so that an element that a kernel does not write fails the test.
"""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import numpy as np
import pytest

from specqd._native import testing
from specqd.formats.fp4 import DraftFormat
from support import fp4
from support.kernel_values import (
    BLOCK,
    KINDS,
    OTHERS,
    PANEL,
    PORTABLE,
    ROUNDING,
    ROWS,
    TILE,
    Floats,
    any_finite,
    assert_same_bits,
    bf16_bits,
    bf16_values,
    each_isa,
    each_other_isa,
    each_precision,
    random_inputs,
    tiled,
    weights_of,
    with_exponents,
)

PAGE = 64  # positions of a page of the KV cache
DRAFT_BLOCK = 40  # bytes: inputs, scale, correction

# --- The same bits on every instruction set -----------------------------------------------------

each_format = pytest.mark.parametrize("draft", DraftFormat, ids=lambda draft: draft.value)


@each_precision
@pytest.mark.parametrize("kind", KINDS)
def test_products_have_the_portable_bits_for_every_number_of_rows(
    precision: str, kind: str, rng: np.random.Generator
) -> None:
    panels, tiles = int(rng.integers(1, 4)), int(rng.integers(1, 20))
    matrix = tiled(weights_of(kind, rng, panels * PANEL, tiles * BLOCK))
    tables = {isa: testing.kernels(isa) for isa in OTHERS}
    for draft, plain in product([each.value for each in DraftFormat], (False, True)):
        packed = PORTABLE.pack(matrix, draft, plain)
        for rows in ROWS:
            x = random_inputs(rng, rows, tiles * BLOCK - int(rng.integers(0, BLOCK)))
            expected = PORTABLE.product(precision, packed, x)  # the slowest, so only once
            for isa, table in tables.items():
                assert_same_bits(table.product(precision, packed, x), expected, isa)


@each_isa
def test_products_of_many_rows_need_a_small_stack(isa: str, rng: np.random.Generator) -> None:
    """Threads of musl have 128 KiB."""
    before = threading.stack_size(128 << 10)
    try:
        with ThreadPoolExecutor(1) as thread:
            table = testing.kernels(isa)
            packed = table.pack(tiled(weights_of("gaussian", rng, PANEL, 4 * BLOCK)), "fp4", False)
            x = random_inputs(rng, 64, 4 * BLOCK)
            thread.submit(table.product, "exact", packed, x).result()
    finally:
        threading.stack_size(before)


@each_other_isa
def test_products_of_many_rows_and_panels_have_the_portable_bits(
    isa: str, rng: np.random.Generator
) -> None:
    """Many rows are multiplied by blocks of tiles; these end within panels and within claims."""
    table = testing.kernels(isa)
    for plain in (False, True):
        panels, tiles = int(rng.integers(7, 20)), int(rng.integers(1, 40))
        packed = PORTABLE.pack(
            tiled(weights_of("heavy tails", rng, panels * PANEL, tiles * BLOCK)), "fp4", plain
        )
        x = random_inputs(rng, int(rng.integers(64, 100)), tiles * BLOCK)
        first, last = sorted(int(at) for at in rng.choice(panels + 1, 2, replace=False))
        expected = PORTABLE.product("exact", packed, x, first, last)
        assert_same_bits(table.product("exact", packed, x, first, last), expected)


@each_other_isa
def test_products_at_the_edges_of_fp32_have_the_portable_bits(
    isa: str, rng: np.random.Generator
) -> None:
    """Portable kernels multiply in fp32 only where it holds products exactly, decided by tile."""
    table = testing.kernels(isa)
    tiles = 30
    for both in (126, 127, 128, 129, 380, 381, 382):  # the sum of the biased exponents of factors
        least, most = max(2, both - 254), min(254, both - 2)
        of_weights = np.repeat(rng.integers(least, most, tiles, endpoint=True), BLOCK)
        page = tiled(with_exponents(rng, np.tile(of_weights, (PAGE, 1)))).reshape(1, -1)
        for rows in (1, 3, 4, 7):
            x = bf16_values(with_exponents(rng, np.tile(both - of_weights, (rows, 1))))
            expected = PORTABLE.score_keys(page, 0, PAGE, x)
            assert_same_bits(table.score_keys(page, 0, PAGE, x), expected)


def blocks_of_pages(rng: np.random.Generator) -> tuple[int, int, int]:
    """A number of pages, and the first and the end of the positions that attention reads there."""
    pages = int(rng.integers(1, 9))
    begin = BLOCK * int(rng.integers(PAGE // BLOCK))
    end = (pages - 1) * PAGE + BLOCK * int(rng.integers(1, PAGE // BLOCK, endpoint=True))
    return pages, begin if begin < end else 0, end


@each_other_isa
def test_scores_have_the_portable_bits(isa: str, rng: np.random.Generator) -> None:
    table = testing.kernels(isa)
    for rows in ROWS:
        count, begin, end = blocks_of_pages(rng)
        width = BLOCK * int(rng.integers(1, 9))
        pages = np.stack([tiled(any_finite(rng, PAGE, width)).ravel() for _ in range(count)])
        queries = random_inputs(rng, rows, width)
        expected = PORTABLE.score_keys(pages, begin, end, queries)
        assert_same_bits(table.score_keys(pages, begin, end, queries), expected)


@each_other_isa
def test_sums_of_values_have_the_portable_bits(isa: str, rng: np.random.Generator) -> None:
    table = testing.kernels(isa)
    for rows in ROWS:
        count, begin, end = blocks_of_pages(rng)
        width = PANEL * int(rng.integers(1, 9))
        pages = np.stack([tiled(any_finite(rng, width, PAGE)).ravel() for _ in range(count)])
        weights = random_inputs(rng, rows, end - begin)
        expected = PORTABLE.sum_values(pages, begin, end, weights)
        assert_same_bits(table.sum_values(pages, begin, end, weights), expected)


def test_attention_products_are_those_of_a_matrix(rng: np.random.Generator) -> None:
    """Pages are matrices, and sums go on from one page to the next."""
    for rows in ROWS:
        count, begin, end = blocks_of_pages(rng)
        width = BLOCK * int(rng.integers(1, 9))
        keys = weights_of("gaussian", rng, count * PAGE, width)
        queries = random_inputs(rng, rows, width)
        pages = tiled(keys).reshape(count, -1)
        scores = PORTABLE.score_keys(pages, begin, end, queries)
        packed = PORTABLE.pack(tiled(keys[begin:end]), "fp4", True)
        assert_same_bits(scores, PORTABLE.product("exact", packed, queries))

        values = weights_of("gaussian", rng, width, count * PAGE)
        weights = random_inputs(rng, rows, end - begin)
        parts = values.reshape(width, count, PAGE).swapaxes(0, 1)
        pages = np.stack([tiled(part).ravel() for part in parts])
        sums = PORTABLE.sum_values(pages, begin, end, weights)
        packed = PORTABLE.pack(tiled(values[:, begin:end]), "fp4", True)
        assert_same_bits(sums, PORTABLE.product("exact", packed, weights))


@each_other_isa
@pytest.mark.parametrize("kind", KINDS)
@each_format
def test_tiles_are_cast_to_the_portable_planes_and_back(
    isa: str, kind: str, draft: DraftFormat, rng: np.random.Generator
) -> None:
    matrix = tiled(weights_of(kind, rng, 3 * PANEL, 5 * BLOCK))
    table = testing.kernels(isa)
    packed = table.pack(matrix, draft.value)
    for plane, expected in zip(
        testing.planes(packed), testing.planes(PORTABLE.pack(matrix, draft.value)), strict=True
    ):
        np.testing.assert_array_equal(plane, expected)
    np.testing.assert_array_equal(table.unpack(packed), matrix)


@each_isa
def test_tiles_with_any_number_of_patches_are_decoded(isa: str, rng: np.random.Generator) -> None:
    counts = rng.permutation(3 * 16)
    values = rng.choice([-0.02, 0.02], (len(counts), TILE))
    for tile, count in zip(values, counts, strict=True):
        tile[rng.choice(tile.size, count, replace=False)] *= 1e-6
    matrix = bf16_bits(values).reshape(3, 16, TILE)
    table = testing.kernels(isa)
    packed = table.pack(matrix)
    starts = testing.planes(packed)[3]
    np.testing.assert_array_equal(np.diff(starts), counts)
    np.testing.assert_array_equal(table.unpack(packed), matrix)
    plain = table.pack(matrix, plain=True)
    for rows in (1, 2, 4, 8, 9):
        x = random_inputs(rng, rows, 16 * BLOCK)
        expected = PORTABLE.product("exact", plain, x)
        assert_same_bits(table.product("exact", packed, x), expected)


@each_isa
@pytest.mark.parametrize("inputs", [1, 31, 32, 33, 64, 100, 512, 2048])
def test_inputs_are_prepared_to_the_same_values(
    isa: str, inputs: int, rng: np.random.Generator
) -> None:
    table, tiles = testing.kernels(isa), -(-inputs // BLOCK)
    x = random_inputs(rng, 5, inputs)
    x[3, rng.integers(0, inputs)] = np.inf
    x[4, rng.integers(0, inputs)] = np.nan
    expected_draft = PORTABLE.prepare("fp4", x, tiles)
    if isa == "avx2":  # two corrections of 16 bits: of the inputs 0, 1 and 2, 3 of each four
        blocks = expected_draft[:, : tiles * DRAFT_BLOCK].reshape(-1, DRAFT_BLOCK)
        pairs = blocks[:, :BLOCK].view(np.int8).reshape(-1, 8, 2, 2).sum((1, 3), np.int16)
        blocks[:, -4:] = (-12 * pairs).view(np.uint8)
        expected_draft[:, : tiles * DRAFT_BLOCK] = blocks.reshape(5, -1)
    np.testing.assert_array_equal(table.prepare("fp4", x, tiles), expected_draft)
    expected = np.zeros((3, tiles * BLOCK), np.float32)
    expected[:, :inputs] = bf16_values(bf16_bits(x[:3]))
    rows = table.prepare("exact", x[:3], tiles)
    if "amx" in isa or "bf16" in isa:
        actual = bf16_values(np.ascontiguousarray(rows[:, : tiles * BLOCK * 2]).view(np.uint16))
        if "bf16" in isa:  # pairs of one chain, later one first: 2 0 3 1
            actual = actual.reshape(3, -1, 4)[:, :, [1, 3, 0, 2]].reshape(3, -1)
    else:
        actual = np.ascontiguousarray(rows[:, : tiles * BLOCK * 4]).view(np.float32)
    assert_same_bits(actual, expected)


# --- Rows and panels are independent ------------------------------------------------------------


@each_isa
@each_precision
def test_a_row_and_a_panel_have_the_same_bits_alone_and_among_others(
    isa: str, precision: str, rng: np.random.Generator
) -> None:
    table = testing.kernels(isa)
    packed = table.pack(tiled(weights_of("gaussian", rng, 5 * PANEL, 7 * BLOCK)))
    x = random_inputs(rng, max(ROWS), 7 * BLOCK)
    alone = np.concatenate([table.product(precision, packed, x[i : i + 1]) for i in range(len(x))])
    for rows in ROWS:
        assert_same_bits(table.product(precision, packed, x[:rows]), alone[:rows])
    x, whole = x[:3], np.ascontiguousarray(alone[:3])
    for first in range(6):
        for last in range(first, 6):
            part = table.product(precision, packed, x, first, last)
            assert_same_bits(part, np.ascontiguousarray(whole[:, first * PANEL : last * PANEL]))


# --- The correct bits ---------------------------------------------------------------------------


def chained_sum(matrix: Floats, x: Floats) -> Floats:
    """x @ matrix.T in the order of docs/exactness.md, for normal BF16 values.

    In fp64, the product of two BF16 values plus an fp32 value is rounded at most once before it is
    rounded to fp32. This double rounding gives the same result as a single one.
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
    table = testing.kernels(isa)
    actual = table.product("exact", table.pack(tiled(matrix)), x)
    assert_same_bits(actual, chained_sum(bf16_values(matrix), bf16_values(bf16_bits(x))))


@each_isa
@each_format
@pytest.mark.parametrize("kind", ["gaussian", "heavy tails"])
def test_products_are_within_their_error_bounds_of_float64(
    isa: str, draft: DraftFormat, kind: str, rng: np.random.Generator
) -> None:
    tiles = 40
    matrix = weights_of(kind, rng, 2 * PANEL, tiles * BLOCK)
    x = rng.standard_normal((9, tiles * BLOCK)).astype(np.float32)
    table = testing.kernels(isa)
    packed = table.pack(tiled(matrix), draft.value)
    actual = table.product("exact", packed, x)
    w, rounded = bf16_values(matrix).astype(np.float64), bf16_values(bf16_bits(x))
    # A product is rounded at most 16 times in its chain, once in the sum of chains, once per block.
    roundings = (16 + 1 + tiles) * ROUNDING
    bound = roundings / (1 - roundings) * (np.abs(rounded).astype(np.float64) @ np.abs(w).T)
    assert np.all(np.abs(actual - rounded @ w.T) <= bound)

    actual = table.product("fp4", packed, x)
    w = fp4.decode(fp4.cast(matrix, draft)).reshape(matrix.shape)
    largest = np.abs(x).reshape(len(x), tiles, BLOCK).max(axis=2).astype(np.float64)
    # The error of int8 inputs is half a step, largest / 254, and the three roundings of
    # x * (127 / largest) * (largest / 127). That of sums is the rounding of the input scale and
    # one rounding per block.
    quantised = np.repeat(largest / 254 * (1 + 2**-20) + largest * 3 * ROUNDING, BLOCK, axis=1)
    roundings = (2 + tiles) * ROUNDING
    bound = (quantised + roundings * 1.01 * (np.abs(x) + quantised)) @ np.abs(w).T
    assert np.all(np.abs(actual - x.astype(np.float64) @ w.T) <= bound)
