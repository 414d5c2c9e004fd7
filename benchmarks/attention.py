"""Times attention at long contexts against a plain read of its keys and values.

    python benchmarks/attention.py [--positions 4096 32768] [--rows 1 8] [--megabytes MB]

Models of almost only attention forward a few rows after that many positions of random keys and
values, in enough layers to exceed any cache. The time of a forward after no positions is
subtracted. Each pair is measured beside a plain read of as many bytes. The share is the median over
rounds: 1 where keys and values are read once, at the bandwidth of the same run.
"""

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter

import numpy as np

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from specqd import _native
from specqd._native import Context, Rows, testing
from specqd.model.bandwidth import bandwidth_at
from specqd.model.model import Machine, Model
from support.random_models import Shape, make_model

WINDOW = 1024


@dataclass(frozen=True, slots=True)
class Heads:
    """Key-value heads, queries per head, and their size; a row may see only the last `window`."""

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


def seconds(model: Model, context: Context, start: int, rows: int, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        begun = perf_counter()
        model.forward([Rows(context, start, [1] * rows, 0)])
        times.append(perf_counter() - begun)
    return median(times)


def measure(heads: Heads, positions: int, options: argparse.Namespace) -> list[dict[str, object]]:
    machine = Machine.choose(options.threads, options.isa)
    seen = min(positions, heads.window or positions)
    layers = max(1, round(options.megabytes * 1e6 / (seen * heads.position_bytes())))
    model = open_model(heads, layers, positions, machine)
    context, empty = filled(model, positions), Context(model.cache.create())
    size = layers * seen * heads.position_bytes()
    results = []
    for rows in options.rows:
        testing.make_writable(model.cache, empty.slot, 0, rows)
        shares, costs = [], []
        for _ in range(options.rounds):
            bandwidth = bandwidth_at(machine, size, 3) * 1e9
            whole = seconds(model, context, positions, rows, 3)
            taken = whole - seconds(model, empty, 0, rows, 3)
            shares.append(size / taken / bandwidth)
            costs.append((bandwidth / 1e9, whole * 1e3, taken * 1e3))
        shares.sort()
        middle = [median(c[i] for c in costs) for i in range(3)]
        print(
            f"  {positions:6} positions x {layers:3} layers, M={rows:<3} {middle[2]:7.2f} ms of"
            f" {middle[1]:7.2f}  share of {middle[0]:5.1f} GB/s: {median(shares):5.2f}"
            f"   [{shares[0]:.2f} .. {shares[-1]:.2f}]",
            flush=True,
        )
        results.append({"positions": positions, "rows": rows, "share": median(shares)})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--positions", nargs="+", type=int, default=[4096, 32768])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--megabytes", type=int, default=128, help="of keys and values")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    results: dict[str, list[dict[str, object]]] = {}
    for name in options.case:
        heads = CASES[name]
        print(f"{name}: {heads.group} queries on each of {heads.kv_heads} heads of", end=" ")
        print(heads.head_dim, flush=True)
        results[name] = [r for n in options.positions for r in measure(heads, n, options)]
    print(json.dumps({"isa": options.isa, "results": results}))


if __name__ == "__main__":
    main()
