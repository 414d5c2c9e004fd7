"""Maps a GGUF file, checks it, and gives its metadata and named views of its raw data.

Owns the file format, versions 2 and 3, files in several parts, and rejects damaged and hostile
files. Does not know what other keys and tensors mean.
"""

import mmap
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd.errors import TensorError, shown
from specqd.formats.gguf_quants import BLOCK_FORMATS
from specqd.formats.mapped import MappedFile

Value = bool | int | float | str | list[Any]

_MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = {  # type number of a value -> its `struct` format
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_TYPES = {  # ggml's number of a tensor type -> its name
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    30: "BF16",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
# readable type -> weights per item of the file, and the item's layout
_STORAGE: dict[str, tuple[int, np.dtype[Any]]] = {
    "F32": (1, np.dtype("<f4")),
    "F16": (1, np.dtype("<f2")),
    "BF16": (1, np.dtype("<u2")),
}
_STORAGE |= {name: (each.weights, each.block) for name, each in BLOCK_FORMATS.items()}
READABLE = tuple(_STORAGE)
_MOST_DIMENSIONS = 4  # ggml's limit
_MOST_ITEMS = 1 << 24  # of all arrays together; far more than any vocabulary needs
_DEEPEST_ARRAY = 4
_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})")  # stem of a part's name


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor is in the file. Only types in `READABLE` can be read."""

    dtype: str
    shape: tuple[int, ...]  # in NumPy's order
    begin: int  # offset in bytes from the start of the file
    part: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class GgufFile:
    """A mapped file whose header has been checked. Arrays are decoded on request.

    A file may be in several parts, as `llama-gguf-split` writes them: the first one holds the
    metadata, and each one some of the tensors.
    """

    path: Path
    tensors: Mapping[str, GgufTensor]
    parts: Sequence[MappedFile]
    _values: Mapping[str, "Value | _UnreadArray"]

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Maps and checks a file, and all of its parts. Raises TensorError, in one line that names
        the file."""
        file, values, tensors = _map(path)
        parts = [file]
        for number, other in enumerate(_other_parts(path, values), start=1):
            file, own_values, more = _map(other)
            stated = own_values.get("split.no"), own_values.get("split.count")
            if stated != (number, values["split.count"]):
                raise TensorError(f"{other}: is not part {number + 1} of {path}; fetch both again")
            if twice := next((name for name in more if name in tensors), None):
                raise TensorError(
                    f"{other}: tensor {shown(twice)} is also in another part; fetch the files again"
                )
            tensors |= {name: replace(tensor, part=number) for name, tensor in more.items()}
            parts.append(file)
        return cls(path, tensors, parts, values)

    def check_unchanged(self) -> None:
        """Raises TensorError if the file changed since it was mapped."""
        for part in self.parts:
            part.check_unchanged()

    def get(self, key: str) -> Value | None:
        """Returns a value of the metadata, or None if there is no such key.

        Raises TensorError if an array is damaged.
        """
        value = self._values.get(key)
        if not isinstance(value, _UnreadArray):
            return value
        try:
            return _Reader(self.parts[0].data, value.begin).array()
        except ValueError as error:
            raise TensorError(f"{self.path}: {key}: {error}; fetch the file again") from error

    def data(self, name: str) -> NDArray[Any]:
        """Returns a read-only, mapped view of a tensor.

        Plain types give their values in the tensor's shape (BF16 as uint16). Block types give
        blocks, [..., columns / weights per block].
        """
        tensor = self.tensors[name]
        weights, item = _STORAGE[tensor.dtype]
        count = prod(tensor.shape) // weights
        file = self.parts[tensor.part]
        data: NDArray[Any] = np.frombuffer(file.data, item, count, tensor.begin)
        if weights > 1:
            return data.reshape(*tensor.shape[:-1], tensor.shape[-1] // weights)
        return data.reshape(tensor.shape)


@dataclass(frozen=True, slots=True)
class _UnreadArray:
    """An array that was checked but not decoded; `begin` is its offset in the file."""

    begin: int


class _Reader:
    """Reads values from bytes one after another. Raises ValueError past the end."""

    def __init__(self, data: mmap.mmap, at: int = 0) -> None:
        self.at = at
        self._data = data
        self._end = len(data)
        self._items = 0

    def scalar(self, layout: str) -> Any:
        begin = self._advance(struct.calcsize(layout))
        return struct.unpack_from(layout, self._data, begin)[0]

    def string(self) -> str:
        begin = self._advance(self.scalar("<Q"))
        return self._data[begin : self.at].decode("utf-8")  # UnicodeDecodeError is a ValueError

    def value(self) -> "Value | _UnreadArray":
        kind = self.scalar("<I")
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            begin = self.at
            self.skip_array()
            return _UnreadArray(begin)
        if kind not in _SCALARS:
            raise ValueError(f"a value has unknown type {kind}")
        value: Value = self.scalar(_SCALARS[kind])
        return value

    def array(self) -> list[Any]:
        kind, count = self._array_head(0)
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        if kind == _ARRAY:
            return [self.array() for _ in range(count)]
        storage = np.dtype(_SCALARS[kind])
        begin = self._advance(count * storage.itemsize)
        values: list[Any] = np.frombuffer(self._data, storage, count, begin).tolist()
        return values

    def skip_array(self, depth: int = 0) -> None:
        kind, count = self._array_head(depth)
        if kind == _STRING:
            for _ in range(count):
                self._advance(self.scalar("<Q"))
        elif kind == _ARRAY:
            for _ in range(count):
                self.skip_array(depth + 1)
        else:
            self._advance(count * struct.calcsize(_SCALARS[kind]))

    def _array_head(self, depth: int) -> tuple[int, int]:
        kind, count = self.scalar("<I"), self.scalar("<Q")
        self._items += count
        if self._items > _MOST_ITEMS or depth >= _DEEPEST_ARRAY:
            raise ValueError("an array is too large or nested too deeply")
        if kind not in _SCALARS and kind not in (_STRING, _ARRAY):
            raise ValueError(f"a value has unknown type {kind}")
        return kind, count

    def _advance(self, count: int) -> int:
        begin = self.at
        if count > self._end - begin:
            raise ValueError("truncated or damaged")
        self.at = begin + count
        return begin


def of_all_layers(value: Any) -> Any:
    """A number of all layers, where a file may list it for each; a list if they differ."""
    if isinstance(value, list) and value and all(each == value[0] for each in value):
        return value[0]
    return value


def is_gguf(path: Path) -> bool:
    """Returns whether a path names a GGUF file, judged by its suffix."""
    return path.suffix.lower() == ".gguf"


def parts_of(path: Path) -> list[Path]:
    """The files among which a GGUF file is divided, judged by its name; itself if it is whole."""
    part = _part(path)
    if part is None:
        return [path]
    end = f"-of-{part['count']}{path.suffix}"
    numbers = range(1, int(part["count"]) + 1)
    return [path.with_name(f"{part['stem']}-{number:05}{end}") for number in numbers]


def whole_stem(path: Path) -> str:
    """The file's name without the suffix and without the number of a part."""
    part = _part(path)
    return path.stem if part is None else part["stem"]


def _part(path: Path) -> re.Match[str] | None:
    part = _PART.fullmatch(path.stem)
    return part if part and 0 < int(part["number"]) <= int(part["count"]) else None


def _map(
    path: Path,
) -> tuple[MappedFile, dict[str, "Value | _UnreadArray"], dict[str, GgufTensor]]:
    file = MappedFile.open(path)
    try:
        return file, *_parse(file.data)
    except ValueError as error:
        raise TensorError(f"{path}: {error}; fetch the file again") from error


def _other_parts(path: Path, values: Mapping[str, "Value | _UnreadArray"]) -> list[Path]:
    """The parts after the first one, which this file must be."""
    count = values.get("split.count", 1)
    if count in (0, 1):
        return []
    parts = parts_of(path)
    if len(parts) != count:
        raise TensorError(
            f"{path}: is one of {shown(count)} parts; give them their names again, which end in "
            "-00001-of-... and so on"
        )
    if values.get("split.no") != 0 or path != parts[0]:
        raise TensorError(f"{path}: is not the first of {count} parts; name {parts[0]}")
    return parts[1:]


def _parse(mapped: mmap.mmap) -> tuple[dict[str, Value | _UnreadArray], dict[str, GgufTensor]]:
    """Reads the metadata and the tensors' places. Raises ValueError for a file that is no GGUF."""
    if mapped[:4] != _MAGIC:
        raise ValueError("this is not a GGUF file: its first four bytes are not GGUF")
    reader = _Reader(mapped, 4)
    version = reader.scalar("<I")
    if version not in (2, 3):
        raise ValueError(f"GGUF version {version} is not supported; little-endian 2 and 3 are")
    num_tensors, num_values = reader.scalar("<Q"), reader.scalar("<Q")
    values: dict[str, Value | _UnreadArray] = {}
    for _ in range(num_values):
        key = reader.string()
        if key in values:
            raise ValueError(f"the key {shown(key)} appears twice")
        values[key] = reader.value()
    described = list(_read_tensors(reader, num_tensors))
    alignment = values.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20 or alignment % 8:
        raise ValueError(f"general.alignment is {shown(alignment)}; a multiple of 8 is needed")
    data_begin = -(-reader.at // alignment) * alignment
    tensors: dict[str, GgufTensor] = {}
    for name, tensor in described:
        if name in tensors:
            raise ValueError(f"the tensor {shown(name)} appears twice")
        tensors[name] = _placed(name, tensor, data_begin, alignment, len(mapped))
    return values, tensors


def _read_tensors(reader: _Reader, count: int) -> Iterator[tuple[str, GgufTensor]]:
    """Yields names, types and shapes. `begin` still counts from the start of the data section."""
    for _ in range(count):
        name = reader.string()
        num_dimensions = reader.scalar("<I")
        if num_dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"tensor {shown(name)} has {num_dimensions} dimensions")
        shape = tuple(reader.scalar("<Q") for _ in range(num_dimensions))[::-1]
        kind = reader.scalar("<I")
        dtype = _TYPES.get(kind, f"of ggml's type {kind}")
        yield name, GgufTensor(dtype, shape, reader.scalar("<Q"))


def _placed(
    name: str, tensor: GgufTensor, data_begin: int, alignment: int, file_bytes: int
) -> GgufTensor:
    """Returns the tensor with its offset in the file. Raises ValueError if it does not fit."""
    weights, item = _STORAGE.get(tensor.dtype, (1, np.dtype("V0")))
    begin = data_begin + tensor.begin
    if tensor.begin % alignment or any(size >= 2**48 for size in tensor.shape):
        raise ValueError(f"tensor {shown(name)} has an impossible offset or shape")
    columns = tensor.shape[-1] if tensor.shape else 1
    if columns % weights:
        raise ValueError(
            f"tensor {shown(name)} has {columns} columns, not a multiple of {weights}, the weights "
            f"in a {tensor.dtype} block"
        )
    if begin + prod(tensor.shape) // weights * item.itemsize > file_bytes:
        raise ValueError(f"truncated: tensor {shown(name)} ends past the end of the file")
    return GgufTensor(tensor.dtype, tensor.shape, begin)
