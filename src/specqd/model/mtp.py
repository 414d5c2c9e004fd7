"""MTP layers: a checkpoint's own head becomes a decoder of one layer over pairs.

The layer is one of the model's family, so its reader is that of all layers. Knows no requests.
"""

import re
import warnings
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specqd import _native
from specqd.config import DecoderConfig, ExpertsConfig
from specqd.config.mtp import MtpConfig
from specqd.errors import SpecqdWarning, TensorError, shown
from specqd.formats.fp4 import DraftFormat
from specqd.formats.safetensors import TensorDirectory
from specqd.model.decoder_spec import decoder_spec
from specqd.model.heads import MAX_ROWS
from specqd.model.importance import Importance
from specqd.model.layers import LayerReader
from specqd.model.loader import Loader, Progress, Source
from specqd.model.model import Model
from specqd.model.packed import PackedFile, is_packed
from specqd.model.tensor_names import MTP_NAMES, MtpNames, TensorNames, names_of
from specqd.model.weights import open_loader, open_weights

_Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class MtpFiles:
    """The MTP layer of a model's files, checked against the model."""

    directory: Path
    layer: DecoderConfig  # a model of this layer alone
    mtp: MtpConfig
    names: MtpNames
    taps: tuple[int, ...]
    count: int  # MTP layers in the files, of which the first drafts
    ids: tuple[int, ...] = ()  # its tokens are the model's

    @classmethod
    def open(cls, directory: Path, target: DecoderConfig) -> "MtpFiles":
        """Raises TensorError where there is no such layer, or another than the family's."""
        if target.mtp is None:
            raise TensorError(
                f"{directory}: models of type {target.model_type} have no MTP layer that is read "
                f"(known: {', '.join(MTP_NAMES)}); draft with fp4 or ngram"
            )
        names, layer = MTP_NAMES[target.model_type], _layer_of(target)
        if not _holds(directory, names):
            again = "; if its model has one, pack it again" if is_packed(directory) else ""
            raise TensorError(
                f"{directory}: has no MTP layer (no tensor {names.projection}.weight); draft with "
                f"fp4 or ngram{again}"
            )
        count = 1 if is_packed(directory) else _check(directory, layer, names)
        return cls(directory, layer, target.mtp, names, (target.num_layers,), count)

    def tell_count(self) -> None:
        """Warns where the files hold more MTP layers than are used."""
        if self.count > 1:
            warnings.warn(
                f"{self.directory}: has {self.count} MTP layers; the first one drafts, and the "
                "others are not read",
                SpecqdWarning,
                stacklevel=2,
            )


def has_mtp(directory: Path, target: DecoderConfig) -> bool:
    """Whether the model's files hold an MTP layer that drafts; warns of one that cannot."""
    if target.mtp is None or not _holds(directory, MTP_NAMES[target.model_type]):
        return False
    try:
        MtpFiles.open(directory, target)
    except TensorError as error:
        warnings.warn(f"the MTP layer is not used: {error}", SpecqdWarning, stacklevel=2)
        return False
    return True


def _holds(directory: Path, names: MtpNames) -> bool:
    name = f"{names.projection}.weight"
    if is_packed(directory):
        return PackedFile.open(directory).has(name)
    return name in open_weights(directory)


def _layer_of(target: DecoderConfig) -> DecoderConfig:
    """A model of one layer: the first one's feed forward behind the attention of the first layer
    that is not recurrent."""
    like = target.recurrent_layers.index(False)
    ropes, windows = (target.ropes[like],), (target.windows[like],)
    experts = target.experts
    if experts is not None:
        experts = replace(experts, layers=experts.layers[:1]) if experts.layers[0] else None
    return replace(
        target,
        num_layers=1,
        ropes=ropes,
        windows=windows,
        recurrent=None,
        experts=experts,
        intermediate_sizes=(target.feed_forward_size(0),),
    )


def _check(directory: Path, layer: DecoderConfig, names: MtpNames) -> int:
    """Checks all tensors of the first MTP layer; returns the number of layers."""
    tensors = open_weights(directory)
    wanted = _shapes(layer, names_of(layer), names, tensors)
    for name, shape in wanted.items():
        tensors.check(name, shape)
    assert isinstance(tensors, TensorDirectory)
    numbered, later = re.compile(rf"{re.escape(names.layers)}\.(\d+)\."), set()
    for name in tensors:
        found = numbered.match(name)
        if found and found[1] != "0":
            later.add(found[1])
        elif name.startswith(names.prefix) and name not in wanted:
            raise TensorError(
                f"{directory}: tensor {shown(name)}: no known MTP layer of {layer.model_type} has "
                "it; draft with fp4 or ngram"
            )
    return 1 + len(later)


def _shapes(
    layer: DecoderConfig, modules: TensorNames, names: MtpNames, tensors: Container[str]
) -> _Shapes:
    """The tensors of an MTP layer; experts may be stacked, or tensors of their own."""
    hidden, dim, at = layer.hidden_size, layer.head_dim, f"{names.layers}.0."
    queries, keys = layer.num_heads * dim, layer.num_kv_heads * dim
    rows = (queries * (1 + layer.gates_attention), keys, keys)
    shapes: _Shapes = {names.projection: (hidden, 2 * hidden)}
    norms = [names.embedding_norm, names.hidden_norm, names.final_norm]
    norms += [f"{at}{norm}" for norm in (modules.attention_norm, modules.feed_forward_norm)]
    shapes |= dict.fromkeys(norms, (hidden,))
    if layer.qk_norm is not None:
        shapes |= {at + modules.query_norm: (dim,), at + modules.key_norm: (dim,)}
    shapes[at + modules.output] = (hidden, queries)
    biases = {at + modules.output: hidden} if layer.output_bias else {}
    for name, count in zip(modules.query_key_value, rows, strict=True):
        shapes[at + name] = (count, hidden)
        if layer.qkv_bias:
            biases[at + name] = count
    stacks: _Shapes = {}
    if layer.experts is None:
        width = layer.feed_forward_size(0)
        shapes |= _feed_forward(at, modules.gate_up, modules.down, width, hidden)
    else:
        stacks = _stacks(layer.experts, modules, at, hidden)
        is_stacked = any(name in tensors for name in stacks)
        stacks = stacks if is_stacked else {}
        shapes |= _experts(layer, layer.experts, modules, at, is_stacked)
    found: _Shapes = {f"{name}.weight": shape for name, shape in shapes.items()}
    return found | {f"{name}.bias": (count,) for name, count in biases.items()} | stacks


def _feed_forward(at: str, gate_up: Sequence[str], down: str, width: int, hidden: int) -> _Shapes:
    shapes: _Shapes = {at + name: (width, hidden) for name in gate_up}
    return shapes | {at + down: (hidden, width)}


def _stacks(experts: ExpertsConfig, modules: TensorNames, at: str, hidden: int) -> _Shapes:
    """All experts as two tensors, where the family publishes such."""
    if modules.expert_stacks is None:
        return {}
    gate_up, down = (f"{at}{modules.experts}.{name}" for name in modules.expert_stacks)
    count, size = experts.count, experts.size
    return {gate_up: (count, 2 * size, hidden), down: (count, hidden, size)}


def _experts(
    layer: DecoderConfig, experts: ExpertsConfig, modules: TensorNames, at: str, is_stacked: bool
) -> _Shapes:
    """The router, the shared expert, and the others where they are not stacked."""
    hidden, width = layer.hidden_size, layer.feed_forward_size(0)
    shapes: _Shapes = {at + modules.router: (experts.count, hidden)}
    if modules.shared_gate is not None:
        shapes[at + modules.shared_gate] = (1, hidden)
    if experts.has_shared:
        shapes |= _feed_forward(at, modules.shared_gate_up, modules.shared_down, width, hidden)
    for expert in range(0 if is_stacked else experts.count):
        own = f"{at}{modules.experts}.{expert}."
        gate_up, down = modules.expert_gate_up, modules.expert_down
        shapes |= _feed_forward(own, gate_up, down, experts.size, hidden)
    return shapes


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """The layer's weights; `loader` knows all tensors that were read."""

    layer: _native.LayerWeights
    embedding_norm: _native.Norm
    hidden_norm: _native.Norm
    projection: _native.PackedWeight
    final_norm: _native.Norm
    loader: Loader


def load_mtp_weights(
    files: MtpFiles,
    pool: _native.Pool,
    isa: str,
    draft: DraftFormat | None = None,
    progress: Progress | None = None,
) -> MtpWeights:
    """Packs the layer, or maps it from a packed file. Raises TensorError for bad weights."""
    loader = open_loader(files.directory, pool, isa, draft, progress)
    config, names = files.layer, files.names
    modules = replace(names_of(config), layers=names.layers, final_norm=names.final_norm)
    read, hidden = LayerReader(loader, config, modules), config.hidden_size

    def norm(name: str) -> _native.Norm:
        return _native.Norm(loader.vector(f"{name}.weight", hidden))

    embedding_norm, hidden_norm = norm(names.embedding_norm), norm(names.hidden_norm)
    pair = [names.embedding_norm, names.hidden_norm]
    pair = pair[::-1] if files.mtp.hidden_first else pair
    weights = MtpWeights(
        layer=read.layer(0),
        embedding_norm=embedding_norm,
        hidden_norm=hidden_norm,
        projection=loader.pack(
            [Source.whole(f"{names.projection}.weight", hidden)],
            2 * hidden,
            importance=Importance(
                np.concatenate([read.squared_norm(name).squares for name in pair])
            ),
        ),
        final_norm=norm(names.final_norm),
        loader=loader,
    )
    files.tell_count()
    return weights


def load_mtp(files: MtpFiles, above: Model, draft: DraftFormat | None = None) -> _native.Decoder:
    """The decoder of the model's own MTP layer, over its embedding and output head."""
    machine, theirs, mtp = above.machine, above.weights, files.mtp
    own = load_mtp_weights(files, machine.pool, machine.isa, draft)
    entry = _native.HeadEntry(
        fc=None,
        features_norm=theirs.final_norm if mtp.reads_normed else None,
        tap_norms=[],
        embedding_norm=own.embedding_norm,
        hidden_norm=own.hidden_norm,
        embedding=theirs.head if theirs.embedding is None else None,
        keeps_normed=False,
        recycles_normed=mtp.recycles_normed,
        projection=own.projection,
        hidden_first=mtp.hidden_first,
        blanks_first=mtp.blanks_first,
    )
    return _native.Decoder(
        pool=machine.pool,
        isa=machine.isa,
        spec=decoder_spec(files.layer),
        layers=[own.layer],
        final_norm=own.final_norm,
        head=theirs.head,
        embedding=theirs.embedding,
        max_rows=MAX_ROWS,
        entry=entry,
    )
