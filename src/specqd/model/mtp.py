"""MTP layers: the draft head in a checkpoint becomes a decoder of one layer over pairs.

The layer is of the model's family, so the reader of all layers reads it. Knows no requests.
"""

import re
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specqd import _native
from specqd.config import DecoderConfig
from specqd.config.families import MTP_TYPES, mtp_names_of, names_of
from specqd.config.mtp import MtpConfig
from specqd.config.tensor_names import MtpNames
from specqd.errors import SpecqdWarning, TensorError, shown
from specqd.formats.fp4 import DraftFormat
from specqd.formats.safetensors import TensorDirectory
from specqd.model.decoder_spec import decoder_spec
from specqd.model.dry_run import tensors_read
from specqd.model.heads import MAX_ROWS
from specqd.model.importance import Importance
from specqd.model.layers import LayerReader
from specqd.model.loader import Loader, Progress
from specqd.model.model import Model
from specqd.model.packed import PackedFile, is_packed
from specqd.model.weights import open_loader, open_weights


@dataclass(frozen=True, slots=True)
class MtpFiles:
    """The MTP layer of a model's files, checked against the model."""

    directory: Path
    layers: DecoderConfig  # a model of this layer alone
    mtp: MtpConfig
    names: MtpNames
    taps: tuple[int, ...]
    count: int  # MTP layers in the files; only the first drafts
    ids: tuple[int, ...] = ()  # empty: its tokens are the model's
    tensors: None = None  # those of the model's files

    @classmethod
    def open(cls, directory: Path, target: DecoderConfig) -> "MtpFiles":
        """Raises TensorError if there is no such layer, or if it is not the family's."""
        if target.mtp is None:
            raise TensorError(
                f"{directory}: models of type {target.model_type} have no MTP layer that is read "
                f"(known: {', '.join(MTP_TYPES)}); draft with fp4 or ngram"
            )
        names = mtp_names_of(target)
        layer = _layer_of(target, names)
        if not _holds(directory, names):
            again = "; if its model has one, pack it again" if is_packed(directory) else ""
            raise TensorError(
                f"{directory}: has no MTP layer (no tensor {names.projection}.weight); draft with "
                f"fp4 or ngram{again}"
            )
        count = 1 if is_packed(directory) else _check(directory, layer, target.mtp, names)
        return cls(directory, layer, target.mtp, names, (target.num_layers,), count)

    def warn_of_others(self) -> None:
        """Warns if the files hold MTP layers that are not used."""
        if self.count > 1:
            warnings.warn(
                f"{self.directory}: has {self.count} MTP layers; the first one drafts, and the "
                "others are not read",
                SpecqdWarning,
                stacklevel=2,
            )


def has_mtp(directory: Path, target: DecoderConfig) -> bool:
    """Whether the model's files hold an MTP layer that can draft; warns of one that cannot."""
    if target.mtp is None or not _holds(directory, mtp_names_of(target)):
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


def _layer_of(target: DecoderConfig, names: MtpNames) -> DecoderConfig:
    """A model of one layer, with the attention of the first layer that is not recurrent."""
    like = target.recurrent_layers.index(False)
    ropes, windows = (target.ropes[like],), (target.windows[like],)
    experts, fed = target.experts, range(target.num_layers)[names.feed_forward_of]
    if experts is not None:
        experts = replace(experts, layers=(True,)) if experts.layers[fed] else None
    return replace(
        target,
        num_layers=1,
        ropes=ropes,
        windows=windows,
        recurrent=None,
        experts=experts,
        intermediate_sizes=(target.feed_forward_size(fed),),
    )


def _check(directory: Path, layer: DecoderConfig, mtp: MtpConfig, names: MtpNames) -> int:
    """Checks all tensors of the first MTP layer; returns the number of layers."""
    tensors = open_weights(directory)
    known = tensors_read(tensors, lambda loader: _read(loader, layer, mtp, names))
    known |= {*names.repeated}
    assert isinstance(tensors, TensorDirectory)
    numbered, later = re.compile(rf"{re.escape(names.layers)}\.(\d+)\."), set()
    for name in tensors:
        found = numbered.match(name)
        if found and int(found[1]) != names.index:
            later |= {found[1]} if int(found[1]) > names.index else set()
        elif name.startswith(names.prefix) and name not in known:
            raise TensorError(
                f"{directory}: tensor {shown(name)}: no known MTP layer of {layer.model_type} has "
                "it; draft with fp4 or ngram"
            )
    return 1 + len(later)


@dataclass(frozen=True, slots=True)
class MtpWeights:
    """The layer's weights; `loader` holds all tensors that were read."""

    layer: _native.LayerWeights
    embedding_norm: _native.Norm
    hidden_norm: _native.Norm
    projection: _native.PackedWeight
    final_norm: _native.Norm
    loader: Loader


def _read(loader: Loader, layer: DecoderConfig, mtp: MtpConfig, names: MtpNames) -> MtpWeights:
    modules = replace(names_of(layer), final_norm=names.final_norm)
    read, hidden = LayerReader(loader, layer, modules), layer.hidden_size
    embedding_norm = loader.norm(names.embedding_norm, hidden)
    hidden_norm = loader.norm(names.hidden_norm, hidden)
    pair = [names.embedding_norm, names.hidden_norm]
    pair = pair[::-1] if mtp.hidden_first else pair
    squares = [read.squared_norm(name).squares for name in pair]
    importance = Importance(np.concatenate(squares))
    return MtpWeights(
        layer=read.layer(0, names.layer),
        embedding_norm=embedding_norm,
        hidden_norm=hidden_norm,
        projection=loader.linear(names.projection, (hidden, 2 * hidden), importance),
        final_norm=loader.norm(names.final_norm, hidden),
        loader=loader,
    )


def load_mtp_weights(
    files: MtpFiles,
    pool: _native.Pool,
    isa: str,
    draft: DraftFormat | None = None,
    progress: Progress | None = None,
) -> MtpWeights:
    """Packs the layer, or maps it from a packed file. Raises TensorError for bad weights."""
    loader = open_loader(files.directory, pool, isa, draft, progress)
    weights = _read(loader, files.layers, files.mtp, files.names)
    files.warn_of_others()
    return weights


def load_mtp(files: MtpFiles, above: Model, draft: DraftFormat | None = None) -> _native.Decoder:
    """The decoder of the model's MTP layer, which uses the model's embedding and output head."""
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
        spec=decoder_spec(files.layers),
        layers=[own.layer],
        final_norm=own.final_norm,
        head=theirs.head,
        embedding=theirs.embedding,
        max_rows=MAX_ROWS,
        entry=entry,
    )
