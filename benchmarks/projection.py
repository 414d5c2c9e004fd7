"""A projection: what drafts would bring, from measured costs and an assumed acceptance.

    python benchmarks/make_random_llama.py /tmp/llama-1g
    python benchmarks/projection.py /tmp/llama-1g [--small SMALL] [--shallow MODEL --layers N]

Costs are measured on weights of a real shape (random weights cost what trained ones do). With
--shallow, a second model of the same shape but fewer layers, costs are extended to a model of
--layers layers: layers cost alike, and what does not repeat is in both. Acceptance is swept: with
probability alpha each drafted token is confirmed, independently. With --small, a small model in its
fp4 precision drafts for the draft, and is confirmed by it as often as --below says. It is a model,
not a measurement of any trained model of that size.
"""

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

from specqd._native import Context, Rows
from specqd.model.bandwidth import bandwidth_at
from specqd.model.model import Machine, Model

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
ALPHAS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.96, 0.98)
PAPER = {"MXFP4 draft": 2.0, "several levels": 2.72}  # up to, over BF16 (arXiv 2503.13565)

Costs = Mapping[int, float]  # seconds of a forward by rows


def row_costs(model: Model, repeats: int) -> Costs:
    """Interleaved over the numbers of rows: medians."""
    context = Context(model.cache.create())
    model.forward([Rows(context, 0, [0] * 8, 1)])
    times: dict[int, list[float]] = {rows: [] for rows in ROWS}
    for _ in range(repeats):
        for rows in ROWS:
            begun = perf_counter()
            model.forward([Rows(context, 8, list(range(rows)), rows)])
            times[rows].append(perf_counter() - begun)
    model.cache.release(context.slot)
    return {rows: median(seconds) for rows, seconds in times.items()}


def both_costs(path: Path, machine: Machine, repeats: int) -> tuple[int, Costs, Costs, int]:
    """Layers; costs of the exact and of the fp4 precision; bytes of BF16 that a token needs."""
    model = Model.open(path, machine=machine, cache_positions=256)
    exact, draft = (row_costs(each, repeats) for each in (model, model.as_draft()))
    return model.config.num_layers, exact, draft, model.bf16_bytes_per_forward


def extended(shallow: Costs, deep: Costs, layers: tuple[int, int], wanted: int) -> Costs:
    each = {rows: (deep[rows] - shallow[rows]) / (layers[1] - layers[0]) for rows in ROWS}
    return {rows: deep[rows] + (wanted - layers[1]) * each[rows] for rows in ROWS}


def interpolated(costs: Costs, rows: float) -> float:
    low = max(known for known in costs if known <= rows)
    high = min((known for known in costs if known >= rows), default=low)
    share = 0.0 if high == low else (rows - low) / (high - low)
    return costs[low] + share * (costs[high] - costs[low])


def best(alpha: float, draft: float, verify: Costs) -> tuple[float, int]:
    """The fewest seconds a token by any fixed length, and that length: 0 is plain decoding."""
    options = [(verify[1], 0)]
    for length in range(1, max(ROWS)):
        tokens = (1 - alpha ** (length + 1)) / (1 - alpha)
        seconds = length * draft + interpolated(verify, length + 1)
        options.append((seconds / tokens, length))
    return min(options)


def costs_of(options: argparse.Namespace, machine: Machine) -> tuple[Costs, Costs, int]:
    """The same of the options' model, extended to --layers where there is a --shallow one."""
    layers, exact, draft, bf16_bytes = both_costs(options.model, machine, options.repeats)
    if options.shallow:
        fewer, *costs, fewer_bytes = both_costs(options.shallow, machine, options.repeats)
        wanted = options.layers or layers
        exact = extended(costs[0], exact, (fewer, layers), wanted)
        draft = extended(costs[1], draft, (fewer, layers), wanted)
        bf16_bytes += (wanted - layers) * (bf16_bytes - fewer_bytes) // (layers - fewer)
    return exact, draft, bf16_bytes


def table(exact: Costs, draft: Costs, small: float | None, below: list[float]) -> list[str]:
    results = [best(alpha, draft[1], exact) for alpha in ALPHAS]
    lines = [
        "rows           " + "".join(f"{rows:8}" for rows in ROWS),
        "exact, ms      " + "".join(f"{exact[rows] * 1e3:8.1f}" for rows in ROWS),
        "draft, ms      " + "".join(f"{draft[rows] * 1e3:8.1f}" for rows in ROWS),
        "acceptance     " + "".join(f"{alpha:8.2f}" for alpha in ALPHAS),
        "x plain        " + "".join(f"{exact[1] / seconds:8.2f}" for seconds, _ in results),
        "drafted tokens " + "".join(f"{length:8}" for _, length in results),
    ]
    for beta in below if small is not None else []:
        assert small is not None
        seconds, length = best(beta, small, draft)
        speeds = [exact[1] / best(alpha, seconds, exact)[0] for alpha in ALPHAS]
        title = f"small at {beta:.2f}".ljust(15)
        lines.append(title + "".join(f"{speed:8.2f}" for speed in speeds))
        lines.append(f"  (its k = {length}; a drafted token takes {seconds * 1e3:.2f} ms)")
    return lines


def cost_options(description: str) -> argparse.ArgumentParser:
    """A parser of the options by which costs of a model are measured."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", type=Path)
    parser.add_argument("--shallow", type=Path)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--repeats", type=int, default=7)
    return parser


def main() -> None:
    parser = cost_options(__doc__.splitlines()[0])
    parser.add_argument("--small", type=Path)
    parser.add_argument("--below", type=float, action="append")
    options = parser.parse_args()
    machine = Machine.choose(options.threads, options.isa)
    small = None
    if options.small:
        small = both_costs(options.small, machine, options.repeats)[2][1]
    exact, draft, bf16_bytes = costs_of(options, machine)
    limit = bf16_bytes / (bandwidth_at(machine, 10**9) * 1e9)
    print(machine)
    print("\n".join(table(exact, draft, small, options.below or [0.6, 0.8])))
    print(f"plain is {limit / exact[1]:.2f} of the BF16 limit, {limit * 1e3:.1f} ms")
    print("paper, over BF16: " + ", ".join(f"{name} {x}" for name, x in PAPER.items()))


if __name__ == "__main__":
    main()
