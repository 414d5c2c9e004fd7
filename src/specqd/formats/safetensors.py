"""Maps the safetensors files of a directory, checks them, and gives named views of their data.

Owns the file format, and rejects damaged and hostile files. Does not know which tensors a model
needs.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from specqd.errors import TensorError, shown
from specqd.formats.bf16 import rounded_to_bf16, widened
from specqd.formats.mapped import MappedFile
from specqd.formats.small_file import read_small

# safetensors dtype -> NumPy dtype of the raw bits (NumPy has no bfloat16 and no 8-bit floats).
_STORAGE: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype("?"),
    "U8": np.dtype("u1"),
    "I8": np.dtype("i1"),
    "F8_E5M2": np.dtype("u1"),
    "F8_E4M3": np.dtype("u1"),
    "F8_E8M0": np.dtype("u1"),
    "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "U32": np.dtype("<u4"),
    "I32": np.dtype("<i4"),
    "F32": np.dtype("<f4"),
    "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"),
    "F64": np.dtype("<f8"),
    "C64": np.dtype("<c8"),
}
# dtypes that weights may have; all are rounded to BF16
_FLOATS = ("BF16", "F16", "F32")
_MOST_NAME_BYTES = 255  # of a file, on any system
_MOST_HEADER_BYTES = 100_000_000  # the limit of the safetensors library
_MOST_DIMENSIONS = 32  # the limit of older NumPy versions
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PACKED_WEIGHTS = "model-packed.safetensors"  # written by `specqd pack`


@dataclass(frozen=True, slots=True, eq=False)
class TensorView:
    """One tensor of a file.

    `data` has `shape`, is read-only and holds raw bits (BF16 as uint16). It is mapped, or a copy if
    the file does not align it.
    """

    dtype: str
    shape: tuple[int, ...]
    data: NDArray[Any]


@dataclass(frozen=True, slots=True)
class _Extent:
    """A tensor's bytes [begin, end) in the data that follows the header."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True, eq=False)
class _Shard:
    """One mapped safetensors file whose header has been checked."""

    file: MappedFile
    data_start: int
    extents: Mapping[str, _Extent]
    metadata: Mapping[str, str]

    def view(self, name: str) -> TensorView:
        extent = self.extents[name]
        storage = _STORAGE[extent.dtype]
        raw = np.frombuffer(self.file.data, np.uint8)
        data = raw[self.data_start + extent.begin : self.data_start + extent.end].view(storage)
        if not data.flags.aligned:
            data = data.copy()
            data.flags.writeable = False
        return TensorView(extent.dtype, extent.shape, data.reshape(extent.shape))


class WeightSource(Protocol):
    """Gives a model's weights by their Hugging Face names, from any kind of file."""

    @property
    def path(self) -> Path: ...
    def __contains__(self, name: object) -> bool: ...
    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises TensorError unless tensor `name` exists, has `shape` and has a readable type."""

    def bf16(self, name: str, shape: tuple[int, ...], at: int | None = None) -> NDArray[np.uint16]:
        """Returns the BF16 bits of a tensor, or of entry `at` of its first dimension.

        Raises TensorError as `check` does.
        """

    def f32(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Returns the values of a tensor, not rounded. Raises TensorError as `check` does."""

    def matrices(self) -> Iterable[tuple[str, str, tuple[int, ...]]]:
        """Returns the name, dtype and shape of every matrix and every stack of matrices."""

    def files(self) -> Iterable[MappedFile]:
        """The mapped files, each once."""

    def check_unchanged(self) -> None:
        """Raises TensorError if a file changed since it was mapped."""


class TensorDirectory(Mapping[str, TensorView]):
    """Maps tensor names to the tensors of `model.safetensors`, or of the shards in its index."""

    def __init__(self, path: Path, shards: Mapping[str, _Shard]) -> None:
        self.path = path
        self._shards = shards  # tensor name -> the shard that holds it

    @classmethod
    def open(cls, directory: Path) -> "TensorDirectory":
        """Maps and checks every weights file. Raises TensorError, which names the file."""
        single, index = directory / WEIGHTS, directory / INDEX
        if single.exists() or not index.exists():
            shard = _open_shard(single)
            return cls(directory, dict.fromkeys(shard.extents, shard))
        placement = read_index(index)
        shards = {file: _open_shard(directory / file) for file in sorted(set(placement.values()))}
        for name, file in placement.items():
            if name not in shards[file].extents:
                raise TensorError(
                    f"{index}: places tensor {shown(name)} in {file}, which does not hold it; "
                    "fetch the model again"
                )
        return cls(directory, {name: shards[file] for name, file in placement.items()})

    @classmethod
    def of_file(cls, path: Path) -> "TensorDirectory":
        """Maps and checks one safetensors file. Raises TensorError, which names the file."""
        shard = _open_shard(path)
        return cls(path, dict.fromkeys(shard.extents, shard))

    def renamed(self, names: Mapping[str, str]) -> "TensorDirectory":
        """Returns only the tensors in `names`, which maps their old names to new ones."""
        shards = {
            new: replace(self._shards[name], extents={new: self._shards[name].extents[name]})
            for name, new in names.items()
        }
        return TensorDirectory(self.path, shards)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The metadata of all files, merged."""
        return {
            key: text for shard in self._distinct_shards() for key, text in shard.metadata.items()
        }

    def check_unchanged(self) -> None:
        for file in self.files():
            file.check_unchanged()

    def files(self) -> Iterable[MappedFile]:
        return [shard.file for shard in self._distinct_shards()]

    def _distinct_shards(self) -> Iterable[_Shard]:
        return {shard.file.path: shard for shard in self._shards.values()}.values()

    def matrices(self) -> Iterable[tuple[str, str, tuple[int, ...]]]:
        extents = ((name, shard.extents[name]) for name, shard in self._shards.items())
        return ((name, at.dtype, at.shape) for name, at in extents if is_matrix(at.shape))

    def __getitem__(self, name: str) -> TensorView:
        return self._shards[name].view(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises TensorError unless tensor `name` exists with `shape` in BF16, FP16 or FP32."""
        shard = self._shards.get(name)
        if shard is None:
            raise TensorError(
                f"{self.path}: tensor {shown(name)} is missing ({list(shape)} was expected); "
                f"{self._why_missing(name)}"
            )
        extent = shard.extents[name]
        if extent.dtype not in _FLOATS:
            raise TensorError(
                f"{shard.file.path}: tensor {shown(name)} is {extent.dtype}, not BF16, FP16 or "
                "FP32; quantised checkpoints are not supported, use the BF16 one"
            )
        if extent.shape != shape:
            raise TensorError(
                f"{shard.file.path}: tensor {shown(name)} has shape {list(extent.shape)}, "
                f"{list(shape)} was expected; the weights do not belong to this config.json"
            )

    def bf16(self, name: str, shape: tuple[int, ...], at: int | None = None) -> NDArray[np.uint16]:
        """Returns the BF16 bits of tensor `name`, or of entry `at` of its first dimension.

        They are mapped, or rounded from FP16 or FP32. Raises TensorError as `check` does.
        """
        self.check(name, shape)
        view = self[name]
        data: NDArray[Any] = view.data if at is None else view.data[at]
        return data if view.dtype == "BF16" else rounded_to_bf16(data)

    def f32(self, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """Returns the exact values of tensor `name`. Raises TensorError as `check` does."""
        self.check(name, shape)
        view = self[name]
        return widened(view.data) if view.dtype == "BF16" else view.data.astype(np.float32)

    def _why_missing(self, name: str) -> str:
        if f"{name.removesuffix('.weight')}.qweight" in self._shards:
            return "there is a .qweight, as in GPTQ and AWQ checkpoints: use the BF16 checkpoint"
        return "the weights do not belong to this config.json or are incomplete"


def is_matrix(shape: tuple[int, ...]) -> bool:
    """Returns whether a shape is that of a matrix or of a stack of matrices.

    A convolution's kernels, [channels, 1, kernel width], are neither.
    """
    return len(shape) == 2 or (len(shape) == 3 and shape[1] > 1)


def _open_shard(path: Path) -> _Shard:
    if not path.is_file():  # follows links; a pipe or a device is never opened
        what = "is not a file" if path.exists() else "is missing"
        raise TensorError(f"{path}: {what}; a model needs {WEIGHTS} or its shards and their index")
    file_bytes = path.stat().st_size
    if file_bytes < 8:
        raise TensorError(f"{path}: {file_bytes} bytes are too short for safetensors")
    file = MappedFile.open(path)
    file_bytes, header_bytes = len(file.data), int.from_bytes(file.data[:8], "little")
    if header_bytes > min(_MOST_HEADER_BYTES, file_bytes - 8):
        raise TensorError(
            f"{path}: header of {header_bytes} bytes is longer than the file "
            f"({file_bytes} bytes) or than {_MOST_HEADER_BYTES}; fetch the file again"
        )
    data_start = 8 + header_bytes
    try:
        extents, metadata = _parse_header(file.data[8:data_start], file_bytes - data_start)
    except ValueError as error:
        raise TensorError(f"{path}: {error}") from error
    return _Shard(file, data_start, extents, metadata)


def _parse_header(
    header: bytes, data_bytes: int
) -> tuple[Mapping[str, _Extent], Mapping[str, str]]:
    """Reads every tensor's place and the metadata.

    Raises ValueError, in one line, unless the tensors cover `data_bytes` without gap or overlap.
    """
    if not header.startswith(b"{"):
        raise ValueError("header is not a JSON object; this is not a safetensors file")
    entries = _parse_object(header, "header")
    metadata = entries.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ValueError("__metadata__ is not an object of strings")
    extents = {name: _parse_extent(name, entry) for name, entry in entries.items()}
    covered = 0
    for name, extent in sorted(extents.items(), key=lambda item: (item[1].begin, item[1].end)):
        if extent.begin < covered:
            raise ValueError(f"tensor {shown(name)} overlaps another tensor's data")
        if extent.begin > covered:
            raise ValueError(f"the data before tensor {shown(name)} belongs to no tensor")
        covered = extent.end
        if covered > data_bytes:
            raise ValueError(
                f"truncated: tensor {shown(name)} ends at byte {covered} of {data_bytes} of data; "
                "fetch the file again"
            )
    if covered < data_bytes:
        raise ValueError(f"{data_bytes - covered} bytes at the end belong to no tensor")
    return extents, metadata


def _parse_extent(name: str, entry: object) -> _Extent:
    quoted = shown(name)
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"tensor {quoted} is not described by dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _STORAGE:
        raise ValueError(f"tensor {quoted} has unknown dtype {shown(dtype)}")
    if not _is_sizes(shape) or len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"tensor {quoted} has impossible shape {shown(shape)}")
    if not _is_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ValueError(f"tensor {quoted} has impossible data_offsets {shown(offsets)}")
    item_bytes = _STORAGE[dtype].itemsize
    if prod(size for size in shape if size) * item_bytes >= 2**63:
        raise ValueError(f"tensor {quoted} has a shape that overflows: {shown(shape)}")
    begin, end = offsets
    if end - begin != prod(shape) * item_bytes:
        raise ValueError(
            f"tensor {quoted} holds {end - begin} bytes, but {dtype} of shape {shown(shape)} "
            f"needs {prod(shape) * item_bytes}: the dtype or shape does not match the data"
        )
    return _Extent(dtype, tuple(shape), begin, end)


def _is_sizes(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def read_index(path: Path) -> dict[str, str]:
    """Reads an index: tensor name -> name of a file in the index's directory.

    Raises TensorError, which names the index.
    """
    try:
        text = read_small(path, _MOST_HEADER_BYTES)
        placement = _parse_object(text, "index").get("weight_map")
    except OSError as error:
        raise TensorError(f"{path}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise TensorError(f"{path}: {error}") from error
    if not isinstance(placement, dict):
        raise TensorError(f"{path}: weight_map is missing or not an object")
    for name, file in placement.items():
        if not isinstance(file, str) or not _is_file_name(file):
            raise TensorError(
                f"{path}: tensor {shown(name)} is placed in {shown(file)}; "
                "an index may name only .safetensors files in its own directory, "
                f"in at most {_MOST_NAME_BYTES} bytes"
            )
    return placement


def _is_file_name(file: str) -> bool:
    """Returns whether a safetensors file can have this name on any system."""
    return (
        file.endswith(".safetensors")
        and file.isprintable()
        and len(file.encode()) <= _MOST_NAME_BYTES
        and not any(c in file for c in "/\\:")
    )


def _parse_object(text: bytes, what: str) -> dict[str, Any]:
    """Parses a JSON object in UTF-8. Raises ValueError if a name repeats at any depth."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        parsed = dict(pairs)
        if len(parsed) != len(pairs):
            [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
            raise _DuplicateNameError(f"{what} names {shown(twice)} twice")
        return parsed

    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except _DuplicateNameError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not valid JSON; fetch the file again") from error
    if not isinstance(parsed, dict):
        raise ValueError(f"{what} is not a JSON object")
    return parsed


class _DuplicateNameError(ValueError):
    """An object has two members of one name. JSON readers differ in which one they use."""
