"""Dry runs: which tensors a reader of weights reads, and whether they fit. Packs nothing."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.formats.fp4 import DraftFormat
from specqd.formats.mapped import MappedFile
from specqd.formats.safetensors import WeightSource
from specqd.model.importance import Importance
from specqd.model.loader import Bits, Loader, Source


def tensors_read(tensors: WeightSource, read: Callable[[Loader], object]) -> set[str]:
    """The names of the tensors that `read` reads from a loader.

    Raises TensorError if a tensor is missing or has another shape. Nothing is packed.
    """
    source = _Zeros(tensors)
    read(_DryLoader(source))
    return source.names


class _Zeros:
    """Zeros in place of the weights of tensors; notes the names of tensors that are read."""

    def __init__(self, tensors: WeightSource) -> None:
        self._tensors = tensors
        self.names: set[str] = set()

    @property
    def path(self) -> Path:
        return self._tensors.path

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        self._tensors.check(name, shape)
        self.names.add(name)

    def bf16(self, name: str, shape: tuple[int, ...], at: int | None = None) -> Bits:
        self.check(name, shape)
        return np.broadcast_to(np.uint16(0), shape if at is None else shape[1:])

    def f32(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        self.check(name, shape)
        return np.broadcast_to(np.float32(0), shape)

    def matrices(self) -> Iterable[tuple[str, str, tuple[int, ...]]]:
        return ()

    def files(self) -> Iterable[MappedFile]:
        return self._tensors.files()

    def check_unchanged(self) -> None:
        self._tensors.check_unchanged()


class _DryLoader(Loader):
    """A loader that returns a small matrix in place of every packed one and of embeddings."""

    def __init__(self, tensors: WeightSource) -> None:
        pool, isa = _native.Pool(1), _native.available_isas()[0]
        super().__init__(tensors, None, pool, isa, DraftFormat.FP4, None)
        packed = _native.pack(pool, isa, [np.zeros((1, 1), np.uint16)], False, "fp4")
        assert isinstance(packed, _native.PackedWeight)
        self._packed = packed

    def _pack_tensors(
        self,
        sources: Sequence[Source],
        columns: int,
        interleaved: bool,
        importance: Importance | None,
    ) -> _native.PackedWeight:
        for source in sources:
            source.bits(self.tensors, columns)
        return self._packed

    def embedding(self, name: str, shape: tuple[int, int]) -> Bits:
        self.tensors.check(name, shape)
        return np.zeros((1, 1), np.uint16)
