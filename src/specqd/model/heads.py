"""Trained heads: an EAGLE-3 head's tensors become a decoder of one layer over pairs.

Tensors decide what a head has; its configuration says the rest. Knows no requests.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config import DecoderConfig
from specqd.config.heads import HeadConfig, read_head_config
from specqd.errors import TensorError, shown
from specqd.formats.fp4 import DraftFormat
from specqd.formats.safetensors import WEIGHTS, TensorDirectory
from specqd.model.decoder_spec import rope_spec
from specqd.model.loader import Loader, Progress, Source
from specqd.model.model import Model, Precision

MAX_ROWS = 128  # of one forward; longer prompts take several
_LAYERS = ("midlayer.", "layers.0.")  # SpecForge's and AngelSlim's; NVIDIA's and speculators'
_QUERY_KEY_VALUE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_OUTPUT, _GATE_UP, _DOWN = "self_attn.o_proj", ("mlp.gate_proj", "mlp.up_proj"), "mlp.down_proj"
_LAYER: tuple[str, ...] = (*_QUERY_KEY_VALUE, _OUTPUT, *_GATE_UP, _DOWN)
_LAYER += ("input_layernorm", "hidden_norm", "post_attention_layernorm")
_LAYER += ("self_attn.q_norm", "self_attn.k_norm")
_OTHERS = {"fc.weight", "norm.weight", "lm_head.weight", "embed_tokens.weight", "input_norm.weight"}
_OTHERS |= {"d2t", "t2d"}  # t2d follows from d2t


class HeadInputs(Protocol):
    """What a head reads of the model above, and which of its tokens it has."""

    @property
    def taps(self) -> tuple[int, ...]: ...
    @property
    def ids(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """A head's tensors, checked against its configuration and the target."""

    config: HeadConfig
    tensors: TensorDirectory
    layer: str  # before the names of the layer's tensors
    hidden: int
    head_dim: int
    ffn: int
    ids: tuple[int, ...]  # the target's id of each of the head's tokens; none: the same

    @classmethod
    def open(cls, directory: Path, target: DecoderConfig) -> "HeadFiles":
        """Raises ConfigError or TensorError for what is not a head of this target."""
        config = read_head_config(directory, target)
        if not (directory / WEIGHTS).exists() and (directory / "pytorch_model.bin").exists():
            raise TensorError(
                f"{directory}: has only pytorch_model.bin, which can run code when it is read; "
                "use the head's repository with safetensors, often named -converted"
            )
        tensors = TensorDirectory.open(directory)
        layer = _layer_of(tensors, len(config.taps))
        hidden, columns = _shape(tensors, "fc.weight")
        taps = len(config.taps)
        if columns != taps * target.hidden_size:
            raise _wrong(
                tensors,
                f"fc.weight has {columns} columns and reads {taps} residuals of the model's width, "
                f"{target.hidden_size}",
            )
        queries, _ = _shape(tensors, f"{layer}self_attn.q_proj.weight")
        head_dim = config.head_dim or queries // config.num_heads
        if head_dim * config.num_heads != queries or head_dim % 2 or not 0 < head_dim <= 1024:
            raise _wrong(tensors, f"{queries} rows of q_proj do not fit {config.num_heads} heads")
        ffn, _ = _shape(tensors, f"{layer}mlp.gate_proj.weight")
        if hidden != target.hidden_size:
            for name in ("embed_tokens.weight", "lm_head.weight"):
                if name not in tensors:
                    raise _wrong(
                        tensors,
                        f"{name} is missing, and the head's width {hidden} is not the model's "
                        f"{target.hidden_size}",
                    )
        ids = _read_ids(tensors, target.vocab_size)
        return cls(config, tensors, layer, hidden, head_dim, ffn, ids)

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.taps

    @property
    def vocabulary(self) -> int | None:
        """Rows of the head's own output; None where the target's is used."""
        return _shape(self.tensors, "lm_head.weight")[0] if self.has("lm_head.weight") else None

    def has(self, name: str) -> bool:
        return name in self.tensors


def _layer_of(tensors: TensorDirectory, taps: int) -> str:
    """The prefix of the layer's names. Raises TensorError for what no EAGLE-3 head has."""
    if "mask_hidden" in tensors:
        raise _wrong(tensors, "mask_hidden: heads that draft all depths at once (P-EAGLE)")
    layer = next((each for each in _LAYERS if f"{each}hidden_norm.weight" in tensors), None)
    if layer is None or "fc.weight" not in tensors:
        raise TensorError(
            f"{tensors.path}: has no fc.weight and hidden_norm.weight, so it is no EAGLE-3 head; "
            "EAGLE-1, Medusa and others are not supported"
        )
    known = _OTHERS | {f"{layer}{name}.weight" for name in _LAYER}
    known |= {f"{name}.weight" for name in _tap_norms(taps)}
    for name in tensors:
        if name.startswith("layers.") and not name.startswith("layers.0."):
            raise _wrong(tensors, f"{shown(name)}: heads of several layers")
        if name not in known:
            raise _wrong(tensors, f"tensor {shown(name)}, which no known head has")
    return layer


def _tap_norms(taps: int) -> list[str]:
    return [f"fc_norm.{tap}" for tap in range(taps)]


def _wrong(tensors: TensorDirectory, problem: str) -> TensorError:
    return TensorError(f"{tensors.path}: not supported: {problem}; use another head")


def _shape(tensors: TensorDirectory, name: str) -> tuple[int, int]:
    """Rows and columns of a matrix, at least one of each."""
    view = tensors.get(name)
    if view is None or len(view.shape) != 2 or 0 in view.shape:
        raise TensorError(f"{tensors.path}: {name} is missing or no matrix; fetch the head again")
    return view.shape[0], view.shape[1]


def _read_ids(tensors: TensorDirectory, vocabulary: int) -> tuple[int, ...]:
    """The target's ids of the head's tokens: i + d2t[i]. Raises TensorError."""
    rows = _shape(tensors, "lm_head.weight")[0] if "lm_head.weight" in tensors else vocabulary
    view = tensors.get("d2t")
    if view is None:
        if rows != vocabulary:
            raise _wrong(
                tensors,
                f"lm_head.weight has {rows} rows, the model has {vocabulary} tokens, and d2t is "
                "missing",
            )
        return ()
    if view.dtype not in ("I64", "I32") or view.shape != (rows,):
        raise _wrong(
            tensors, f"d2t is {view.dtype} {list(view.shape)}, where I64 [{rows}] is expected"
        )
    offsets: NDArray[np.int64] = view.data.astype(np.int64)
    at = np.arange(rows)
    bad = np.flatnonzero((offsets < -at) | (offsets >= vocabulary - at))
    ids = np.clip(offsets, -at, vocabulary - 1 - at) + at
    if not bad.size:
        bad = np.flatnonzero(np.diff(ids) <= 0) + 1
    if bad.size:
        raise _wrong(
            tensors,
            f"d2t[{bad[0]}] is {offsets[bad[0]]}; ids must ascend and lie below {vocabulary}",
        )
    return () if rows == vocabulary else tuple(ids.tolist())


def load_head(
    files: HeadFiles,
    above: Model,
    draft: DraftFormat | None = None,
    progress: Progress | None = None,
) -> _native.Decoder:
    """Packs a head for the model above. Raises TensorError for bad weights."""
    return _Reader(files, above, draft or DraftFormat.FP4, progress).decoder()


class Head(_native.HeadForward):
    """A head below a model, as levels use it; its weights are read in one precision."""

    def __init__(
        self, files: HeadInputs, decoder: _native.Decoder, above: Model, precision: Precision
    ) -> None:
        """Lets the model above log what the head reads, beside what other heads read."""
        self.files = files
        self.precision = precision
        self.machine = above.machine
        self.decoder = decoder
        self.cache = _native.KvCache(decoder, above.cache.total_pages)
        taps, is_draft = list(files.taps), precision is Precision.FP4
        super().__init__(decoder, self.cache, is_draft, above, taps, list(files.ids))
        above.decoder.tap(sorted({*above.decoder.tapped, *taps}))
        above.log_features()

    @property
    def bytes_per_forward(self) -> int:
        """Bytes of weights that a forward of one row with features reads."""
        return self.decoder.weight_bytes(self.precision is Precision.FP4)

    def draft_for(self, target: Model) -> None:
        """Drafts for `target`: without ids of its own, from the rows that its text suggests."""
        self.decoder.draft_for(target.decoder)
        self.read_partial_head()


class _Reader:
    """Reads the tensors of one head."""

    def __init__(
        self, files: HeadFiles, above: Model, draft: DraftFormat, progress: Progress | None
    ) -> None:
        self._files = files
        self._above = above
        machine = above.machine
        self._loader = Loader(files.tensors, None, machine.pool, machine.isa, draft, progress)

    def decoder(self) -> _native.Decoder:
        files, theirs, machine = self._files, self._above.weights, self._above.machine
        entry, hidden = self._entry(), files.hidden
        layer, final_norm = self._layer(), self._loader.norm("norm", hidden)
        vocabulary, head = files.vocabulary, theirs.head
        embedding = theirs.embedding
        if files.has("embed_tokens.weight"):
            size = self._above.config.vocab_size, hidden
            embedding = self._loader.embedding("embed_tokens.weight", size).copy()
        if vocabulary is not None:
            head = self._loader.linear("lm_head", (vocabulary, hidden))
        decoder = _native.Decoder(
            pool=machine.pool,
            isa=machine.isa,
            spec=self._spec(vocabulary),
            layers=[layer],
            final_norm=final_norm,
            head=head,
            embedding=embedding,
            max_rows=MAX_ROWS,
            entry=entry,
        )
        self._loader.finish()
        return decoder

    def _spec(self, vocabulary: int | None) -> _native.DecoderSpec:
        """The head's shape and traits; the target's output keeps its scale and cap."""
        files, config, target = self._files, self._files.config, self._above.config
        is_own = vocabulary is not None
        return _native.DecoderSpec(
            hidden=files.hidden,
            vocabulary=target.vocab_size if vocabulary is None else vocabulary,
            attentions=[
                _native.AttentionShape(
                    heads=config.num_heads,
                    kv_heads=config.num_kv_heads,
                    head_dim=files.head_dim,
                    value_dim=files.head_dim,
                    scale=float(np.float32(1) / np.sqrt(np.float32(files.head_dim))),
                    cap=0.0,
                )
            ],
            ropes=[rope_spec(config.rope, files.head_dim)],
            norm_epsilon=config.norm_eps,
            norm="rms",
            norm_offset=0.0,
            norms_whole_rows=False,
            activation="silu",
            is_gated=True,
            is_parallel=False,
            logit_cap=0.0 if is_own else target.logit_softcap or 0.0,
            embedding_scale=1.0,
            residual_scale=1.0,
            logit_scale=1.0 if is_own else target.logit_scale,
            experts_per_token=0,
            shares_of_chosen=True,
            gates_attention=False,
            states=None,
        )

    def _entry(self) -> _native.HeadEntry:
        files, config, load = self._files, self._files.config, self._loader
        width, taps = self._above.config.hidden_size, len(config.taps)
        names, has_all = _tap_norms(taps), files.has("input_norm.weight")
        has_each = any(files.has(f"{name}.weight") for name in names)
        is_shared = self._above.weights.embedding is None and not files.has("embed_tokens.weight")
        return _native.HeadEntry(
            fc=load.linear("fc", (files.hidden, taps * width)),
            features_norm=load.norm("input_norm", taps * width) if has_all else None,
            tap_norms=[load.norm(name, width) for name in names] if has_each else [],
            embedding_norm=load.norm(f"{files.layer}input_layernorm", files.hidden),
            hidden_norm=load.norm(f"{files.layer}hidden_norm", files.hidden),
            embedding=self._above.weights.head if is_shared else None,
            keeps_normed=config.keeps_normed,
            recycles_normed=config.recycles_normed,
            projection=None,
            hidden_first=False,
            blanks_first=False,
        )

    def _layer(self) -> _native.LayerWeights:
        files, at, load = self._files, self._files.layer, self._loader
        config, hidden, dim = files.config, files.hidden, files.head_dim
        queries, keys = config.num_heads * dim, config.num_kv_heads * dim
        rows = zip(_QUERY_KEY_VALUE, (queries, keys, keys), strict=True)
        qkv = [Source.whole(f"{at}{name}.weight", count) for name, count in rows]
        gate_up = [Source.whole(f"{at}{name}.weight", files.ffn) for name in _GATE_UP]
        norms = [f"{at}self_attn.{name}" for name in ("q_norm", "k_norm")]
        query_norm, key_norm = (
            load.norm(name, dim) if files.has(f"{name}.weight") else None for name in norms
        )
        return _native.LayerWeights(
            attention_norm=None,
            attention_post_norm=None,
            feed_forward_norm=load.norm(f"{at}post_attention_layernorm", hidden),
            feed_forward_post_norm=None,
            query_norm=query_norm,
            key_norm=key_norm,
            value_norm=None,
            query_key_value=load.pack(qkv, 2 * hidden),
            output=load.linear(at + _OUTPUT, (hidden, queries)),
            query_key_value_bias=None,
            output_bias=None,
            sinks=None,
            feed_forwards=[
                _native.FeedForward(
                    gate_up=load.pack(gate_up, hidden, interleaved=True),
                    down=load.linear(at + _DOWN, (hidden, files.ffn)),
                    gate_bias=None,
                    up_bias=None,
                    down_bias=None,
                )
            ],
            mixture=None,
            window=0,
            rope=0,
            attention=0,
            kv_layer=-1,
            values_are_keys=False,
            per_layer=None,
            output_scale=1.0,
            convolution=None,
            convolution_bias=None,
            delta=None,
            latent=None,
        )
