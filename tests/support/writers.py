"""Writes safetensors files, well-formed or hostile, and JSON lines. Knows nothing of readers."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_DTYPES = {
    np.dtype("?"): "BOOL",
    np.dtype("u1"): "U8",
    np.dtype("i1"): "I8",
    np.dtype("<i4"): "I32",
    np.dtype("<i8"): "I64",
    np.dtype("<u2"): "BF16",  # raw bits: NumPy has no bfloat16
    np.dtype("<f2"): "F16",
    np.dtype("<f4"): "F32",
    np.dtype("<f8"): "F64",
}


def bf16_bits(values: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    """Returns the BF16 bits of finite values, rounded to nearest even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return (rounded >> 16).astype(np.uint16).reshape(np.shape(values))


def write_safetensors(
    path: Path,
    tensors: Mapping[str, NDArray[Any]],
    *,
    metadata: Mapping[str, str] | None = None,
    padding: int | None = None,
) -> None:
    """Writes `tensors` in order; uint16 arrays become BF16.

    `padding` spaces follow the header; None aligns the data to 8 bytes, as the library does.
    """
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in tensors.items():
        header[name] = entry(_DTYPES[array.dtype], array.shape, offset, offset + array.nbytes)
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8 if padding is None else padding)
    write_raw(path, text)
    with path.open("ab") as file:  # one array at a time: models of several GB are written too
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)


def write_raw(
    path: Path, header: bytes | Mapping[str, Any], data: bytes = b"", *, length: int | None = None
) -> None:
    """Writes any header, preceded by its length or by a wrong `length`."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = len(text) if length is None else length
    path.write_bytes(length.to_bytes(8, "little") + text + data)


def read_raw(path: Path) -> tuple[bytes, bytes]:
    """Returns the header's JSON and the data of a safetensors file."""
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    return content[8:start], content[start:]


def entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    """Returns a tensor's entry in the header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def write_shards(
    directory: Path, shards: Mapping[str, Mapping[str, NDArray[Any]]], **index_overrides: str
) -> None:
    """Writes shards and their index. `index_overrides` replaces the files of tensors."""
    placement = {}
    for file, tensors in shards.items():
        write_safetensors(directory / file, tensors)
        placement |= dict.fromkeys(tensors, file)
    placement |= index_overrides
    index = {"metadata": {"total_size": 0}, "weight_map": placement}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def write_lines(path: Path, entries: Iterable[object]) -> Path:
    """Writes a file with one JSON value per line."""
    path.write_text("".join(json.dumps(each) + "\n" for each in entries))
    return path
