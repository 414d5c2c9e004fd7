"""Hugging Face tensor names -> the decoder's slots; packs each matrix once. Knows no tokens."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config import DecoderConfig
from specqd.errors import MachineError, TensorError
from specqd.mxfp4 import ScaleRule
from specqd.tensors import TensorDirectory

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
    final_norm: Bits
    head: _native.PackedWeight
    embedding: Bits | None


class _Loader:
    """Takes tensors out of a directory by name, and packs them."""

    def __init__(
        self,
        tensors: TensorDirectory,
        config: DecoderConfig,
        pool: _native.Pool,
        isa: str,
        rule: ScaleRule,
        progress: Progress | None,
    ) -> None:
        self.tensors = tensors
        self.config = config
        self.matrices: list[PackedMatrix] = []
        self._pool = pool
        self._isa = isa
        self._rule = 0 if rule is ScaleRule.FLOOR else 1
        self._progress = progress
        self._packed_bytes = 0
        self._all_bytes = sum(view.data.nbytes for view in tensors.values())

    def vector(self, name: str, length: int) -> Bits:
        """A norm's weight or a bias, which must be finite: BF16 bits [length]."""
        bits = np.ascontiguousarray(self.tensors.bf16(name, (length,)))
        bad = np.flatnonzero((bits & 0x7F80) == 0x7F80)
        if bad.size:
            raise self._not_finite(name, f"[{bad[0]}]")
        return bits

    def pack(
        self, sources: dict[str, int], columns: int, *, interleaved: bool = False
    ) -> _native.PackedWeight:
        """Packs the tensors named in `sources` (name -> rows), each [rows, columns]."""
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
        self.matrices.append(PackedMatrix(tuple(sources), packed))
        self._packed_bytes += sum(view.nbytes for view in views)
        if self._progress:
            self._progress(self._packed_bytes, self._all_bytes)
        return packed

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
    rule: ScaleRule = ScaleRule.MSE,
    progress: Progress | None = None,
) -> DecoderWeights:
    """Maps a safetensors directory and packs its matrices.

    Raises TensorError for what is wrong with the files, and MachineError where the packed weights
    would not fit into memory, before anything is packed.
    """
    tensors = TensorDirectory.open(directory)
    _check_memory(tensors)
    loader = _Loader(tensors, config, pool, isa, rule, progress)
    embedding = tensors.bf16("model.embed_tokens.weight", (config.vocab_size, config.hidden_size))
    layers = [loader.layer(i) for i in range(config.num_layers)]
    tied = config.tied_embeddings
    head = "model.embed_tokens.weight" if tied else "lm_head.weight"
    return DecoderWeights(
        layers=layers,
        matrices=loader.matrices,
        final_norm=loader.vector("model.norm.weight", config.hidden_size),
        head=loader.pack({head: config.vocab_size}, config.hidden_size),
        embedding=None if tied else _finite_embedding(loader, embedding),
    )


def _finite_embedding(loader: _Loader, embedding: Bits) -> Bits:
    """The mapped input embedding, checked a slice at a time: its rows are read where they lie."""
    for first in range(0, len(embedding), 4096):
        bad = np.argwhere((embedding[first : first + 4096] & 0x7F80) == 0x7F80)
        if bad.size:
            row, column = bad[0]
            raise loader._not_finite("model.embed_tokens.weight", f"[{first + row}, {column}]")
    return np.ascontiguousarray(embedding)


def _check_memory(tensors: TensorDirectory) -> None:
    weights = sum(view.data.size for view in tensors.values() if view.data.ndim == 2)
    needed = int(weights * _TYPICAL_BITS / 8) + _PACKING_HEADROOM
    available = _native.usable_memory()
    if 0 <= available < needed:
        raise MachineError(
            f"{tensors.path}: the packed weights need about {needed / 1e9:.1f} GB of memory and "
            f"{available / 1e9:.1f} GB are available; close other programs or use a smaller model"
        )
