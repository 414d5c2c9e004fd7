"""How fast the kernels read: weights/s, GB/s and the share of the bandwidth of the same run.

    python benchmarks/kernels.py [--isa NAME ...] [--rows 1 8 ...] [--threads N] [--megabytes MB]

Each measurement is interleaved with plain reading of as large an array, and the shares are medians
of such pairs, so that a busy machine slows both. "of BF16" is weights/s against bandwidth / 2
bytes, the limit of any reader of plain BF16.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np

from specqd import _native

INPUTS = 2048
PANEL, BLOCK = 16, 32
CACHE_WEIGHTS = 256 * 1024  # per thread: packed, they fit into the second-level cache


@dataclass(frozen=True, slots=True)
class Case:
    reading: str
    rows: int
    isa: str


def random_tiles(weights: int) -> np.ndarray:
    """About `weights` Gaussian BF16 weights as panels of tiles, [panels, tiles, 512]."""
    tiles = INPUTS // BLOCK
    panels = max(weights // (INPUTS * PANEL), 1)
    distinct = min(panels, 64)
    rng = np.random.default_rng(1)
    values = rng.normal(0, 0.02, (distinct, tiles, PANEL * BLOCK)).astype(np.float32)
    bits = ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)
    return np.ascontiguousarray(bits[np.arange(panels) % distinct])


def measure(packed: object, cases: list[Case], threads: int, rounds: int) -> Iterator[str]:
    """One line per case."""
    reader = _native.kernels(_native.kernel_names()[-1])
    rng = np.random.default_rng(2)
    for case in cases:
        table = _native.kernels(case.isa)
        x = rng.normal(size=(case.rows, INPUTS)).astype(np.float32)
        size = packed.bytes(case.reading)
        shares, rates = [], []
        for _ in range(5):
            read = min(reader.time_read(size, threads, 3, rounds))
            seconds = min(table.time_product(case.reading, packed, x, threads, 3, rounds))
            bandwidth = size // threads // 256 * 256 * threads / read
            shares.append(size / seconds / bandwidth)
            rates.append((packed.weights / seconds, bandwidth))
        weights, bandwidth = median(r[0] for r in rates), median(r[1] for r in rates)
        share = median(shares)
        of_bf16 = share * 2 * packed.weights / size
        yield (
            f"{case.reading:5} {case.isa:12} M={case.rows:<3} {weights / 1e9:7.2f} Gweights/s"
            f" {weights * size / packed.weights / 1e9:7.1f} GB/s of {bandwidth / 1e9:6.1f}"
            f"  share {share:5.2f}  of BF16 {of_bf16:5.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [n for n in _native.kernel_names() if n not in ("portable", "amx_emulated")]
    parser.add_argument("--isa", nargs="+", default=names)
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--reading", nargs="+", default=["draft", "exact"])
    parser.add_argument("--where", nargs="+", default=["dram", "cache"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=420)
    args = parser.parse_args()
    packer = _native.kernels(_native.kernel_names()[-1])
    cases = [Case(r, m, isa) for r in args.reading for isa in args.isa for m in args.rows]
    for where in args.where:
        weights = CACHE_WEIGHTS * args.threads
        for reading in args.reading:
            if where == "dram":
                weights = int(args.megabytes * 1e6 / (17 / 32 if reading == "draft" else 1.62))
            packed = packer.pack(random_tiles(weights))
            print(
                f"{where}, {reading}: {packed.bytes(reading) / 1e6:.1f} MB packed,",
                f"{args.threads} threads",
                flush=True,
            )
            rounds = 1 if where == "dram" else 200
            for line in measure(
                packed, [c for c in cases if c.reading == reading], args.threads, rounds
            ):
                print(line, flush=True)


if __name__ == "__main__":
    main()
