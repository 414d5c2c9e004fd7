"""EAGLE-3 heads: a head's tensors become a decoder of one layer over pairs.

Tensors show which parts a head has; its configuration says the rest. Knows no requests.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specqd import _native
from specqd.config import DecoderConfig
from specqd.config.heads import HeadConfig, read_head_config
from specqd.config.tensor_names import TensorNames
from specqd.errors import ConfigError, MachineError, TensorError, shown
from specqd.formats.fp4 import DraftFormat
from specqd.formats.safetensors import WEIGHTS, TensorDirectory, WeightSource
from specqd.model.cache_size import affordable_pages
from specqd.model.decoder_spec import decoder_spec
from specqd.model.dry_run import tensors_read
from specqd.model.identity import head_identity
from specqd.model.importance import LayerInputs, MeasuredInputs
from specqd.model.layers import LayerReader
from specqd.model.loader import Bits, Loader, Progress
from specqd.model.model import Model, Precision
from specqd.model.prompt_store import PromptStore

MAX_ROWS = 128  # of one forward; longer prompts take several
_LAYERS = ("midlayer.", "layers.0.")  # SpecForge's and AngelSlim's; NVIDIA's and speculators'
_TOKEN_MAPS = {"d2t", "t2d"}  # t2d follows from d2t
_NAMES = TensorNames(attention_norm=None)  # of the layer: attention reads normed pairs
_UNMEASURED = MeasuredInputs([LayerInputs()], per_layer=None, head=None)  # inputs count the same


class HeadInputs(Protocol):
    """The parts of a draft head: its layers, its files, the boundaries of the model above that it
    reads, and its token ids."""

    @property
    def layers(self) -> DecoderConfig: ...
    @property
    def tensors(self) -> WeightSource | None: ...
    @property
    def taps(self) -> tuple[int, ...]: ...
    @property
    def ids(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, slots=True)
class HeadFiles:
    """An EAGLE-3 head's tensors, checked against its configuration and the target."""

    config: HeadConfig
    tensors: TensorDirectory
    at: str  # the beginning of the names of the layer's tensors
    layers: DecoderConfig  # a model of its one layer alone
    target: DecoderConfig
    ids: tuple[int, ...]  # the target's ids of the head's tokens; empty: the same ids

    @classmethod
    def open(cls, directory: Path, target: DecoderConfig) -> "HeadFiles":
        """Raises ConfigError or TensorError unless the directory holds a head of this target."""
        config = read_head_config(directory, target)
        if not (directory / WEIGHTS).exists() and (directory / "pytorch_model.bin").exists():
            raise TensorError(
                f"{directory}: has only pytorch_model.bin, which can run code when it is read; "
                "use the head's repository with safetensors, often named -converted"
            )
        tensors = TensorDirectory.open(directory)
        at = _layer_at(tensors)
        layer = _layer_config(tensors, at, config, target)
        files = cls(config, tensors, at, layer, target, read_ids(tensors, target.vocab_size))
        refuse_unknown(tensors, lambda loader: _read(loader, files))
        return files

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.taps

    def has(self, module: str) -> bool:
        return f"{module}.weight" in self.tensors


def _layer_at(tensors: TensorDirectory) -> str:
    """The prefix of the layer's names. Raises TensorError unless this is an EAGLE-3 head."""
    if "mask_hidden" in tensors:
        raise wrong(tensors, "mask_hidden: heads that draft all depths at once (P-EAGLE)")
    layer = next((each for each in _LAYERS if f"{each}hidden_norm.weight" in tensors), None)
    if layer is None or "fc.weight" not in tensors:
        raise TensorError(
            f"{tensors.path}: has no fc.weight and hidden_norm.weight, so it is no EAGLE-3 head; "
            "EAGLE-1, Medusa and others are not supported"
        )
    for name in tensors:
        if name.startswith("layers.") and not name.startswith("layers.0."):
            raise wrong(tensors, f"{shown(name)}: heads of several layers")
    return layer


def _layer_config(
    tensors: TensorDirectory, at: str, config: HeadConfig, target: DecoderConfig
) -> DecoderConfig:
    """A model of the head's layer alone; the target's output head keeps its own scale and cap."""
    is_shared, gate = "lm_head.weight" not in tensors, f"{at}mlp.gate_proj.weight"
    hidden, inner = (
        width_of(tensors, len(config.taps), target.hidden_size),
        shape_of(tensors, gate)[0],
    )
    _check_stated(config, "hidden_size", "fc.weight", hidden)
    _check_stated(config, "intermediate_size", gate, inner)
    return DecoderConfig(
        model_type="eagle3",
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=1,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=_head_dim(tensors, at, config),
        vocab_size=target.vocab_size if is_shared else shape_of(tensors, "lm_head.weight")[0],
        max_positions=target.max_positions,
        norm_eps=config.norm_eps,
        ropes=(config.rope,),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        windows=(0,),
        tied_embeddings=False,
        bos_token_id=None,
        eos_token_ids=(),
        qk_norm="one" if f"{at}self_attn.q_norm.weight" in tensors else None,
        logit_softcap=target.logit_softcap if is_shared else None,
        logit_scale=target.logit_scale if is_shared else 1.0,
        reads_pairs=True,
    )


def _check_stated(config: HeadConfig, name: str, tensor: str, rows: int) -> None:
    """Raises ConfigError if config.json states another size than the rows of the tensor."""
    stated = getattr(config, name)
    if stated not in (None, rows):
        raise ConfigError(
            f"{config.path / 'config.json'}: {name} is {stated}, but {tensor} has {rows} rows; the "
            "configuration is not that of this head"
        )


def width_of(tensors: TensorDirectory, taps: int, target: int) -> int:
    """The head's hidden size, which may differ from the target's. Raises TensorError."""
    hidden, columns = shape_of(tensors, "fc.weight")
    if columns != taps * target:
        raise wrong(
            tensors,
            f"fc.weight has {columns} columns and reads {taps} residuals of the model's width, "
            f"{target}",
        )
    for name in () if hidden == target else ("embed_tokens.weight", "lm_head.weight"):
        if name not in tensors:
            raise wrong(
                tensors,
                f"{name} is missing, and the head's width {hidden} is not the model's {target}",
            )
    return hidden


def _head_dim(tensors: TensorDirectory, at: str, config: HeadConfig) -> int:
    queries, _ = shape_of(tensors, f"{at}self_attn.q_proj.weight")
    head_dim = config.head_dim or queries // config.num_heads
    if head_dim * config.num_heads != queries or head_dim % 2 or not 0 < head_dim <= 1024:
        raise wrong(tensors, f"{queries} rows of q_proj do not fit {config.num_heads} heads")
    return head_dim


def refuse_unknown(tensors: TensorDirectory, read: Callable[[Loader], object]) -> None:
    """Raises TensorError for a tensor that `read` does not read from a loader."""
    known = tensors_read(tensors, read) | _TOKEN_MAPS
    for name in tensors:
        if name not in known:
            raise wrong(tensors, f"tensor {shown(name)}, which no known head has")


def wrong(tensors: TensorDirectory, problem: str) -> TensorError:
    return TensorError(f"{tensors.path}: not supported: {problem}; use another head")


def shape_of(tensors: TensorDirectory, name: str) -> tuple[int, int]:
    """The numbers of rows and columns of a matrix. Raises TensorError if there is none."""
    view = tensors.get(name)
    if view is None or len(view.shape) != 2 or 0 in view.shape:
        raise TensorError(f"{tensors.path}: {name} is missing or no matrix; fetch the head again")
    return view.shape[0], view.shape[1]


def read_ids(tensors: TensorDirectory, vocabulary: int) -> tuple[int, ...]:
    """The target's ids of the head's tokens: i + d2t[i]. Raises TensorError."""
    rows = shape_of(tensors, "lm_head.weight")[0] if "lm_head.weight" in tensors else vocabulary
    view = tensors.get("d2t")
    if view is None:
        if rows != vocabulary:
            raise wrong(
                tensors,
                f"lm_head.weight has {rows} rows, the model has {vocabulary} tokens, and d2t is "
                "missing",
            )
        return ()
    if view.dtype not in ("I64", "I32") or view.shape != (rows,):
        raise wrong(
            tensors, f"d2t is {view.dtype} {list(view.shape)}, where I64 [{rows}] is expected"
        )
    offsets: NDArray[np.int64] = view.data.astype(np.int64)
    at = np.arange(rows)
    bad = np.flatnonzero((offsets < -at) | (offsets >= vocabulary - at))
    ids = np.clip(offsets, -at, vocabulary - 1 - at) + at
    if not bad.size:
        bad = np.flatnonzero(np.diff(ids) <= 0) + 1
    if bad.size:
        raise wrong(
            tensors,
            f"d2t[{bad[0]}] is {offsets[bad[0]]}; ids must ascend and be below {vocabulary}",
        )
    return () if rows == vocabulary else tuple(ids.tolist())


@dataclass(frozen=True, slots=True)
class HeadWeights:
    """The head's own weights; None where it uses the target's or has no such part."""

    fc: _native.PackedWeight
    features_norm: _native.Norm | None
    tap_norms: list[_native.Norm]
    embedding_norm: _native.Norm
    hidden_norm: _native.Norm
    layer: _native.LayerWeights
    final_norm: _native.Norm
    embedding: Bits | None
    output_head: _native.PackedWeight | None


def _read(loader: Loader, files: HeadFiles) -> HeadWeights:
    config, target, at, has = files.layers, files.target, files.at, files.has
    hidden, width, taps = config.hidden_size, target.hidden_size, len(files.taps)
    tap_norms, size = [f"fc_norm.{tap}" for tap in range(taps)], (target.vocab_size, hidden)
    has_each, own_head = any(map(has, tap_norms)), has("lm_head")
    return HeadWeights(
        fc=loader.linear("fc", (hidden, taps * width)),
        features_norm=loader.norm("input_norm", taps * width) if has("input_norm") else None,
        tap_norms=[loader.norm(name, width) for name in tap_norms] if has_each else [],
        embedding_norm=loader.norm(f"{at}input_layernorm", hidden),
        hidden_norm=loader.norm(f"{at}hidden_norm", hidden),
        layer=LayerReader(loader, config, _NAMES, _UNMEASURED).layer(0, at),
        final_norm=loader.norm("norm", hidden),
        embedding=loader.embedding("embed_tokens.weight", size) if has("embed_tokens") else None,
        output_head=loader.linear("lm_head", (config.vocab_size, hidden)) if own_head else None,
    )


def load_head(
    files: HeadFiles,
    above: Model,
    draft: DraftFormat | None = None,
    progress: Progress | None = None,
) -> _native.Decoder:
    """Packs the head, which reads the model above. Raises TensorError for bad weights."""
    machine, theirs = above.machine, above.weights
    draft = draft or DraftFormat.FP4
    loader = Loader(files.tensors, None, machine.pool, machine.isa, draft, progress)
    own = _read(loader, files)
    is_tied = own.embedding is None and theirs.embedding is None
    entry = _native.HeadEntry(
        fc=own.fc,
        features_norm=own.features_norm,
        tap_norms=own.tap_norms,
        embedding_norm=own.embedding_norm,
        hidden_norm=own.hidden_norm,
        embedding=theirs.head if is_tied else None,
        keeps_normed=files.config.keeps_normed,
        recycles_normed=files.config.recycles_normed,
        projection=None,
        hidden_first=False,
        blanks_first=False,
    )
    decoder = _native.Decoder(
        pool=machine.pool,
        isa=machine.isa,
        spec=decoder_spec(files.layers),
        layers=[own.layer],
        final_norm=own.final_norm,
        head=theirs.head if own.output_head is None else own.output_head,
        embedding=theirs.embedding if own.embedding is None else own.embedding.copy(),
        max_rows=MAX_ROWS,
        entry=entry,
    )
    loader.finish()
    return decoder


class Head(_native.HeadForward):
    """A draft head of a model, as levels use it: its weights are read in one precision."""

    def __init__(
        self,
        files: HeadInputs,
        decoder: _native.Decoder,
        above: Model,
        precision: Precision,
        promised_bytes: int = 0,
    ) -> None:
        """From now on, the model above logs the features that this head reads."""
        self.files, self.decoder, self.precision = files, decoder, precision
        self.cache = cache_below(above, decoder, promised_bytes)
        is_draft, taps, ids = precision is Precision.FP4, list(files.taps), list(files.ids)
        super().__init__(decoder, self.cache, is_draft, above, taps, ids)


class AnyHead(Protocol):
    """A draft head of any kind."""

    cache: _native.KvCache
    precision: Precision

    @property
    def files(self) -> HeadInputs: ...
    def keep_pages(self, store: object) -> None: ...


def keep_prompts(head: AnyHead, above: Model, draft: DraftFormat) -> None:
    """Keeps the published pages of a draft head from now on, if those of the model above are kept.

    draft: the format of the head's 4-bit weights.
    """
    store, files = above.prompt_store, head.files
    if store is not None:
        read_as, threads = f"{head.precision.value} {draft.value}", above.machine.pool.threads
        identity = head_identity(
            store.identity, files.layers, files.taps, read_as, files.tensors, threads
        )
        head.keep_pages(PromptStore(store.writer, head.cache, identity))


def cache_below(above: Model, decoder: _native.Decoder, promised_bytes: int) -> _native.KvCache:
    """A head's cache for the positions of the model above, within the memory that is left once that
    model has filled its own, and all models together `promised_bytes`. Raises MachineError if not
    even one text would fit."""
    cache, page = above.cache, _native.PAGE_POSITIONS
    promised = max(cache.total_pages * cache.page_bytes, promised_bytes)
    pages = affordable_pages(decoder, cache.total_pages, promised)
    needed = min(cache.total_pages, -(-above.max_positions // page))
    if pages < needed:
        gigabytes = needed * _native.KvCache(decoder, 1).page_bytes / 1e9
        raise MachineError(
            f"the keys and values of a draft head need {gigabytes:.1f} GB for a text of "
            f"{above.max_positions} positions, which are more than half of the memory that the "
            "caches of models leave; lower context or cache_positions, or draft without the head"
        )
    return _native.KvCache(decoder, pages)
