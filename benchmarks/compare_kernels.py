"""Compares the products of two builds, by turns of a few milliseconds.

    python benchmarks/compare_kernels.py OLD/src NEW/src [--cache] [--isa NAME ...] [--rows 1 4 ...]

OLD/src and NEW/src hold a built package each; this process uses the installed one. Each runs in a
process of its own, and only one works at a time. Other programs and the clock slow a machine for
longer than a turn, so a pair of turns meets the same machine: the ratio of a pair is far steadier
than a speed. Speed also depends on the place of memory, so each sitting starts processes anew.

Prints new over old in weights per second: the median of all pairs with its 95 % interval, and the
least and greatest median of a sitting.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from itertools import product

import numpy as np
from kernels import CACHE_WEIGHTS

from specqd import _native
from specqd.bench.kernels import random_weights, weights_of
from specqd.bench.levels import Interval
from specqd.model.model import Machine

TURN_MS = {True: 2.0, False: 6.0}  # in the cache, from memory

Case = tuple[str, str, int]  # precision, instruction set, rows


def work(options: dict[str, float]) -> None:
    """Times a case for each line read, and prints weights per second."""
    machine = Machine.choose(int(options["threads"]))
    count = CACHE_WEIGHTS * machine.pool.threads
    if options["megabytes"] > 0:
        count = weights_of(options["megabytes"])
    packed = random_weights(count, int(options["inputs"]))
    rng = np.random.default_rng(2)
    rounds: dict[Case, int] = {}
    for line in sys.stdin:
        precision, isa, rows = json.loads(line)
        case = (precision, isa, rows)
        x = rng.normal(size=(rows, int(options["inputs"]))).astype(np.float32)
        timed = _native.kernels(isa).time_product
        if case not in rounds:
            once = min(timed(precision, packed, x, machine.pool, 5))
            rounds[case] = max(1, int(options["turn_ms"] / 1e3 / once))
        seconds = timed(precision, packed, x, machine.pool, 1, rounds[case])[0]
        print(packed.weights / seconds, flush=True)


class Build:
    """A process that times the products of one build when it is asked to."""

    def __init__(self, source: str, options: dict[str, float]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--work", json.dumps(options)],
            env=os.environ | {"PYTHONPATH": source},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def speed(self, case: Case) -> float:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(case) + "\n")
        return float(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def ratios(old: Build, new: Build, case: Case, pairs: int) -> list[float]:
    """New over old for each pair of turns; which is first alternates."""
    for build in (old, new):  # the first turn finds out how many rounds fill one
        build.speed(case)
    found = []
    for i in range(pairs):
        if i % 2:
            after, before = new.speed(case), old.speed(case)
        else:
            before, after = old.speed(case), new.speed(case)
        found.append(after / before)
    return found


def told(case: Case, sittings: list[list[float]]) -> str:
    every = [ratio for sitting in sittings for ratio in sitting]
    whole = Interval.of(every)
    medians = [statistics.median(sitting) for sitting in sittings]
    return (
        f"{case[0]:5} {case[1]:12} M={case[2]:<3} {whole.median:.3f}"
        f" [{whole.low:.3f}, {whole.high:.3f}]  sittings {min(medians):.3f} to {max(medians):.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--isa", nargs="+", default=["avx2"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    parser.add_argument("--precision", nargs="+", default=["fp4", "exact"])
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--cache", action="store_true", help="weights in the second-level cache")
    parser.add_argument("--megabytes", type=float, default=40, help="of fp4 weights in memory")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sittings", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=20, help="of turns in a sitting")
    args = parser.parse_args()
    options = {
        "megabytes": 0.0 if args.cache else args.megabytes,
        "inputs": args.inputs,
        "threads": args.threads,
        "turn_ms": TURN_MS[args.cache],
    }
    found: dict[Case, list[list[float]]] = defaultdict(list)
    for _ in range(args.sittings):
        old, new = Build(args.old, options), Build(args.new, options)
        for case in product(args.precision, args.isa, args.rows):
            found[case].append(ratios(old, new, case, args.pairs))
        old.close()
        new.close()
    for case, sittings in found.items():
        print(told(case, sittings))


if __name__ == "__main__":
    if sys.argv[1] == "--work":
        work(json.loads(sys.argv[2]))
    else:
        main()
