"""Converts tensors of gated DeltaNet layers from llama.cpp's layout to Hugging Face's.

llama.cpp interleaves value heads: the first of each key head, then the second of each, and so on.
Hugging Face keeps the value heads of a key head together. llama.cpp's `ssm_a` is -e^A_log.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd.errors import TensorError, shown
from specqd.formats.gguf import GgufFile

RECURRENT = "linear_attn."
_PER_HEAD = ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")


@dataclass(frozen=True, slots=True)
class RecurrentLayout:
    """The number and size of the heads in a file's recurrent layers."""

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int

    @classmethod
    def of(cls, gguf: GgufFile, architecture: str) -> "RecurrentLayout":
        """Reads the metadata. Raises TensorError if it is incomplete or inconsistent."""

        def number(key: str) -> int:
            value = gguf.get(f"{architecture}.ssm.{key}")
            if type(value) is not int or value < 1:
                raise TensorError(
                    f"{gguf.path}: {architecture}.ssm.{key} is {shown(value)}, not a positive "
                    "integer; fetch the file again"
                )
            return value

        key_heads, value_heads = number("group_count"), number("time_step_rank")
        width = number("inner_size")
        if value_heads % key_heads or width % value_heads:
            raise TensorError(
                f"{gguf.path}: {width} values cannot be divided among {value_heads} value heads, "
                f"or these among {key_heads} key heads; fetch the file again"
            )
        return cls(key_heads, value_heads, number("state_size"), width // value_heads)

    def restored(self, name: str, values: NDArray[Any]) -> NDArray[Any]:
        """Returns the tensor in Hugging Face's order and shape. `name` is Hugging Face's."""
        part = name.rpartition(RECURRENT)[2]
        before = 2 * self.key_heads * self.key_dim  # queries and keys
        if part in _PER_HEAD:
            return self._grouped(values, 1)
        if part == "in_proj_z.weight":
            return self._grouped(values, self.value_dim)
        if part == "out_proj.weight":
            return np.ascontiguousarray(self._grouped(values.T, self.value_dim).T)
        if part in ("in_proj_qkv.weight", "conv1d.weight"):
            rest = self._grouped(values[before:], self.value_dim)
            both = np.concatenate([values[:before], rest])
            return both[:, None] if part == "conv1d.weight" else both
        return values

    def _grouped(self, rows: NDArray[Any], dim: int) -> NDArray[Any]:
        tiles = rows.reshape(self.value_heads // self.key_heads, self.key_heads, dim, -1)
        return np.ascontiguousarray(tiles.swapaxes(0, 1)).reshape(rows.shape)


def logarithms(rates: NDArray[np.float32]) -> NDArray[np.float32] | None:
    """Returns A_log for `rates`, which are -e^A_log, or None unless all of them are below 0.

    The bits are the same on every machine. NumPy's logarithm would depend on the machine.
    """
    if not np.all((rates < 0) & np.isfinite(rates)):
        return None
    return np.array([float(Decimal(-float(rate)).ln()) for rate in rates], np.float32)
