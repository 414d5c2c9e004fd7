"""Writes a random BF16 model for measurements, by default a Llama of 1.10 G parameters.

    python benchmarks/make_random_model.py OUT [--layers 16 ...] [--peaked]
    python benchmarks/make_random_model.py OUT --like qwen3.5-0.8b

Its text is noise. Its weights are Gaussian, nearly like those of real models; they are drawn and
written a few rows at a time to save memory.

Drafts of its own fp4 precision are seldom accepted. With `--peaked` they are accepted about as
often as those of a trained model: layers add little to a token's embedding, and each token has a
likely successor. Shapes and costs do not change.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from support.families import FAMILY_SHAPES
from support.random_models import (
    LARGEST_VOCABULARY,
    Shape,
    bf16_bits,
    draw_recurrent,
    make_config,
    safetensors_header,
    tensor_sizes,
    write_tokenizer,
)

# A tensor's name and size -> its BF16 bits, a few rows at a time.
Parts = Callable[[str, tuple[int, ...]], Iterator[NDArray[np.uint16]]]

SIZES = {"hidden": 2048, "layers": 16, "ffn": 8192, "heads": 32, "kv_heads": 8, "head_dim": 64}
SIZES |= {"vocab": 32000, "context": 4096}
_HYBRID = replace(
    FAMILY_SHAPES["qwen3_5_text"], kv_heads=2, head_dim=256, vocab=248320, context=8192,
    is_tied=True, is_peaked=False,
    extra={
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": 16, "linear_num_value_heads": 16, "full_attention_interval": 4,
    },
)  # fmt: skip
LIKE = {  # 1.5 and 8.4 GB
    "qwen3.5-0.8b": replace(_HYBRID, hidden=1024, layers=24, heads=8, ffn=3584),
    "qwen3.5-4b": replace(
        _HYBRID, hidden=2560, layers=32, heads=16, kv_heads=4, ffn=9216,
        extra={**_HYBRID.extra, "linear_num_value_heads": 32},
    ),
}  # fmt: skip
SIGMA = 0.02
CHUNK = 1 << 22  # weights drawn at a time

# For `--peaked`. With these values, 91 % of the fp4 drafts of the default shape are accepted at
# temperature 0 and 88 % at 0.8; of those of the shipped trained model, 95 % and 91 %.
PULL = 6.0  # logit of a token's successor, in about the standard deviation of the others
QUIET = 0.8  # standard deviation of all layers' output, over that of embeddings
GAIN = 3.0  # on logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    for name, default in SIZES.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--like", choices=LIKE, help="a hybrid's shape, in place of a Llama's")
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--peaked", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.peaked and (options.tied or options.like):
        parser.error("--peaked needs a Llama with a separate head: leave out --tied and --like")
    sizes = {name: getattr(options, name) for name in SIZES}
    shape = LIKE.get(options.like) or Shape("llama", is_tied=options.tied, **sizes)
    rng = np.random.Generator(np.random.SFC64(options.seed))
    peaks = Peaks(shape, options.seed) if options.peaked else None

    def parts(name: str, size: tuple[int, ...]) -> Iterator[NDArray[np.uint16]]:
        for first_row, weights in draw(rng, name, size):
            if peaks is not None:
                peaks.form(name, first_row, weights)
            yield bf16_bits(weights)

    write_model(options.out, shape, parts)


def write_model(directory: Path, shape: Shape, parts: Parts) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(make_config(shape), indent=1) + "\n")
    write_tokenizer(directory, min(shape.vocab, LARGEST_VOCABULARY))  # further ids are padding
    sizes = dict(tensor_sizes(shape))
    with (directory / "model.safetensors").open("wb") as file:
        file.write(safetensors_header(sizes))
        for name, size in sizes.items():
            for bits in parts(name, size):
                file.write(bits.tobytes())
    parameters = sum(int(np.prod(size)) for size in sizes.values())
    print(f"{directory}: {parameters / 1e9:.3f} G parameters")


def draw(
    rng: np.random.Generator, name: str, size: tuple[int, ...]
) -> Iterator[tuple[int, NDArray[np.float32]]]:
    """Yields a tensor in parts: the index of the first row, and [rows, columns]."""
    rows, columns = (size[0], math.prod(size[1:])) if len(size) > 1 else (1, *size)
    step = max(1, CHUNK // columns)
    for first_row in range(0, rows, step):
        chunk = (min(step, rows - first_row), columns)
        if (recurrent := draw_recurrent(rng, name, chunk)) is not None:
            yield first_row, recurrent
        elif name.endswith("norm.weight"):
            yield first_row, np.ones(chunk, np.float32)
        else:
            yield first_row, rng.standard_normal(chunk, np.float32) * np.float32(SIGMA)


class Peaks:
    """Gives each token a likely successor: see `--peaked` above."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self._shape = shape
        self._embedding = np.empty((shape.vocab, shape.hidden), np.float32)
        cycle = np.random.default_rng(seed).permutation(shape.vocab)
        self._predecessors = np.empty_like(cycle)
        self._predecessors[np.roll(cycle, -1)] = cycle

    def form(self, name: str, first_row: int, weights: NDArray[np.float32]) -> None:
        """Changes rows in place. Tensors must come in file order, embeddings first."""
        rows = slice(first_row, first_row + len(weights))
        if name == "model.embed_tokens.weight":
            weights /= np.float32(SIGMA)
            self._embedding[rows] = weights
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            weights *= np.float32(QUIET / math.sqrt(self._shape.layers))
        elif name == "model.norm.weight":
            weights *= np.float32(GAIN)
        elif name == "lm_head.weight":
            pull = np.float32(PULL / self._shape.hidden)
            weights += pull * self._embedding[self._predecessors[rows]]


if __name__ == "__main__":
    main()
