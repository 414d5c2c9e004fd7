"""Times attention at long contexts against a plain read of its keys and values.

    python benchmarks/attention.py [--positions 4096 32768] [--rows 1 8] [--megabytes MB]

Models of almost only attention forward a few rows after that many positions of random keys and
values, in enough layers to exceed any cache. The time of a forward after no positions is
subtracted. Plain reads of as many bytes surround each round. The share is 1 if keys and values are
read once, at the bandwidth of the same round.
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np
from harness import Report, parser

from specqd import _native
from specqd._native import Context, Rows, testing
from specqd.model.model import Machine, Model
from support.random_models import Shape, make_model

WINDOW = 1024


@dataclass(frozen=True, slots=True)
class Heads:
    """Key-value heads, queries per head, and their size. A row may see only the last `window`."""

    kv_heads: int
    group: int
    head_dim: int
    window: int = 0

    def position_bytes(self) -> int:
        """Bytes of keys and values of one position in one layer."""
        return 2 * 2 * self.kv_heads * self.head_dim


CASES = {
    "Llama-3.2-1B": Heads(8, 4, 64),
    "Llama-3.1-8B": Heads(8, 4, 128),
    "Qwen2.5-0.5B": Heads(2, 7, 64),
    "one head": Heads(1, 4, 128),
    "window 1024": Heads(8, 4, 64, WINDOW),
}


def open_model(heads: Heads, layers: int, positions: int, machine: Machine) -> Model:
    shape = Shape(
        "mistral" if heads.window else "llama",
        hidden=32,
        ffn=32,
        heads=heads.kv_heads * heads.group,
        kv_heads=heads.kv_heads,
        head_dim=heads.head_dim,
        layers=layers,
        context=positions + 64,
        window=heads.window,
    )
    with TemporaryDirectory() as directory:
        model = make_model(Path(directory), shape, seed=1)
        return Model.open(model, machine=machine, cache_positions=positions + 128)


def filled(model: Model, positions: int) -> Context:
    """A context of `positions` random keys and values."""
    cache, context = model.cache, Context(model.cache.create())
    if not testing.make_writable(cache, context.slot, 0, positions + 64):
        raise MemoryError("the cache is too small")
    words = np.random.default_rng(2).normal(0, 0.5, cache.page_bytes // 2).astype(np.float32)
    bits = (words.view(np.uint32) >> 16).astype(np.uint16)
    for page in range(positions // _native.PAGE_POSITIONS):
        testing.write_page_bits(cache, context.slot, page, bits)
    context.record(0, [0] * positions)
    return context


def seconds(model: Model, context: Context, start: int, rows: int, _: int) -> float:
    times = []
    for _ in range(3):
        begun = perf_counter()
        model.forward([Rows(context, start, [1] * rows, 0)])
        times.append(perf_counter() - begun)
    return median(times)


def measure(
    name: str, positions: int, machine: Machine, options: argparse.Namespace, report: Report
) -> None:
    heads = CASES[name]
    title = f"{name}: {heads.kv_heads} heads of {heads.head_dim}, {heads.group} queries each"
    seen = min(positions, heads.window or positions)
    layers = max(1, round(options.megabytes * 1e6 / (seen * heads.position_bytes())))
    model = open_model(heads, layers, positions, machine)
    context, empty = filled(model, positions), Context(model.cache.create())
    size = layers * seen * heads.position_bytes()
    for rows in options.rows:
        testing.make_writable(model.cache, empty.slot, 0, rows)
        arms = {
            "whole": partial(seconds, model, context, positions, rows),
            "rest": partial(seconds, model, empty, 0, rows),
        }
        done = report.rounds(arms, [size])
        taken = [a - b for a, b in zip(done.runs["whole"], done.runs["rest"], strict=True)]
        speeds = done.gauged[size]
        shares = [size / s / 1e9 / speed for s, speed in zip(taken, speeds, strict=True)]
        milliseconds = [1e3 * each for each in taken]
        report.row(title, positions, layers, rows, milliseconds, shares)


def main() -> None:
    arguments = parser(__doc__, rounds=5)
    arguments.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    arguments.add_argument("--positions", nargs="+", type=int, default=[4096, 32768])
    arguments.add_argument("--rows", nargs="+", type=int, default=[1, 8])
    arguments.add_argument("--megabytes", type=int, default=128, help="of keys and values")
    options = arguments.parse_args()
    machine = Machine.choose(options.threads, options.isa)
    columns = ["case", "positions", "layers", "rows", ("ms", ".2f"), ("share of bandwidth", ".2f")]
    with Report(options, "Attention to keys and values", machine, columns) as report:
        for name in options.case:
            for positions in options.positions:
                measure(name, positions, machine, options, report)


if __name__ == "__main__":
    main()
