"""Hugging Face tensor names -> the decoder's slots; packs each matrix once. Knows no tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config import DecoderConfig, ExpertsConfig
from specqd.errors import MachineError, TensorError
from specqd.mxfp4 import ScaleRule
from specqd.mxfp4_experts import Mxfp4Experts
from specqd.tensor_names import names_of
from specqd.tensors import TensorDirectory

Bits = NDArray[np.uint16]
Progress = Callable[[int, int], None]  # bytes of weights packed so far, and in all

# A packed weight takes at most 16 bits exactly plus 4.25 as a draft; most take 13 (design, 4).
_TYPICAL_BITS = 13.2
_PACKING_HEADROOM = 256 << 20


@dataclass(frozen=True, slots=True)
class Source:
    """Rows of a tensor that has `rows` of them: all, or those of `taken`, in its order."""

    name: str
    rows: int
    taken: NDArray[np.int64] | None = None

    def of(self, bits: Bits) -> Bits:
        """These rows of the tensor's bits [rows, columns]."""
        return bits if self.taken is None else bits[self.taken]


@dataclass(frozen=True, slots=True)
class PackedMatrix:
    """One packed matrix and what it was made of, stacked or interleaved by panels.

    `read_share` is the share of rows that read it: of an expert, as if all were as popular.
    """

    sources: tuple[Source, ...]
    weight: _native.PackedWeight
    read_share: float = 1.0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(source.name for source in self.sources))


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """All that a decoder is built from. `embedding` is None where the head is read for it."""

    layers: list[_native.LayerWeights]
    matrices: list[PackedMatrix]
    final_norm: _native.Norm
    head: _native.PackedWeight
    embedding: Bits | None
    parameters: int = 0  # in the file: weights, norms and biases


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
        self.names = names_of(config)
        self.matrices: list[PackedMatrix] = []
        self.sizes: dict[str, int] = {}  # of the tensors taken, in weights
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
        self.sizes[name] = bits.size
        return bits

    def pack(
        self,
        sources: Sequence[Source],
        columns: int,
        *,
        interleaved: bool = False,
        read_share: float = 1.0,
    ) -> _native.PackedWeight:
        """Packs the rows of tensors [rows, columns]."""
        views = [self._rows(source, columns) for source in sources]
        packed = _native.pack(self._pool, self._isa, views, interleaved, self._rule)
        if isinstance(packed, tuple):
            at, row, column = packed
            taken = sources[at].taken
            row = row if taken is None else int(taken[row])
            raise self._not_finite(sources[at].name, f"[{row}, {column}]")
        self.matrices.append(PackedMatrix(tuple(sources), packed, read_share))
        self.sizes |= {source.name: source.rows * columns for source in sources}
        self._packed_bytes += sum(view.nbytes for view in views)
        if self._progress:
            self._progress(self._packed_bytes, self._all_bytes)
        return packed

    def _rows(self, source: Source, columns: int) -> Bits:
        bits = self.tensors.bf16(source.name, (source.rows, columns))
        return np.ascontiguousarray(source.of(bits))

    def _not_finite(self, name: str, where: str) -> TensorError:
        return TensorError(
            f"{self.tensors.path}: {name}{where} is NaN or infinite; "
            "the file is damaged or its training diverged, use another copy"
        )

    def norm(self, name: str | None, length: int) -> _native.Norm | None:
        """A norm of the residual stream; layer norms have biases."""
        if name is None:
            return None
        bias = self.vector(f"{name}.bias", length) if self.config.norm == "layer" else None
        return _native.Norm(self.vector(f"{name}.weight", length), bias)

    def layer(self, index: int) -> _native.LayerWeights:
        c, names = self.config, self.names
        at = f"{names.layers}.{index}."

        def norm(name: str | None) -> _native.Norm | None:
            return self.norm(name and at + name, c.hidden_size)

        rope = c.ropes[index]
        return _native.LayerWeights(
            attention_norm=norm(names.attention_norm),
            attention_post_norm=norm(names.attention_post_norm),
            feed_forward_norm=norm(names.feed_forward_norm),
            feed_forward_post_norm=norm(names.feed_forward_post_norm),
            query_norm=self._head_norm(at + names.query_norm, c.num_heads),
            key_norm=self._head_norm(at + names.key_norm, c.num_kv_heads),
            query_key_value=self._query_key_value(at),
            output=self.pack(
                [Source(f"{at}{names.output}.weight", c.hidden_size)], c.num_heads * c.head_dim
            ),
            query_key_value_bias=self._query_key_value_bias(at) if c.qkv_bias else None,
            output_bias=self._bias(at + names.output, c.hidden_size, c.output_bias),
            sinks=self.vector(at + names.sinks, c.num_heads) if c.has_sinks else None,
            feed_forwards=self._feed_forwards(index, at),
            router=self._router(index, at),
            router_bias=self._router_bias(index, at),
            window=c.windows[index],
            rope=-1 if rope is None else c.distinct_ropes.index(rope),
        )

    def _bias(self, module: str, length: int, is_present: bool) -> Bits | None:
        return self.vector(f"{module}.bias", length) if is_present else None

    def _head_norm(self, module: str, heads: int) -> _native.Norm | None:
        dim = self.config.head_dim
        match self.config.qk_norm:
            case None:
                return None
            case "one":
                return _native.Norm(self.vector(f"{module}.weight", dim))
            case "row":
                return _native.Norm(self.vector(f"{module}.weight", heads * dim))
            case "each":
                each = [self.vector(f"{module}.norms.{head}.weight", dim) for head in range(heads)]
                return _native.Norm(np.concatenate(each))

    def _head_rows(self) -> list[int]:
        """Of queries, of keys and of values."""
        c = self.config
        return [c.num_heads * c.head_dim, *[c.num_kv_heads * c.head_dim] * 2]

    def _fused_order(self) -> NDArray[np.int64] | None:
        """Rows of a fused tensor as queries, keys, values, where it has all three of each head."""
        if not self.names.fused_by_head:
            return None
        c = self.config
        rows = np.arange(3 * c.num_heads * c.head_dim).reshape(c.num_heads, 3, c.head_dim)
        return rows.transpose(1, 0, 2).reshape(-1)

    def _query_key_value(self, at: str) -> _native.PackedWeight:
        names, rows = self.names.query_key_value, self._head_rows()
        if len(names) == 1:
            sources = [Source(f"{at}{names[0]}.weight", sum(rows), self._fused_order())]
        else:
            sources = [Source(f"{at}{n}.weight", r) for n, r in zip(names, rows, strict=True)]
        return self.pack(sources, self.config.hidden_size)

    def _query_key_value_bias(self, at: str) -> Bits:
        names, rows = self.names.query_key_value, self._head_rows()
        if len(names) > 1:
            biases = [self.vector(f"{at}{n}.bias", r) for n, r in zip(names, rows, strict=True)]
            return np.concatenate(biases)
        order = self._fused_order()
        bias = self.vector(f"{at}{names[0]}.bias", sum(rows))
        return bias if order is None else bias[order]

    def _has_experts(self, layer: int) -> bool:
        return self.config.experts is not None and self.config.experts.layers[layer]

    def _router(self, index: int, at: str) -> _native.PackedWeight | None:
        experts = self.config.experts
        if experts is None or not self._has_experts(index):
            return None
        source = Source(f"{at}{self.names.router}.weight", experts.count)
        return self.pack([source], self.config.hidden_size)

    def _router_bias(self, index: int, at: str) -> Bits | None:
        experts = self.config.experts
        if experts is None or not self._has_experts(index):
            return None
        return self._bias(at + self.names.router, experts.count, experts.has_router_bias)

    def _feed_forwards(self, index: int, at: str) -> list[_native.FeedForward]:
        names, experts = self.names, self.config.experts
        if experts is None or not self._has_experts(index):
            modules = [at + name for name in names.gate_up]
            return [self._feed_forward(modules, at + names.down, self.config.intermediate_size)]
        if experts.is_mxfp4:
            return self._mxfp4_feed_forwards(experts, f"{at}{names.experts}.")
        each = [f"{at}{names.experts}.{expert}." for expert in range(experts.count)]
        share = experts.per_token / experts.count
        return [
            self._feed_forward(
                [at_expert + name for name in names.expert_gate_up],
                at_expert + names.expert_down,
                experts.size,
                share,
            )
            for at_expert in each
        ]

    def _mxfp4_feed_forwards(self, experts: ExpertsConfig, at: str) -> list[_native.FeedForward]:
        """Weights as the file has them, in tile order."""
        names, hidden, size = self.names, self.config.hidden_size, experts.size
        stacks = {
            2: (at + names.expert_gate_up[0], 2 * size, hidden),  # gates and ups alternate
            1: (at + names.expert_down, hidden, size),
        }
        tensors = {
            parts: Mxfp4Experts(self.tensors, name, experts.count, rows, columns)
            for parts, (name, rows, columns) in stacks.items()
        }
        share, feed_forwards = experts.per_token / experts.count, []
        for expert in range(experts.count):
            gate_up, down = (
                self._take_mxfp4(stack, expert, parts, share) for parts, stack in tensors.items()
            )
            gate_bias, up_bias = tensors[2].biases(expert, 2)
            [down_bias] = tensors[1].biases(expert, 1)
            feed_forwards.append(
                _native.FeedForward(
                    gate_up=gate_up,
                    down=down,
                    gate_bias=gate_bias,
                    up_bias=up_bias,
                    down_bias=down_bias,
                )
            )
        for stack in tensors.values():
            self.sizes[stack.name] = experts.count * stack.rows * (stack.columns + 1)
        return feed_forwards

    def _take_mxfp4(
        self, stack: Mxfp4Experts, expert: int, parts: int, share: float
    ) -> _native.PackedWeight:
        sources = stack.parts(expert, parts)
        packed = _native.take_mxfp4(sources)
        if isinstance(packed, tuple):
            part, row, block = packed
            raise stack.wrong(
                f"the scale of [{expert}, {row * parts + part}, {block}] is out of BF16's range"
            )
        self.matrices.append(PackedMatrix((Source(stack.name, stack.rows),), packed, share))
        self._packed_bytes += sum(codes.nbytes + scales.nbytes for codes, scales in sources)
        if self._progress:
            self._progress(self._packed_bytes, self._all_bytes)
        return packed

    def _feed_forward(
        self, modules: Sequence[str], down: str, width: int, read_share: float = 1.0
    ) -> _native.FeedForward:
        """Of a gate and what it gates, in one tensor or two, or of one projection."""
        c = self.config
        if not c.is_gated or len(modules) == 2:
            sources = [Source(f"{module}.weight", width) for module in modules]
        else:
            rows = np.arange(2 * width)
            halves = (rows[:width], rows[width:])
            sources = [Source(f"{modules[0]}.weight", 2 * width, half) for half in halves]
        biases = [self._bias(module, width, c.mlp_bias) for module in modules]
        return _native.FeedForward(
            gate_up=self.pack(
                sources, c.hidden_size, interleaved=c.is_gated, read_share=read_share
            ),
            down=self.pack([Source(f"{down}.weight", c.hidden_size)], width, read_share=read_share),
            gate_bias=biases[0],
            up_bias=biases[1] if len(biases) == 2 else None,
            down_bias=self._bias(down, c.hidden_size, c.mlp_bias),
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
    names, hidden = loader.names, config.hidden_size
    input_name, output_name = f"{names.embedding}.weight", f"{names.head}.weight"
    embedding = tensors.bf16(input_name, (config.vocab_size, hidden))
    layers = [loader.layer(i) for i in range(config.num_layers)]
    final_norm = loader.norm(names.final_norm, hidden)
    assert final_norm is not None
    tied = config.tied_embeddings
    head = loader.pack([Source(input_name if tied else output_name, config.vocab_size)], hidden)
    return DecoderWeights(
        layers=layers,
        matrices=loader.matrices,
        final_norm=final_norm,
        head=head,
        embedding=None if tied else _finite_embedding(loader, input_name, embedding),
        parameters=sum(loader.sizes.values()) + (0 if tied else embedding.size),
    )


def _finite_embedding(loader: _Loader, name: str, embedding: Bits) -> Bits:
    """The mapped input embedding, checked a slice at a time: its rows are read where they lie."""
    for first in range(0, len(embedding), 4096):
        bad = np.argwhere((embedding[first : first + 4096] & 0x7F80) == 0x7F80)
        if bad.size:
            row, column = bad[0]
            raise loader._not_finite(name, f"[{first + row}, {column}]")
    return np.ascontiguousarray(embedding)


def _check_memory(tensors: TensorDirectory) -> None:
    weights = sum(view.data.size for view in tensors.values() if view.data.ndim == 2)
    taken = sum(view.data.nbytes for view in tensors.values() if view.dtype == "U8")
    needed = int(weights * _TYPICAL_BITS / 8) + taken + _PACKING_HEADROOM
    available = _native.usable_memory()
    if 0 <= available < needed:
        raise MachineError(
            f"{tensors.path}: the packed weights need about {needed / 1e9:.1f} GB of memory and "
            f"{available / 1e9:.1f} GB are available; close other programs or use a smaller model"
        )
