"""Reads tensors from a model's files: packs each matrix once, or maps packed matrices.

Knows nothing of layers or families.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config.tensor_names import READ_IN_PLACE
from specqd.errors import TensorError
from specqd.formats.fp4 import DraftFormat
from specqd.formats.safetensors import TensorDirectory, WeightSource
from specqd.model.importance import Importance
from specqd.model.mxfp4_experts import Mxfp4Experts
from specqd.model.packed import PackedFile

Bits = NDArray[np.uint16]
Progress = Callable[[int, int], None]  # bytes of weights packed so far, total bytes


@dataclass(frozen=True, slots=True)
class Source:
    """`count` rows of a tensor that has `rows`: `take` selects them from the range of all rows.

    The range is made only after the tensor's shape was checked, so that a hostile size takes no
    memory. A matrix `within` a larger tensor has a name that begins with that tensor's.
    """

    name: str
    rows: int
    count: int
    take: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None
    within: "Stack | HeadPart | None" = None

    @classmethod
    def whole(cls, name: str, rows: int) -> "Source":
        return cls(name, rows, rows)

    def of(self, bits: Bits) -> Bits:
        """Selects these rows of the tensor's bits [rows, ...]."""
        return bits if self.take is None else bits[self.take(np.arange(self.rows))]

    def bits(self, tensors: WeightSource, columns: int) -> Bits:
        """All rows of the tensor, [rows, columns]."""
        if self.within is None:
            return tensors.bf16(self.name, (self.rows, columns))
        return self.within.bits(tensors, self.rows, columns)

    def place(self, row: int, column: int) -> str:
        """The tensor and the place in it of the weight at `row` and `column` of this source."""
        row = row if self.take is None else int(self.take(np.arange(self.rows))[row])
        if isinstance(self.within, HeadPart):
            return self.within.place(row, column)
        return f"{self.name}[{row}, {column}]"


@dataclass(frozen=True, slots=True)
class Stack:
    """Matrix `at` of the tensor `name` [count, rows, columns]."""

    name: str
    count: int
    at: int

    def rows(self, rows: int, kept: slice | None = None) -> Source:
        """All rows of the matrix, or those `kept`."""
        name, kept = f"{self.name}[{self.at}]", kept or slice(None)
        return Source(name, rows, len(range(rows)[kept]), itemgetter(kept), self)

    def bits(self, tensors: WeightSource, rows: int, columns: int) -> Bits:
        return tensors.bf16(self.name, (self.count, rows, columns), self.at)


@dataclass(frozen=True, slots=True)
class HeadPart:
    """Rows [first, first + count) of each head of the tensor `name` [heads * dim, columns]."""

    name: str
    heads: int
    dim: int
    columns: int
    first: int
    count: int
    is_transposed: bool = False  # each head's part

    def rows(self, part: str) -> Source:
        """These rows of all heads, one head after the other; `part` names them."""
        rows = self.heads * (self.columns if self.is_transposed else self.count)
        return Source(f"{self.name}[{part}]", rows, rows, within=self)

    def bits(self, tensors: WeightSource, rows: int, columns: int) -> Bits:
        whole = tensors.bf16(self.name, (self.heads * self.dim, self.columns))
        heads = whole.reshape(self.heads, self.dim, self.columns)
        heads = heads[:, self.first : self.first + self.count]
        return (heads.swapaxes(1, 2) if self.is_transposed else heads).reshape(rows, columns)

    def place(self, row: int, column: int) -> str:
        height = self.columns if self.is_transposed else self.count
        head, row = divmod(row, height)
        row, column = (column, row) if self.is_transposed else (row, column)
        return f"{self.name}[{head * self.dim + self.first + row}, {column}]"


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One packed matrix and its sources, which are stacked or interleaved by panels.

    `read_share` is the expected fraction of rows that use the matrix: below 1 for experts, which
    are assumed to be chosen equally often.
    """

    sources: tuple[Source, ...]
    weight: _native.PackedWeight
    read_share: float = 1.0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source.name for source in self.sources))


class Loader:
    """Reads tensors by name; packs matrices, or maps those of a packed file."""

    def __init__(
        self,
        tensors: WeightSource,
        planes: PackedFile | None,
        pool: _native.Pool,
        isa: str,
        draft: DraftFormat,
        progress: Progress | None,
    ) -> None:
        self.tensors = tensors
        self.is_mapped = planes is not None
        self.draft = draft
        self.calibration = planes.calibration if planes is not None else "none"
        self.matrices: list[PackedMatrix] = []
        self.unpacked: dict[str, NDArray[Any]] = {}  # BF16 bits, or fp32
        self.sizes: dict[str, int] = {}  # number of weights in each tensor read
        self._planes = planes
        self._pool = pool
        self._isa = isa
        self._progress = progress
        self._packed_bytes = 0
        self._all_bytes = matrix_bytes(tensors)

    def has(self, matrix: str) -> bool:
        """Whether the files hold the matrix, packed or not."""
        is_packed = self._planes is not None and self._planes.has(matrix)
        return is_packed or matrix in self.tensors

    def vector(self, name: str, length: int) -> Bits:
        """A norm's weight or a bias: finite BF16 bits [length]."""
        return self.small(name, (length,))

    def small(self, name: str, shape: tuple[int, ...]) -> Bits:
        """The BF16 bits of a tensor that is not packed; raises TensorError if one is not finite."""
        bits = np.ascontiguousarray(self.tensors.bf16(name, shape)).reshape(shape)
        bad = np.argwhere((bits & 0x7F80) == 0x7F80)
        if bad.size:
            raise self._not_finite(name, str(bad[0].tolist()))
        self.unpacked[name] = bits
        self.sizes[name] = bits.size
        return bits

    def wide(self, name: str, length: int) -> NDArray[np.float32]:
        """A vector that the core uses in fp32: finite values [length]."""
        values = self.tensors.f32(name, (length,))
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise self._not_finite(name, f"[{bad[0]}]")
        self.unpacked[name] = values
        self.sizes[name] = length
        return values

    def norm(self, module: str, length: int) -> _native.Norm:
        """The norm of a module, without a bias."""
        return _native.Norm(weight=self.vector(f"{module}.weight", length), bias=None)

    def bias(self, module: str, length: int, is_present: bool) -> Bits | None:
        """The bias of a module; None if the family has none."""
        return self.vector(f"{module}.bias", length) if is_present else None

    def linear(
        self,
        module: str,
        shape: tuple[int, int],
        importance: Importance | None = None,
        read_share: float = 1.0,
    ) -> _native.PackedWeight:
        """The whole weight of a module, [rows, columns], packed."""
        source = Source.whole(f"{module}.weight", shape[0])
        return self.pack([source], shape[1], read_share=read_share, importance=importance)

    def pack(
        self,
        sources: Sequence[Source],
        columns: int,
        *,
        interleaved: bool = False,
        read_share: float = 1.0,
        importance: Importance | None = None,
    ) -> _native.PackedWeight:
        """Packs rows of tensors [rows, columns] into one matrix, or maps the packed one.

        `importance` says how much errors of draft weights matter, by input; None: all the same.
        """
        if self._planes is None:
            packed = self._pack_tensors(sources, columns, interleaved, importance)
        else:
            packed = self._map(sources, columns, interleaved)
        self.matrices.append(PackedMatrix(tuple(sources), packed, read_share))
        self.sizes |= {source.name: source.rows * columns for source in sources}
        return packed

    def _map(
        self, sources: Sequence[Source], columns: int, interleaved: bool
    ) -> _native.PackedWeight:
        assert self._planes is not None
        names = list(dict.fromkeys(source.name for source in sources))
        rows = [source.count for source in sources]
        return self._planes.matrix(self._pool, names, rows, columns, interleaved=interleaved)

    def _pack_tensors(
        self,
        sources: Sequence[Source],
        columns: int,
        interleaved: bool,
        importance: Importance | None,
    ) -> _native.PackedWeight:
        named = {each.name: each for each in sources}  # several sources may share a tensor
        tensors = {name: source.bits(self.tensors, columns) for name, source in named.items()}
        views = [np.ascontiguousarray(each.of(tensors[each.name])) for each in sources]
        if self.draft is not DraftFormat.FP4:
            importance = None
        packed = _native.pack(
            self._pool,
            self._isa,
            views,
            interleaved,
            self.draft.value,
            _relative(importance.squares) if importance else None,
            importance.products if importance else None,
        )
        if isinstance(packed, tuple):
            at, row, column = packed
            raise self._not_finite(sources[at].place(row, column), "")
        self._count(sum(view.nbytes for view in views))
        return packed

    def take_mxfp4(
        self, stack: Mxfp4Experts, expert: int, parts: int, read_share: float
    ) -> _native.PackedWeight:
        """An expert's weights, MXFP4 in the file. Each source is every `parts`-th row."""
        name = f"{stack.name}[{expert}]"
        sources = [Source.whole(name, stack.rows // parts)] * parts
        if self._planes is None:
            arrays = stack.parts(expert, parts)
            taken = _native.take_mxfp4(self._pool, arrays)
            if isinstance(taken, tuple):
                part, row, block = taken
                raise stack.wrong(
                    f"the scale of [{expert}, {row * parts + part}, {block}] is out of BF16's range"
                )
            self._count(sum(codes.nbytes + scales.nbytes for codes, scales in arrays))
            packed = taken
        else:
            packed = self._map(sources, stack.columns, interleaved=parts > 1)
        self.matrices.append(PackedMatrix(tuple(sources), packed, read_share))
        self.sizes[name] = stack.rows * stack.columns
        return packed

    def _count(self, packed_bytes: int) -> None:
        self._packed_bytes += packed_bytes
        if self._progress and self._packed_bytes < self._all_bytes:
            self._progress(self._packed_bytes, self._all_bytes)

    def embedding(self, name: str, shape: tuple[int, int]) -> Bits:
        """The input embedding [vocabulary, hidden], mapped: forwards read its rows in place."""
        bits = np.ascontiguousarray(self.tensors.bf16(name, shape))
        if self._planes is None:
            bad = _native.find_not_finite(self._pool, bits)
            if bad is not None:
                raise self._not_finite(name, str(list(bad)))
        self.unpacked[name] = bits
        self.sizes[name] = bits.size
        return bits

    def finish(self) -> None:
        """Reports the end of packing and returns unused heap memory to the system."""
        if self._planes is not None:
            return
        _native.release_free_memory()
        if self._progress:
            self._progress(self._all_bytes, self._all_bytes)

    def _not_finite(self, name: str, where: str) -> TensorError:
        return TensorError(
            f"{self.tensors.path}: {name}{where} is NaN or infinite; "
            "the file is damaged or its training diverged, use another copy"
        )


def _relative(squares: NDArray[np.float64]) -> NDArray[np.float32] | None:
    """Squares relative to the largest one, at least 2^-24, as the packing needs them."""
    if not squares.max() > 0:
        return None
    relative: NDArray[np.float32] = np.maximum(squares / squares.max(), 2.0**-24).astype("f4")
    return relative


def matrix_bytes(tensors: WeightSource) -> int:
    """Bytes of the file's matrices that are packed, as BF16 (also if wider) or MXFP4."""
    packed = (shape for name, _, shape in tensors.matrices() if name not in READ_IN_PLACE)
    return sum(2 * prod(shape) for shape in packed) + mxfp4_bytes(tensors)


def rounded_bytes(tensors: WeightSource) -> int:
    """Bytes of matrices that are read in place, but only after rounding to BF16 in memory."""
    return sum(
        2 * prod(shape)
        for name, dtype, shape in tensors.matrices()
        if name in READ_IN_PLACE and dtype != "BF16"
    )


def mxfp4_bytes(tensors: WeightSource) -> int:
    if not isinstance(tensors, TensorDirectory):
        return 0
    return sum(view.data.nbytes for view in tensors.values() if view.dtype == "U8")
