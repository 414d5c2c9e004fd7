"""Names and sizes of a model's tensors: those that loading reads. That they are those of published
checkpoints is witnessed by tests/goldens and by parity with transformers."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from specqd.config import DecoderConfig
from specqd.config.families import names_of
from specqd.formats.fp4 import BLOCK
from specqd.model.dry_run import tensors_read
from specqd.model.layers import LayerReader
from specqd.model.loader import Loader

Sizes = Iterable[tuple[str, tuple[int, ...]]]


class Wanted:
    """Tensors that are not written yet. Notes the sizes of those that are read."""

    path = Path("wanted")

    def __init__(self) -> None:
        self.sizes: dict[str, tuple[int, ...]] = {}

    def __contains__(self, name: object) -> bool:
        return False

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        self.sizes[name] = shape


def sizes_of(config: DecoderConfig) -> Sizes:
    """Names and sizes of all tensors, the embedding first."""
    names, wanted = names_of(config), Wanted()
    vocabulary = config.vocab_size, config.hidden_size

    def read(loader: Loader) -> None:
        layers = _reader(loader, config)
        loader.embedding(f"{names.embedding}.weight", vocabulary)
        for index in range(config.num_layers):
            layers.layer(index)
        layers.per_layer_embedding()
        layers.norm(names.final_norm, config.hidden_size)
        if not config.tied_embeddings:
            loader.linear(names.head, vocabulary)

    tensors_read(wanted, read)
    if config.is_mxfp4:
        _store_as_mxfp4(wanted.sizes, f".{names.experts}.")
    return wanted.sizes.items()


def layer_sizes(config: DecoderConfig, index: int, at: str) -> Sizes:
    """Those of one layer, whose names begin with `at`."""
    wanted = Wanted()
    tensors_read(wanted, lambda loader: _reader(loader, config).layer(index, at))
    return wanted.sizes.items()


def _reader(loader: Loader, config: DecoderConfig) -> LayerReader:
    """Reads MXFP4 experts as stacks of matrices, because only files hold blocks."""
    names = names_of(config)
    if config.is_mxfp4 and config.experts is not None:
        names = replace(names, expert_stacks=(names.expert_gate_up[0], names.expert_down))
        config = replace(config, experts=replace(config.experts, is_mxfp4=False))
    return LayerReader(loader, config, names)


def _store_as_mxfp4(sizes: dict[str, tuple[int, ...]], experts: str) -> None:
    for name in [name for name in sizes if experts in name]:
        count, rows, columns = sizes.pop(name)
        scales = count, rows, columns // BLOCK
        sizes |= {f"{name}_blocks": (*scales, BLOCK // 2), f"{name}_scales": scales}
        sizes[f"{name}_bias"] = (count, rows)
