"""Loads the weights of a decoder from a model's files. Knows no tokens."""

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from specqd import _native
from specqd.config import DecoderConfig
from specqd.config.families import names_of
from specqd.config.tensor_names import TensorNames, text_part
from specqd.errors import RoundingWarning, ShortMemoryError, TensorError
from specqd.formats.fp4 import DraftFormat
from specqd.formats.gguf import is_gguf
from specqd.formats.gguf_quants import BLOCK_FORMATS
from specqd.formats.gguf_tensors import GgufTensors
from specqd.formats.safetensors import PACKED_WEIGHTS, TensorDirectory, WeightSource
from specqd.model.importance import MeasuredInputs
from specqd.model.layers import LayerReader
from specqd.model.loader import (
    Bits,
    Loader,
    PackedMatrix,
    Progress,
    Source,
    matrix_bytes,
    mxfp4_bytes,
    rounded_bytes,
)
from specqd.model.packed import PackedFile, is_packed

# Bits of a packed weight: at most 20.25 (16 exact, 4.25 draft). In fp4, Gaussian weights take 12.7,
# SmolLM2-135M 12.8 and Gemma 3 270M 12.9.
_TYPICAL_BITS = 12.9
_PACKING_HEADROOM = 256 << 20


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A decoder's weights. `embedding` is None where the output head serves as the embedding.

    Without an output head in the files (`has_head`), the embedding serves as one, and logits mean
    nothing.
    """

    layers: list[_native.LayerWeights]
    matrices: list[PackedMatrix]
    unpacked: dict[str, NDArray[Any]]  # norms, biases and an untied embedding, by tensor
    final_norm: _native.Norm
    head: _native.PackedWeight
    has_head: bool
    embedding: Bits | None
    per_layer: _native.PerLayerEmbedding | None
    draft: DraftFormat
    calibration: str  # of a packed file; none: the importance of inputs follows from norms
    is_mapped: bool  # whether the matrices are mapped from a packed file
    tensors: WeightSource
    parameters: int  # in the file: weights, norms and biases

    def check_unchanged(self) -> None:
        """Raises TensorError if a file that forwards read in place has changed."""
        reads_files = self.embedding is not None or self.per_layer is not None
        if self.is_mapped or reads_files:
            self.tensors.check_unchanged()


class Overall:
    """One progress over several models that are packed in turn; `total` is in bytes."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._before = 0

    def __call__(self, done: int, total: int) -> None:
        self._progress(self._before + done, self._total)
        if done == total:
            self._before += total


def load_weights(
    directory: Path,
    config: DecoderConfig,
    pool: _native.Pool,
    isa: str,
    *,
    draft: DraftFormat | None = None,
    inputs: MeasuredInputs | None = None,
    progress: Progress | None = None,
) -> DecoderWeights:
    """Packs the matrices of a directory or GGUF file, or maps those of a packed model.

    `draft` is FP4 by default; a packed file states its own. `inputs` are the importances of inputs
    to the draft; by default, they follow from norms. Raises TensorError for bad files, and
    ShortMemoryError, before packing, if the packed weights would not fit into memory.
    """
    require_memory([directory], pool)
    loader = open_loader(directory, pool, isa, draft, progress)
    names, is_base = _names_in(loader, config)
    if not loader.is_mapped:
        _warn_of_rounding(loader.tensors)
    read = LayerReader(loader, config, names, inputs)
    input_name, output_name = f"{names.embedding}.weight", f"{names.head}.weight"
    tied, size = config.tied_embeddings, (config.vocab_size, config.hidden_size)
    if tied and not loader.has(input_name):
        input_name = output_name  # safetensors keeps one name of a shared tensor, the first
    has_head = tied or not is_base or loader.has(output_name)
    # The file decides, as in transformers.
    tied = (tied or is_base) and (input_name == output_name or not loader.has(output_name))
    if not loader.is_mapped:  # wrong shapes are reported before anything is packed
        loader.tensors.check(input_name, size)
    layers = [read.layer(i) for i in range(config.num_layers)]
    final_norm = read.norm(names.final_norm, config.hidden_size)
    assert final_norm is not None
    head = Source.whole(input_name if tied else output_name, config.vocab_size)
    weights = DecoderWeights(
        layers=layers,
        matrices=loader.matrices,
        unpacked=loader.unpacked,
        final_norm=final_norm,
        head=loader.pack([head], config.hidden_size, importance=read.head_inputs()),
        has_head=has_head,
        embedding=None if tied else loader.embedding(input_name, size),
        per_layer=read.per_layer_embedding(),
        draft=loader.draft,
        calibration=loader.calibration,
        is_mapped=loader.is_mapped,
        tensors=loader.tensors,
        parameters=sum(loader.sizes.values()),
    )
    loader.finish()
    return weights


def _names_in(loader: Loader, config: DecoderConfig) -> tuple[TensorNames, bool]:
    """The names of a model's tensors in its files, and whether these hold a base model."""
    names = names_of(config)
    base = names.of_base_model()
    is_base = base != names and loader.has(f"{base.embedding}.weight")
    return (base if is_base else names), is_base


def open_loader(
    directory: Path,
    pool: _native.Pool,
    isa: str,
    draft: DraftFormat | None,
    progress: Progress | None,
) -> Loader:
    """A loader over packed files, which state their format, or over files to be packed."""
    planes = open_packed(directory, draft)
    if planes is None:
        tensors = open_weights(directory)
        return Loader(tensors, None, pool, isa, draft or DraftFormat.FP4, progress)
    return Loader(planes.tensors, planes, pool, isa, planes.draft, progress)


def open_packed(directory: Path, draft: DraftFormat | None) -> PackedFile | None:
    """The planes of a packed model; None: it is not packed. Raises TensorError if they have
    another format than `draft`."""
    if not is_packed(directory):
        return None
    planes = PackedFile.open(directory)
    if draft not in (None, planes.draft):
        raise TensorError(
            f"{planes.tensors.path}: its draft weights are packed as {planes.draft.value}; draft "
            f"with {planes.draft.value}, or pack the model as {draft.value}"
        )
    return planes


def _warn_of_rounding(tensors: WeightSource) -> None:
    """Warns if a model's matrices are quantised or wider than BF16."""
    dtypes = {dtype for _, dtype, _ in tensors.matrices()}
    quantised = [dtype for dtype in BLOCK_FORMATS if dtype in dtypes]
    wider = [dtype.replace("F", "FP") for dtype in ("F16", "F32") if dtype in dtypes]
    *others, last = [*quantised, *wider] or [""]
    if last:
        listed = f"{', '.join(others)} and {last}" if others else last
        warnings.warn(
            f"{tensors.path}: the weights are {listed}; they are "
            + ("dequantised and " if quantised else "")
            + "rounded to BF16 once"
            + ("; output is exact for those BF16 weights" if quantised else ""),
            RoundingWarning,
            stacklevel=2,
        )


def left_out(directory: Path, weights: DecoderWeights) -> list[str]:
    """The names in the files of a directory's tensors that are not among these weights."""
    if is_gguf(directory):
        return []
    tensors = TensorDirectory.open(directory)
    names = text_part(tensors) or {name: name for name in tensors}
    read = {name for matrix in weights.matrices for name in matrix.names} | {*weights.unpacked}
    experts = {name.partition("[")[0] for name in read if name.endswith("]")}  # in one tensor
    read |= {f"{name}{part}" for name in experts for part in ("", "_blocks", "_scales")}
    return sorted(name for name in tensors if names.get(name) not in read)


def bytes_to_pack(directory: Path) -> int:
    """Bytes of the matrices that loading packs; 0 for a packed model."""
    return 0 if is_packed(directory) else matrix_bytes(open_weights(directory))


def typical_bytes(directory: Path) -> int:
    """Bytes that a model's packed weights typically take, in memory or mapped from a file."""
    if is_packed(directory):
        return (directory / PACKED_WEIGHTS).stat().st_size
    return _typical_bytes(open_weights(directory))


def weights_to_keep(
    directories: Iterable[Path], pool: _native.Pool | None = None
) -> dict[Path, int]:
    """Bytes of memory that the models' packed weights typically take, with the copies that the
    pool's NUMA nodes need. Leaves out models whose weights are mapped."""
    copies = len(pool.nodes) if pool is not None and pool.replicates else 1
    copies_mapped = pool is not None and pool.copies_mapped
    return {
        each: copies * typical_bytes(each)
        for each in directories
        if copies_mapped or not is_packed(each)
    }


def require_memory(directories: Iterable[Path], pool: _native.Pool | None = None) -> None:
    """Raises ShortMemoryError if the models' packed weights would not fit into memory together."""
    needed = weights_to_keep(directories, pool)
    available = _native.usable_memory()
    total = sum(needed.values()) + _PACKING_HEADROOM
    if needed and 0 <= available < total:
        raise ShortMemoryError(
            f"{' and '.join(map(str, needed))}: the packed weights need about {total / 1e9:.1f} GB "
            f"of memory and {available / 1e9:.1f} GB are available; close other programs or use "
            f"{'a smaller model' if len(needed) == 1 else 'smaller models'}"
        )


def open_weights(path: Path) -> WeightSource:
    """The tensors of a text model, or of the text part of a model that also reads images."""
    if is_gguf(path):
        return GgufTensors.open(path)
    tensors = TensorDirectory.open(path)
    names = text_part(tensors)
    return tensors.renamed(names) if names else tensors


def _typical_bytes(tensors: WeightSource) -> int:
    """Typical bytes of memory that the matrices take after packing."""
    taken = mxfp4_bytes(tensors)
    packed = int((matrix_bytes(tensors) - taken) / 2 * _TYPICAL_BITS / 8)
    return taken + packed + rounded_bytes(tensors)
