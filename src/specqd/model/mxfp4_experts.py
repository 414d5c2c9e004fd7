"""The layout of experts that are MXFP4 in the file. Packs nothing.

A tensor stacks all experts of a layer; rows of gate and up projections alternate.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specqd.errors import TensorError
from specqd.formats.fp4 import BLOCK
from specqd.formats.safetensors import TensorDirectory, WeightSource

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Mxfp4Experts:
    """The tensors `name`_blocks [experts, rows, blocks, 16] and `name`_scales [experts, rows,
    blocks], read one expert at a time."""

    tensors: WeightSource
    name: str
    experts: int
    rows: int
    columns: int

    def parts(self, expert: int, parts: int) -> list[tuple[Bytes, Bytes]]:
        """Codes [rows, columns / 2] and scales [rows, blocks] of every `parts`-th row."""
        blocks = self.columns // BLOCK
        shape = (self.experts, self.rows, blocks)
        codes = self._bytes(f"{self.name}_blocks", (*shape, BLOCK // 2))[expert]
        codes = codes.reshape(self.rows, -1)
        scales = self._bytes(f"{self.name}_scales", shape)[expert]
        return [
            (np.ascontiguousarray(codes[part::parts]), np.ascontiguousarray(scales[part::parts]))
            for part in range(parts)
        ]

    def wrong(self, problem: str) -> TensorError:
        return TensorError(
            f"{self.tensors.path}: {self.name}: {problem}; fetch the model again, as MXFP4"
        )

    def _bytes(self, name: str, shape: tuple[int, ...]) -> Bytes:
        view = self.tensors.get(name) if isinstance(self.tensors, TensorDirectory) else None
        if view is None:
            raise self.wrong(f"{name} is missing (U8 {list(shape)} was expected)")
        if view.dtype != "U8" or view.shape != shape:
            raise self.wrong(
                f"{name} is {view.dtype} {list(view.shape)}, U8 {list(shape)} was expected"
            )
        return np.asarray(view.data, np.uint8)
