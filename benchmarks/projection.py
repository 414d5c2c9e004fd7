"""Projects the speed-up of drafts from measured costs and an assumed acceptance rate.

    python benchmarks/make_random_llama.py /tmp/llama-1g
    python benchmarks/projection.py /tmp/llama-1g [--small SMALL] [--shallow MODEL --layers N]

Costs are measured on weights of a real shape, because random weights cost what trained ones do.
With --shallow, a second model of the same shape with fewer layers, costs are extrapolated to
--layers layers: each layer costs the same, and both models share what does not repeat. Each drafted
token is accepted with probability alpha, independently. With --small, a small model in its fp4
precision drafts for the draft, which accepts it at the rates of --below. This is a model, not a
measurement of any trained model of that size.
"""

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from harness import Report, parser

from specqd._native import Context, Rows
from specqd.bench.rounds import LARGEST_READ, interleaved
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

    def seconds(rows: int, _: int) -> float:
        begun = perf_counter()
        model.forward([Rows(context, 8, list(range(rows)), rows)])
        return perf_counter() - begun

    done = interleaved({str(rows): partial(seconds, rows) for rows in ROWS}, repeats)
    model.cache.release(context.slot)
    return {int(rows): median(runs) for rows, runs in done.runs.items()}


def both_costs(path: Path, machine: Machine, repeats: int) -> tuple[int, Costs, Costs, int]:
    """Layers, costs in the exact and in the fp4 precision, and bytes of BF16 weights per token."""
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
    """The fewest seconds per token with any fixed length, and that length: 0 is plain decoding."""
    options = [(verify[1], 0)]
    for length in range(1, max(ROWS)):
        tokens = (1 - alpha ** (length + 1)) / (1 - alpha)
        seconds = length * draft + interpolated(verify, length + 1)
        options.append((seconds / tokens, length))
    return min(options)


def costs_of(options: argparse.Namespace, machine: Machine) -> tuple[Costs, Costs, int]:
    """Costs in the exact and the fp4 precision, and BF16 bytes; extrapolated with --shallow."""
    layers, exact, draft, bf16_bytes = both_costs(options.model, machine, options.repeats)
    if options.shallow:
        fewer, *costs, fewer_bytes = both_costs(options.shallow, machine, options.repeats)
        wanted = options.layers or layers
        exact = extended(costs[0], exact, (fewer, layers), wanted)
        draft = extended(costs[1], draft, (fewer, layers), wanted)
        bf16_bytes += (wanted - layers) * (bf16_bytes - fewer_bytes) // (layers - fewer)
    return exact, draft, bf16_bytes


def add_costs(report: Report, costs: Mapping[str, Costs]) -> None:
    for name, by_rows in costs.items():
        cells = ", ".join(f"{rows}: {1e3 * seconds:.2f}" for rows, seconds in by_rows.items())
        report.note(f"{name}, ms by rows: {cells}")


def limit_seconds(machine: Machine, bf16_bytes: int) -> float:
    """The seconds per token of a perfect reader of BF16 weights."""
    return bf16_bytes / (bandwidth_at(machine, LARGEST_READ) * 1e9)


def cost_options(doc: str | None) -> argparse.ArgumentParser:
    """A parser of the options by which costs of a model are measured."""
    made = parser(doc)
    made.add_argument("model", type=Path)
    made.add_argument("--shallow", type=Path)
    made.add_argument("--layers", type=int)
    made.add_argument("--repeats", type=int, default=7)
    return made


def main() -> None:
    arguments = cost_options(__doc__)
    arguments.add_argument("--small", type=Path)
    arguments.add_argument("--below", type=float, nargs="+", default=[0.6, 0.8])
    options = arguments.parse_args()
    machine = Machine.choose(options.threads, options.isa)
    small = None
    if options.small:
        small = both_costs(options.small, machine, options.repeats)[2][1]
    exact, draft, bf16_bytes = costs_of(options, machine)
    limit = limit_seconds(machine, bf16_bytes)
    columns = ["acceptance rate", *((f"{alpha:.2f}", ".2f") for alpha in ALPHAS)]

    def speeds(name: str, seconds: float) -> None:
        found = [best(alpha, seconds, exact) for alpha in ALPHAS]
        report.row(name, *(exact[1] / each for each, _ in found))
        report.note(f"{name}, drafted tokens: {', '.join(str(length) for _, length in found)}")

    title = f"Projected speed of {options.model.name} over plain decoding"
    with Report(options, title, machine, columns) as report:
        speeds("self-draft", draft[1])
        for beta in options.below if small is not None else []:
            seconds, length = best(beta, small, draft)
            speeds(f"small model below, accepted at {beta:.2f} (k = {length})", seconds)
        add_costs(report, {"exact": exact, "fp4": draft} | ({"small": {1: small}} if small else {}))
        report.note(f"plain is {limit / exact[1]:.2f} of the BF16 limit, {limit * 1e3:.1f} ms")
        report.note(
            "the paper, over BF16: " + ", ".join(f"{name} {x}" for name, x in PAPER.items())
        )


if __name__ == "__main__":
    main()
