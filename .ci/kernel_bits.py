"""Prints digests of what all kernels compute from the random inputs of a seed: see clang."""

import sys
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from specqd._native import testing
from specqd.formats.fp4 import DraftFormat
from support.kernel_values import (
    BLOCK,
    KINDS,
    PANEL,
    PRECISIONS,
    ROWS,
    random_inputs,
    tiled,
    weights_of,
)
from test_operations import LENGTHS, OPERATIONS, parts

TILES = 5


def digest(arrays: list[NDArray[Any]]) -> str:
    """All NaN count as equal: their payload is not arithmetic."""
    found = sha256()
    for array in arrays:
        is_float = array.dtype == np.float32
        found.update((np.where(np.isnan(array), np.float32(0), array) if is_float else array).data)
        found.update(np.isnan(array).data if is_float else b"")
    return found.hexdigest()[:32]


def products(table: Any, kind: str, rng: np.random.Generator) -> list[NDArray[Any]]:
    matrix = tiled(weights_of(kind, rng, 2 * PANEL, TILES * BLOCK))
    arrays = []
    importance = rng.random(TILES * BLOCK, np.float32)
    for draft, plain in product([each.value for each in DraftFormat], (False, True)):
        packed = table.pack(matrix, draft, plain, importance)
        arrays += [*map(np.asarray, testing.planes(packed)), table.unpack(packed)]
        for rows in ROWS:
            x = random_inputs(rng, rows, TILES * BLOCK - int(rng.integers(0, BLOCK)))
            arrays += [table.product(precision, packed, x) for precision in PRECISIONS]
    return arrays


seed = int(sys.argv[1])
for name in testing.kernel_names():
    kernels = testing.kernels(name)
    for kind in KINDS:
        print(name, kind, digest(products(kernels, kind, np.random.default_rng(seed))))
    for operation, run in OPERATIONS.items():
        rng = np.random.default_rng(seed)
        results = [part for n in LENGTHS for part in parts(run(kernels, rng, n))]
        print(name, operation, digest(results))
