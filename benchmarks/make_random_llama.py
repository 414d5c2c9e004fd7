"""Writes a random BF16 Llama, by default of 1.10 G parameters, to measure speed on.

    python benchmarks/make_random_llama.py OUT [--layers 16 ...]

Its text is noise; its weights are Gaussian, as those of real models nearly are. Weights are drawn
and written a few rows at a time, so it needs little memory.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from random_models import (
    LARGEST_VOCABULARY,
    Shape,
    bf16_bits,
    make_config,
    safetensors_header,
    tensor_sizes,
    write_tokenizer,
)

SIGMA = 0.02
CHUNK = 1 << 22  # weights drawn at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--ffn", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    shape = Shape(
        "llama",
        hidden=options.hidden,
        heads=options.heads,
        kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        ffn=options.ffn,
        layers=options.layers,
        vocab=options.vocab,
        context=options.context,
        is_tied=options.tied,
    )
    write_model(options.out, shape, options.seed)


def write_model(directory: Path, shape: Shape, seed: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(make_config(shape), indent=1) + "\n")
    write_tokenizer(directory, min(shape.vocab, LARGEST_VOCABULARY))  # more ids are padding
    sizes = dict(tensor_sizes(shape))
    rng = np.random.Generator(np.random.SFC64(seed))
    with (directory / "model.safetensors").open("wb") as file:
        file.write(safetensors_header(sizes))
        for name, size in sizes.items():
            for bits in draw(rng, name, size):
                file.write(bits.tobytes())
    parameters = sum(int(np.prod(size)) for size in sizes.values())
    print(f"{directory}: {parameters / 1e9:.3f} G parameters")


def draw(
    rng: np.random.Generator, name: str, size: tuple[int, ...]
) -> Iterator[NDArray[np.uint16]]:
    """BF16 bits of one tensor, in order, in chunks."""
    count = int(np.prod(size))
    for start in range(0, count, CHUNK):
        length = min(CHUNK, count - start)
        if name.endswith("norm.weight"):
            yield bf16_bits(np.ones(length, np.float32))
        else:
            yield bf16_bits(rng.standard_normal(length, np.float32) * np.float32(SIGMA))


if __name__ == "__main__":
    main()
