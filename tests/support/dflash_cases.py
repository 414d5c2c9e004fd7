"""Targets and block drafters of tests, forwarded by hand."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from specqd._native import Rows, Sequence
from specqd.model.dflash import BlockFiles, BlockHead, load_block_drafter
from specqd.model.model import Machine, Model, Precision
from specqd.sampling import SamplingParams as Sampling
from support.fp4 import bf16_values
from support.random_dflash import BlockShape, make_drafter
from support.random_heads import read_tensors
from support.random_models import ROPE_SCALINGS, Shape, change_model, make_model, read_model
from support.reference import rms_error, values
from support.reference_dflash import Drafter, drafter_of
from support.writers import bf16_bits

TARGET = Shape(layers=4, context=1024, is_tied=True)
SLIDING = ("sliding_attention", "full_attention", "sliding_attention")
SHAPES = {
    "small": BlockShape(),
    "7:1 heads of 40": BlockShape(heads=7, kv_heads=1, head_dim=40, ffn=76, block=16),
    "unsorted taps": BlockShape(taps=(4, 0, 2), layers=3, block=5),
    "one tap, two rows": BlockShape(taps=(2,), layers=1, block=2),
    "biases": BlockShape(has_biases=True, has_qk_norm=False, heads=3, kv_heads=3, head_dim=24),
    "yarn": BlockShape(rope_scaling=ROPE_SCALINGS["yarn"], rope_theta=5e5),
    "windows": BlockShape(layers=3, layer_types=SLIDING, window=20, block=12),
    "windows without causality": BlockShape(
        layers=3, layer_types=SLIDING, window=20, block=12, is_causal=False
    ),
    "ids of its own": BlockShape(tokens=97, has_embedding=True, maker="speculators"),
    "width of its own": BlockShape(hidden=72, tokens=61, has_embedding=True),
    "dflash2": BlockShape(
        layers=3, block=9, convolution=(2, 16), selector=(24, 16), layer_types=SLIDING, window=20,
        is_causal=False,
    ),
    "convolutions": BlockShape(convolution=(3, 8)),
    "selector": BlockShape(selector=(40, 5), extra={"final_logit_softcapping": 4.0}),
    "scales": BlockShape(
        extra={
            "input_embedding_scale": 3.0, "output_multiplier": 0.5, "final_logit_softcapping": 4.0,
        }
    ),
}  # fmt: skip


@dataclass
class Case:
    """A target and its drafter."""

    model: Model
    head: BlockHead
    reference: Drafter

    @property
    def rounding(self) -> Drafter:
        """The reference with roundings of its own."""
        return replace(self.reference, rounded=lambda x: bf16_values(bf16_bits(x)))

    def features(self, tokens: list[int]) -> Any:
        """The features of all tokens, in the order of the drafter, [n, taps * hidden]."""
        taps = self.head.files.taps
        bits = self.model.features(tokens, sorted(taps))[:, [sorted(taps).index(t) for t in taps]]
        wide = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return wide.reshape(len(tokens), -1)

    def errs_no_more_than_roundings(
        self, found: Any, features: Any, rows: list[int], first: int = 0
    ) -> bool:
        """Whether the logits of a block, [rows - 1, tokens], err by less than twice as much as the
        reference does with roundings of its own. How much these change depends on the model and the
        text, so no fixed bound would do. `first`: the position of the first feature."""
        wanted = self.reference.block(features, rows, first=first)[1:]
        rounded = self.rounding.block(features, rows, first=first)[1:]
        return rms_error(found, wanted) < 2 * rms_error(rounded, wanted)

    def selected(
        self, logits: Any, features: Any, rows: list[int], path: list[int]
    ) -> tuple[Any, float]:
        """The scores that a selector gives the tokens of a block, [rows - 1, tokens], each row
        after the token of `path` before it, and twice the most by which the reference's own
        roundings change the difference of two candidates of a row: closer ones may be swapped."""
        before = [rows[0], *path[:-1]]

        def scores(reference: Drafter) -> Any:
            hidden = reference.hidden(features, rows)[1:]
            return np.stack(list(map(reference.selected, logits, hidden, before)))

        wanted, rounded = scores(self.reference), scores(self.rounding)
        errors = np.where(np.isfinite(wanted), rounded, np.nan) - wanted
        return wanted, 2 * (np.nanmax(errors, axis=1) - np.nanmin(errors, axis=1)).max()


def make_target(directory: Path, shape: Shape, seed: int) -> Path:
    """A model that mostly repeats its last token: its layers change the embedding little."""
    make_model(directory, shape, seed)

    def quieten(tensors: Any) -> None:
        for name, bits in tensors.items():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                bits -= ((bits & 0x7F80) > 0x400).astype(np.uint16) * np.uint16(0x300)  # / 64

    return change_model(directory, quieten)


def open_head(directory: Path, above: Model, precision: Precision = Precision.EXACT) -> BlockHead:
    files = BlockFiles.open(directory, above.config)
    return BlockHead(files, load_block_drafter(files, above), above, precision)


def open_case(directory: Path, shape: BlockShape, seed: int, **machine: Any) -> Case:
    target = directory / "target"
    if not target.exists():
        make_model(target, TARGET, seed)
    model = Model.open(target, machine=Machine.choose(2, **machine), cache_positions=8192)
    drafter = make_drafter(directory / "drafter", TARGET, shape, seed + 1)
    head = open_head(drafter, model)
    weights = values(read_model(target)[1])
    embedding = weights["model.embed_tokens.weight"]
    own = values(_floats(drafter))
    return Case(model, head, drafter_of(head.files.config, own, embedding, embedding))


def _floats(directory: Path) -> Any:
    return {n: bits for n, bits in read_tensors(directory).items() if bits.dtype == np.uint16}


def new_sequence(tokens: list[int]) -> Sequence:
    return Sequence(list(tokens), Sampling().sampler(0, 0), len(tokens))


def read(model: Model, sequence: Sequence, end: int | None = None) -> None:
    """The model forwards the tokens that it lacks, up to the last one."""
    context = model.context(sequence)
    end = len(sequence.tokens) - 1 if end is None else end
    model.forward([Rows(context, context.length, sequence.tokens[context.length : end], 0)])


def sample_block(head: BlockHead, sequence: Sequence, count: int) -> list[int]:
    """The tokens of a block that was just forwarded, each sampled after the one before."""
    path: list[int] = []
    for row in range(count - 1):
        tokens, _ = head.verify(row, [], sequence)
        sequence.guess(tokens)
        path += tokens
    sequence.forget_guesses(len(path))
    return path


def block(head: BlockHead, sequence: Sequence, count: int) -> Any:
    head.forward([head.block_rows(sequence, count)])
    return head.logits()
