"""DFlash drafters: their tensors become a decoder whose context is made of the target's features.

Tensors show which parts a drafter has; its configuration says the rest. Knows no requests.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from specqd import _native
from specqd.config import DecoderConfig
from specqd.config.dflash import BlockConfig, read_block_config, states_mask
from specqd.config.heads import HeadConfig, read_head_config
from specqd.config.tensor_names import TensorNames
from specqd.errors import ConfigError, TensorError, shown
from specqd.formats.fp4 import DraftFormat
from specqd.formats.safetensors import TensorDirectory
from specqd.model.decoder_spec import decoder_spec
from specqd.model.heads import (
    MAX_ROWS,
    HeadFiles,
    cache_below,
    read_ids,
    refuse_unknown,
    shape_of,
    width_of,
    wrong,
)
from specqd.model.layers import LayerReader
from specqd.model.loader import Bits, Loader, Progress
from specqd.model.model import Model, Precision

_NAMES = TensorNames(layers="layers", final_norm="norm")
_OTHERS = {  # parts of tensors' names that other drafters have, and which drafters
    "markov_": "DSpark",
    "g_proj": "Laguna",
    "mask_embed": "drafters with an embedding of masks of their own",
    "domino": "Domino",
}


def is_block_drafter(directory: Path) -> bool:
    """Whether a directory holds a drafter of blocks. Directories that cannot be read do not."""
    try:
        tensors = TensorDirectory.open(directory)
    except TensorError:
        return False
    return "fc.weight" in tensors and "hidden_norm.weight" in tensors


def open_head(directory: Path, target: DecoderConfig) -> "HeadFiles | BlockFiles":
    """A trained head of any kind for that target. Raises ConfigError or TensorError."""
    if is_block_drafter(directory):
        return BlockFiles.open(directory, target)
    return HeadFiles.open(directory, target)


def read_head_description(directory: Path, target: DecoderConfig) -> BlockConfig | HeadConfig:
    """What config.json of a head says, without its tensors. Only block drafters have masks.

    Raises ConfigError.
    """
    if states_mask(directory):
        return read_block_config(directory, target)
    return read_head_config(directory, target)


@dataclass(frozen=True, slots=True)
class BlockFiles:
    """A drafter's tensors, checked against its configuration and the target."""

    config: BlockConfig
    tensors: TensorDirectory
    layers: DecoderConfig  # a model of the drafter's layers alone
    target: DecoderConfig
    ids: tuple[int, ...]  # the target's ids of the drafter's tokens; empty: the same ids

    @classmethod
    def open(cls, directory: Path, target: DecoderConfig) -> "BlockFiles":
        """Raises ConfigError or TensorError unless the directory holds a drafter of this target."""
        config = read_block_config(directory, target)
        tensors = TensorDirectory.open(directory)
        _refuse_others(tensors)
        ids = read_ids(tensors, target.vocab_size)
        if ids and config.selector is not None:
            raise wrong(tensors, "a selector of candidates and token ids of its own (d2t)")
        files = cls(config, tensors, _with_tensors(tensors, config, target), target, ids)
        refuse_unknown(tensors, lambda loader: _read(loader, files))
        return files

    @property
    def taps(self) -> tuple[int, ...]:
        return self.config.taps

    def has(self, module: str) -> bool:
        return f"{module}.weight" in self.tensors


def _refuse_others(tensors: TensorDirectory) -> None:
    for name in tensors:
        for part, drafters in _OTHERS.items():
            if part in name:
                raise wrong(tensors, f"{shown(name)}: {drafters}")


def _with_tensors(
    tensors: TensorDirectory, config: BlockConfig, target: DecoderConfig
) -> DecoderConfig:
    """The drafter's layers, with the parts that the tensors show."""
    width = width_of(tensors, len(config.taps), target.hidden_size)
    layers = config.layers
    if layers.hidden_size != width:
        raise ConfigError(
            f"{config.path / 'config.json'}: hidden_size is {layers.hidden_size}, but fc.weight "
            f"has {width} rows; the configuration is not that of this drafter"
        )
    attention = "layers.0.self_attn."
    vocabulary = layers.vocab_size
    if "lm_head.weight" in tensors:
        vocabulary = shape_of(tensors, "lm_head.weight")[0]
    return replace(
        layers,
        vocab_size=vocabulary,
        qkv_bias=f"{attention}q_proj.bias" in tensors,
        output_bias=f"{attention}o_proj.bias" in tensors,
        qk_norm="one" if f"{attention}q_norm.weight" in tensors else None,
    )


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """The drafter's own weights; None where it uses the target's."""

    fc: _native.PackedWeight
    context_norm: _native.Norm
    layers: list[_native.LayerWeights]
    final_norm: _native.Norm
    embedding: Bits | None
    output_head: _native.PackedWeight | None
    selector: _native.SelectorWeights | None


def _read(loader: Loader, files: BlockFiles) -> BlockWeights:
    c, target = files.layers, files.target
    hidden, features = c.hidden_size, len(files.taps) * target.hidden_size
    reader, has_embedding = LayerReader(loader, c, _NAMES), files.has("embed_tokens")
    size = (target.vocab_size, hidden)
    return BlockWeights(
        fc=loader.linear("fc", (hidden, features)),
        context_norm=loader.norm("hidden_norm", hidden),
        layers=[reader.layer(index) for index in range(c.num_layers)],
        final_norm=loader.norm("norm", hidden),
        embedding=loader.embedding("embed_tokens.weight", size) if has_embedding else None,
        output_head=loader.linear("lm_head", (c.vocab_size, hidden), reader.head_inputs())
        if files.has("lm_head")
        else None,
        selector=_read_selector(loader, files) if files.config.selector else None,
    )


def _read_selector(loader: Loader, files: BlockFiles) -> _native.SelectorWeights:
    config, at = files.config.selector, "candidate_selector."
    assert config is not None
    codebook = (files.layers.vocab_size, config.rank)
    return _native.SelectorWeights(
        projection=loader.linear(f"{at}hidden_projection", (config.rank, files.layers.hidden_size)),
        predecessors=loader.embedding(f"{at}predecessor_codebook", codebook).copy(),
        successors=loader.embedding(f"{at}successor_codebook", codebook).copy(),
        candidates=config.candidates,
    )


def load_block_drafter(
    files: BlockFiles,
    above: Model,
    draft: DraftFormat | None = None,
    progress: Progress | None = None,
) -> _native.Decoder:
    """Packs the drafter, which reads the model above. Raises TensorError for bad weights."""
    machine, theirs = above.machine, above.weights
    draft = draft or DraftFormat.FP4
    loader = Loader(files.tensors, None, machine.pool, machine.isa, draft, progress)
    own = _read(loader, files)
    is_tied = own.embedding is None and theirs.embedding is None
    decoder = _native.Decoder(
        pool=machine.pool,
        isa=machine.isa,
        spec=decoder_spec(files.layers),
        layers=own.layers,
        final_norm=own.final_norm,
        head=theirs.head if own.output_head is None else own.output_head,
        embedding=theirs.embedding if own.embedding is None else own.embedding.copy(),
        max_rows=MAX_ROWS,
        context=_native.ContextEntry(
            fc=own.fc, norm=own.context_norm, embedding=theirs.head if is_tied else None
        ),
        selector=own.selector,
    )
    loader.finish()
    return decoder


class BlockHead(_native.BlockForward):
    """A drafter of blocks for a model: its weights are read in one precision."""

    def __init__(
        self,
        files: BlockFiles,
        decoder: _native.Decoder,
        above: Model,
        precision: Precision,
        promised_bytes: int = 0,
    ) -> None:
        """From now on, the model above logs the features that this drafter reads."""
        self.files, self.decoder, self.precision = files, decoder, precision
        self.cache, config = cache_below(above, decoder, promised_bytes), files.config
        is_draft, taps, ids = precision is Precision.FP4, list(files.taps), list(files.ids)
        super().__init__(decoder, self.cache, is_draft, above, taps, ids, config.block, config.mask)
