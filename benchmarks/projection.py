"""A projection: what drafts would bring, from measured costs and an assumed acceptance.

    python benchmarks/make_random_llama.py /tmp/llama-1g
    python benchmarks/projection.py /tmp/llama-1g

Costs are measured on weights of a real shape (random weights cost what trained ones do). Acceptance
is swept: with probability alpha each drafted token is confirmed, independently. It is a model, not
a measurement of any trained model of that size.
"""

import argparse
from pathlib import Path
from statistics import median
from time import perf_counter

from specqd import _native
from specqd.context import Rows
from specqd.model import Machine, Model
from specqd.sequence import Sequence

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
ALPHAS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.96, 0.98)


def row_costs(model: Model, repeats: int) -> dict[int, float]:
    """Seconds of a forward by rows, interleaved over the numbers of rows: medians."""
    text = Sequence([0] * 8, _native.Picker(), 8)
    context = model.context(text)
    context.begin(8)
    model.forward([Rows(context, 0, [0] * 8, 1)])
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(repeats):
        for rows in ROWS:
            begun = perf_counter()
            model.forward([Rows(context, 8, [0] * rows, rows)])
            times[rows].append(perf_counter() - begun)
    model.release(text)
    return {rows: median(seconds) for rows, seconds in times.items()}


def interpolated(costs: dict[int, float], rows: int) -> float:
    low = max(known for known in costs if known <= rows)
    high = min((known for known in costs if known >= rows), default=low)
    share = 0.0 if high == low else (rows - low) / (high - low)
    return costs[low] + share * (costs[high] - costs[low])


def best(alpha: float, draft: float, exact: dict[int, float]) -> tuple[float, int]:
    """The highest speed over plain decoding by any fixed length, and that length."""
    options = []
    for length in range(1, max(ROWS)):
        tokens = (1 - alpha ** (length + 1)) / (1 - alpha)
        seconds = length * draft + interpolated(exact, length + 1)
        options.append((tokens / seconds * exact[1], length))
    return max(options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    model = Model.open(options.model, machine=Machine.choose(options.threads, options.isa))
    exact, draft = (row_costs(each, options.repeats) for each in (model, model.as_draft()))
    print(f"{_native.cpu_model()}, {model.machine.pool.threads} threads, {model.machine.isa}")
    print("rows          " + "".join(f"{rows:8}" for rows in ROWS))
    print("exact, ms     " + "".join(f"{exact[rows] * 1e3:8.1f}" for rows in ROWS))
    print("draft, ms     " + "".join(f"{draft[rows] * 1e3:8.1f}" for rows in ROWS))
    print("acceptance    " + "".join(f"{alpha:8.2f}" for alpha in ALPHAS))
    results = [best(alpha, draft[1], exact) for alpha in ALPHAS]
    print("x plain       " + "".join(f"{speed:8.2f}" for speed, _ in results))
    print("drafted tokens" + "".join(f"{length:8}" for _, length in results))


if __name__ == "__main__":
    main()
