"""Packed weights as a safetensors file, whose tensors are planes that are mapped in place.

Owns the file's name, version and layout (docs/kernels.md). Does not trust the contents of a file.
Knows nothing of architectures: a matrix is named after its source tensors.
"""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.errors import TensorError, shown
from specqd.formats.fp4 import DraftFormat
from specqd.formats.safetensors import INDEX, PACKED_WEIGHTS, WEIGHTS, TensorDirectory

FORMAT, VERSION = "specqd-packed", "2"

# The planes in file order. The strictest alignment comes first, so that no plane needs a gap before
# it: safetensors allows none. Unpacked BF16 tensors follow.
_PLANES = {
    "codes": "U8",  # [tiles, 256], aligned to 64 bytes like the next two
    "residuals": "U8",  # [tiles, 512]
    "plain": "BF16",  # [tiles, 512]
    "scales": "U8",  # [tiles, 16], aligned to 16
    "scale_code": "U32",  # [2]: shift and base, aligned to 4
    "patch_starts": "U32",  # [tiles + 1]
    "patches": "U16",  # [patches]
}
_PER_TILE = {"codes": 256, "residuals": 512, "plain": 512, "scales": 16}
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class PackedFile:
    """A mapped file of packed weights."""

    tensors: TensorDirectory
    draft: DraftFormat
    calibration: str  # the text on which inputs were measured; none: norms alone were used

    @classmethod
    def open(cls, directory: Path) -> "PackedFile":
        """Maps the file in a directory and checks its header. Raises TensorError."""
        path = directory / PACKED_WEIGHTS
        tensors = TensorDirectory.of_file(path)
        metadata = tensors.metadata
        if metadata.get("format") != FORMAT:
            raise TensorError(
                f"{path}: is not a packed model (format {shown(metadata.get('format'))}); "
                "make one with specqd pack"
            )
        if metadata.get("version") != VERSION:
            raise TensorError(
                f"{path}: has version {shown(metadata.get('version'))} of the packed format and "
                f"this specqd reads {VERSION}; pack the model again"
            )
        drafts = {draft.value: draft for draft in DraftFormat}
        draft = drafts.get(metadata.get("draft_format", ""))
        if draft is None:
            raise TensorError(
                f"{path}: draft_format {shown(metadata.get('draft_format'))} is not known; "
                "pack the model again"
            )
        return cls(tensors, draft, metadata.get("calibration", "none"))

    def has(self, matrix: str) -> bool:
        return f"{matrix}.codes" in self.tensors

    def matrix(
        self,
        pool: _native.Pool,
        sources: Sequence[str],
        rows: Sequence[int],
        columns: int,
        *,
        interleaved: bool,
    ) -> _native.PackedWeight:
        """The matrix of the tensors `sources`, of `rows` rows each, mapped without a copy."""
        name = matrix_name(sources)
        planes = {plane: self._plane(name, plane) for plane in _PLANES}
        if planes["codes"] is None or planes["scales"] is None or planes["scale_code"] is None:
            raise self._misfit(name, "is missing")
        weight = _native.map_planes(
            pool,
            planes["codes"],
            planes["scales"],
            planes["scale_code"],
            planes["residuals"],
            planes["patch_starts"],
            planes["patches"],
            planes["plain"],
            source_rows=rows,
            columns=columns,
            interleaved=interleaved,
        )
        if isinstance(weight, str):
            raise self._misfit(name, weight)
        return weight

    def _plane(self, name: str, plane: str) -> NDArray[Any] | None:
        """A plane as a flat array; None if the file lacks it."""
        view = self.tensors.get(f"{name}.{plane}")
        if view is None:
            return None
        tile = _PER_TILE.get(plane)
        is_shaped = len(view.shape) == 1 if tile is None else view.shape[1:] == (tile,)
        if view.dtype != _PLANES[plane] or not is_shaped:
            raise self._misfit(
                name,
                f"its {plane} are {view.dtype} {list(view.shape)}, not {_PLANES[plane]} "
                f"[{'n' if tile is None else f'n, {tile}'}]",
            )
        return view.data.reshape(-1)

    def _misfit(self, name: str, problem: str) -> TensorError:
        return TensorError(
            f"{self.tensors.path}: packed matrix {shown(name)}: {problem}; "
            "the file does not belong to this config.json or is damaged, pack the model again"
        )


def matrix_name(sources: Sequence[str]) -> str:
    return "+".join(sources)


def is_packed(directory: Path) -> bool:
    """Whether a directory holds packed weights. Raises TensorError if it also holds plain ones."""
    if not (directory / PACKED_WEIGHTS).exists():
        return False
    for other in (WEIGHTS, INDEX):
        if (directory / other).exists():
            raise TensorError(
                f"{directory}: holds {PACKED_WEIGHTS} and {other}, which may differ; move one away"
            )
    return True


def write_packed(
    path: Path,
    matrices: Mapping[str, _native.PackedWeight],
    unpacked: Mapping[str, NDArray[Any]],
    draft: DraftFormat,
    calibration: str,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Writes packed matrices and unpacked tensors (BF16 or fp32) by name. Does not sync."""
    planes = {name: weight.planes() for name, weight in matrices.items()}
    tensors: dict[str, tuple[str, NDArray[Any]]] = {}
    for plane, dtype in _PLANES.items():
        for name, arrays in planes.items():
            if plane in arrays:
                tile = _PER_TILE.get(plane)
                array = arrays[plane] if tile is None else arrays[plane].reshape(-1, tile)
                tensors[f"{name}.{plane}"] = dtype, array
    for name, values in unpacked.items():
        tensors[name] = "F32" if values.dtype == np.float32 else "BF16", values
    header = _header(tensors, draft, calibration)
    everything = len(header) + sum(array.nbytes for _, array in tensors.values())
    contents = (
        np.ascontiguousarray(a).reshape(-1).view(np.uint8).data for _, a in tensors.values()
    )
    written = 0
    with path.open("xb") as file:
        for part in _in_parts(itertools.chain([memoryview(header)], contents)):
            written += file.write(part)
            if progress:
                progress(written, everything)


def _in_parts(contents: Iterable[memoryview]) -> Iterator[bytearray]:
    """Joins the contents and divides them into parts of 64 MiB.

    If the file system can, Linux keeps in huge pages what one write covers of them.
    """
    size, part = 1 << 26, bytearray()
    for content in contents:
        while content:
            room = size - len(part)
            part += content[:room]
            content = content[room:]
            if len(part) == size:
                yield part
                part = bytearray()
    if part:
        yield part


def _header(
    tensors: Mapping[str, tuple[str, NDArray[Any]]], draft: DraftFormat, calibration: str
) -> bytes:
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "draft_format": draft.value,
        "calibration": calibration,
        "rounding": "nearest" if calibration == "none" else "error-feedback",
    }
    header: dict[str, Any] = {"__metadata__": metadata}
    begin = 0
    for name, (dtype, array) in tensors.items():
        end = begin + array.nbytes
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text
