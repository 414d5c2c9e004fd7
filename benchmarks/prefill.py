"""Times prefill against the peak of exact products in the same run.

    python benchmarks/make_random_model.py /tmp/llama-1g
    python benchmarks/prefill.py /tmp/llama-1g [--tokens 512]

The peak is that of exact products in registers by all threads: fused multiply-adds or AMX tiles.
It is measured before and after each prefill. Only products with weights are counted; attention,
norms and sums of blocks are not.
"""

from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np
from harness import Report, parser

from specqd._native import Context, Rows, testing
from specqd.bench.rounds import interleaved, quotients
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
    arguments = parser(__doc__, rounds=5)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--tokens", nargs="+", type=int, default=[32, 128, 512])
    options = arguments.parse_args()
    machine = Machine.choose(options.threads, options.isa)
    model = Model.open(options.model, machine=machine)
    rng = np.random.default_rng(1)
    columns = [
        "prompt tokens",
        ("tokens/s", ".1f"),
        ("of the peak", ".2f"),
        ("G products/s", ".0f"),
    ]
    with Report(options, f"Prefill of {options.model.name}", machine, columns) as report:
        for count in options.tokens:
            tokens = rng.integers(0, model.config.vocab_size, count).tolist()
            prefill_seconds(model, tokens)
            done = interleaved(
                {"prefill": lambda _, tokens=tokens: prefill_seconds(model, tokens)},
                options.rounds,
                lambda: {"peak": peak(machine)},
            )
            seconds, peaks = done.runs["prefill"], done.gauged["peak"]
            shares = quotients((products_of(model, count) / s for s in seconds), peaks)
            report.row(count, [count / s for s in seconds], shares, [p / 1e9 for p in peaks])


if __name__ == "__main__":
    main()
