"""Hugging Face tensor names -> the decoder's slots; packs each matrix once, or maps those of a
packed model. Knows no tokens."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config import DecoderConfig
from specqd.errors import MachineError, TensorError
from specqd.gguf import is_gguf
from specqd.gguf_tensors import GgufTensors
from specqd.mxfp4 import ScaleRule
from specqd.packed import PackedFile, is_packed
from specqd.tensors import TensorDirectory, WeightSource, tell_rounding

Bits = NDArray[np.uint16]
Progress = Callable[[int, int], None]  # bytes of weights packed so far, and in all

# A packed weight takes at most 16 bits exactly plus 4.25 as a draft; most take 13 (design, 4).
_TYPICAL_BITS = 13.2
_PACKING_HEADROOM = 256 << 20


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One packed matrix and the tensors it was made of, stacked or interleaved by panels."""

    sources: tuple[str, ...]
    weight: _native.PackedWeight


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All that a decoder is built from. `embedding` is None where the head is read for it."""

    layers: list[_native.LayerWeights]
    matrices: list[PackedMatrix]
    unpacked: dict[str, Bits]  # norms, biases and an embedding of its own, by tensor
    final_norm: Bits
    head: _native.PackedWeight
    embedding: Bits | None
    rule: ScaleRule
    is_mapped: bool  # whether the matrices lie in a packed file
    tensors: WeightSource

    def check_unchanged(self) -> None:
        """Refuses to read on from files that changed; raises TensorError."""
        if self.is_mapped or self.embedding is not None:
            self.tensors.check_unchanged()


class Overall:
    """One progress over models that are packed one after the other, of so many bytes in all."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._total = total
        self._before = 0

    def __call__(self, done: int, total: int) -> None:
        self._progress(self._before + done, self._total)
        if done == total:
            self._before += total


class _Loader:
    """Takes tensors out of a directory by name, and packs them."""

    def __init__(
        self,
        tensors: WeightSource,
        planes: PackedFile | None,
        config: DecoderConfig,
        pool: _native.Pool,
        isa: str,
        rule: ScaleRule,
        progress: Progress | None,
    ) -> None:
        self.tensors = tensors
        self.config = config
        self.matrices: list[PackedMatrix] = []
        self.unpacked: dict[str, Bits] = {}
        self._planes = planes
        self._pool = pool
        self._isa = isa
        self._rule = 0 if rule is ScaleRule.FLOOR else 1
        self._progress = progress
        self._packed_bytes = 0
        self._all_bytes = _matrix_bytes(tensors)

    def vector(self, name: str, length: int) -> Bits:
        """A norm's weight or a bias, which must be finite: BF16 bits [length]."""
        bits = np.ascontiguousarray(self.tensors.bf16(name, (length,)))
        bad = np.flatnonzero((bits & 0x7F80) == 0x7F80)
        if bad.size:
            raise self._not_finite(name, f"[{bad[0]}]")
        self.unpacked[name] = bits
        return bits

    def pack(
        self, sources: dict[str, int], columns: int, *, interleaved: bool = False
    ) -> _native.PackedWeight:
        """Packs the tensors named in `sources` (name -> rows), each [rows, columns]; maps what was
        packed before."""
        if self._planes is not None:
            packed = self._planes.matrix(
                self._pool, list(sources), list(sources.values()), columns, interleaved=interleaved
            )
        else:
            packed = self._pack_tensors(sources, columns, interleaved)
        self.matrices.append(PackedMatrix(tuple(sources), packed))
        return packed

    def _pack_tensors(
        self, sources: dict[str, int], columns: int, interleaved: bool
    ) -> _native.PackedWeight:
        views = [self.tensors.bf16(name, (rows, columns)) for name, rows in sources.items()]
        packed = _native.pack(
            self._pool,
            self._isa,
            [np.ascontiguousarray(view) for view in views],
            interleaved,
            self._rule,
        )
        if isinstance(packed, tuple):
            source, row, column = packed
            raise self._not_finite(list(sources)[source], f"[{row}, {column}]")
        self._packed_bytes += sum(view.nbytes for view in views)
        if self._progress and self._packed_bytes < self._all_bytes:
            self._progress(self._packed_bytes, self._all_bytes)
        return packed

    def embedding(self, name: str, shape: tuple[int, int]) -> Bits:
        """The mapped input embedding, of which rows are read where they lie."""
        bits = np.ascontiguousarray(self.tensors.bf16(name, shape))
        if self._planes is None:
            bad = _native.find_not_finite(self._pool, bits)
            if bad is not None:
                raise self._not_finite(name, str(list(bad)))
        self.unpacked[name] = bits
        return bits

    def finish(self) -> None:
        """Says that all is packed, and gives back what packing left in the heap."""
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

    def layer(self, index: int) -> _native.LayerWeights:
        c = self.config
        name = f"model.layers.{index}."
        query, key_value = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        heads = {"q_proj": query, "k_proj": key_value, "v_proj": key_value}

        def bias(module: str, length: int, present: bool) -> Bits | None:
            return self.vector(f"{name}{module}.bias", length) if present else None

        def head_norm(module: str) -> Bits | None:
            return (
                self.vector(f"{name}self_attn.{module}.weight", c.head_dim) if c.qk_norm else None
            )

        qkv_biases = [bias(f"self_attn.{p}", n, c.qkv_bias) for p, n in heads.items()]
        return _native.LayerWeights(
            query_key_value=self.pack(
                {f"{name}self_attn.{p}.weight": n for p, n in heads.items()}, c.hidden_size
            ),
            output=self.pack({f"{name}self_attn.o_proj.weight": c.hidden_size}, query),
            gate_up=self.pack(
                {f"{name}mlp.{p}.weight": c.intermediate_size for p in ("gate_proj", "up_proj")},
                c.hidden_size,
                interleaved=True,
            ),
            down=self.pack({f"{name}mlp.down_proj.weight": c.hidden_size}, c.intermediate_size),
            attention_norm=self.vector(f"{name}input_layernorm.weight", c.hidden_size),
            feed_forward_norm=self.vector(f"{name}post_attention_layernorm.weight", c.hidden_size),
            window=c.windows[index],
            query_norm=head_norm("q_norm"),
            key_norm=head_norm("k_norm"),
            query_key_value_bias=(
                np.concatenate([b for b in qkv_biases if b is not None]) if c.qkv_bias else None
            ),
            output_bias=bias("self_attn.o_proj", c.hidden_size, c.output_bias),
            gate_bias=bias("mlp.gate_proj", c.intermediate_size, c.mlp_bias),
            up_bias=bias("mlp.up_proj", c.intermediate_size, c.mlp_bias),
            down_bias=bias("mlp.down_proj", c.hidden_size, c.mlp_bias),
        )


def load_weights(
    directory: Path,
    config: DecoderConfig,
    pool: _native.Pool,
    isa: str,
    *,
    rule: ScaleRule | None = None,
    progress: Progress | None = None,
) -> DecoderWeights:
    """Maps a directory's or GGUF file's weights and packs its matrices, unless they lie packed.

    `rule` is MSE by default; a packed file has its own. Raises TensorError for what is wrong with
    the files, and MachineError where the packed weights would not fit into memory, before anything
    is packed.
    """
    require_memory([directory])
    planes = PackedFile.open(directory) if is_packed(directory) else None
    tensors = _open(directory) if planes is None else planes.tensors
    if planes is not None and rule not in (None, planes.rule):
        raise TensorError(
            f"{tensors.path}: is packed by the rule {planes.rule.value}; pack the model again"
        )
    if planes is None:
        tell_rounding(tensors.path, (dtype for dtype, _ in tensors.matrices()))
    rule = (rule or ScaleRule.MSE) if planes is None else planes.rule
    loader = _Loader(tensors, planes, config, pool, isa, rule, progress)
    tied, size = config.tied_embeddings, (config.vocab_size, config.hidden_size)
    if planes is None:  # shapes are told before anything is packed
        tensors.bf16("model.embed_tokens.weight", size)
    layers = [loader.layer(i) for i in range(config.num_layers)]
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    weights = DecoderWeights(
        layers=layers,
        matrices=loader.matrices,
        unpacked=loader.unpacked,
        final_norm=loader.vector("model.norm.weight", config.hidden_size),
        head=loader.pack({head: config.vocab_size}, config.hidden_size),
        embedding=None if tied else loader.embedding("model.embed_tokens.weight", size),
        rule=rule,
        is_mapped=planes is not None,
        tensors=tensors,
    )
    loader.finish()
    return weights


def bytes_to_pack(directory: Path) -> int:
    """Bytes of the matrices that loading will pack; none of a packed model's."""
    return 0 if is_packed(directory) else _matrix_bytes(_open(directory))


def require_memory(directories: Iterable[Path]) -> None:
    """Refuses models whose packed weights would not fit into memory together: MachineError."""
    needed = {}
    for directory in directories:
        if weight_bytes := bytes_to_pack(directory):
            needed[directory] = int(weight_bytes / 2 * _TYPICAL_BITS / 8)
    available = _native.usable_memory()
    total = sum(needed.values()) + _PACKING_HEADROOM
    if needed and 0 <= available < total:
        raise MachineError(
            f"{' and '.join(map(str, needed))}: the packed weights need about {total / 1e9:.1f} GB "
            f"of memory and {available / 1e9:.1f} GB are available; close other programs or use "
            f"{'a smaller model' if len(needed) == 1 else 'smaller models'}"
        )


def _open(path: Path) -> WeightSource:
    return GgufTensors.open(path) if is_gguf(path) else TensorDirectory.open(path)


def _matrix_bytes(tensors: WeightSource) -> int:
    """As BF16."""
    return sum(2 * prod(shape) for _, shape in tensors.matrices())
