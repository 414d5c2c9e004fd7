"""Times prefill against the peak of exact products in the same run.

    python benchmarks/make_random_llama.py /tmp/llama-1g
    python benchmarks/prefill.py /tmp/llama-1g [--tokens 512]

The peak is that of exact products in registers by all threads: fused multiply-adds or AMX tiles.
It is measured before and after each prefill. Only products with weights are counted; attention,
norms and sums of blocks are not.
"""

import argparse
import json
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from specqd._native import Context, Rows, testing
from specqd.model.model import Machine, Model


def peak(machine: Machine) -> float:
    """Products per second of all threads."""
    seconds = testing.product_seconds(machine.pool, machine.isa, 15)
    return machine.pool.threads * testing.PEAK_PRODUCTS / median(seconds)


def products_of(model: Model, tokens: int) -> int:
    """Products with weights of a prefill that needs only the last token's logits."""
    head = model.config.vocab_size * model.config.hidden_size
    every = sum(matrix.weight.rows * matrix.weight.columns for matrix in model.weights.matrices)
    return tokens * (every - head) + head


def prefill_seconds(model: Model, tokens: list[int]) -> float:
    context = Context(model.cache.create())
    begun = perf_counter()
    model.forward([Rows(context, 0, tokens, 1)])
    seconds = perf_counter() - begun
    model.cache.release(context.slot)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--tokens", nargs="+", type=int, default=[32, 128, 512])
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    machine = Machine.choose(options.threads, options.isa)
    model = Model.open(options.model, machine=machine)
    print(machine)
    rng = np.random.default_rng(1)
    results = []
    for count in options.tokens:
        tokens = [int(token) for token in rng.integers(0, model.config.vocab_size, count)]
        products = products_of(model, count)
        prefill_seconds(model, tokens)
        rounds = []
        for _ in range(options.rounds):
            before = peak(machine)
            seconds = prefill_seconds(model, tokens)
            at_most = (before + peak(machine)) / 2
            rounds.append((products / seconds / at_most, count / seconds, at_most / 1e9))
        share, speed, giga = (median(values) for values in zip(*rounds, strict=True))
        shares = sorted(each[0] for each in rounds)
        print(
            f"{count:6} tokens {speed:8.1f} tokens/s  {share:.2f} of {giga:.0f} G products/s"
            f"   [{shares[0]:.2f} .. {shares[-1]:.2f}]",
            flush=True,
        )
        results.append({"tokens": count, "tokens_per_s": speed, "share": share, "peak": giga})
    print(json.dumps({"isa": machine.isa, "threads": machine.pool.threads, "results": results}))


if __name__ == "__main__":
    main()
