"""Projects the speed-up of drafts from measured costs and assumed acceptance rates.

    python benchmarks/make_random_llama.py /tmp/llama-1g
    python benchmarks/projection.py /tmp/llama-1g [--small SMALL] [--shallow MODEL --layers N]
    python benchmarks/projection.py /tmp/llama-1g --head /tmp/llama-1g-head

Costs are measured on weights of a real shape, because random weights cost what trained ones do.
With --shallow, a second model of the same shape with fewer layers, costs are extrapolated to
--layers layers: each layer costs the same, and both models share what does not repeat. Each drafted
token is accepted with probability alpha, independently. With --small, a small model in its fp4
precision drafts for the draft, which accepts it at the rates of --below.

With --head, a trained draft head drafts for the model (column `head`) or for the model's fp4 draft
(the other columns, by acceptance rate of that draft). It has the shape of EAGLE-3 heads: a layer
like the model's, and at most 32,000 tokens. If it does not exist, it is written with random
weights. It drafts in 4 bits. Its forwards are measured as drafting makes them: pairs of the tokens
that the model has made since, then a pair for each guess.

Draft lengths are the best fixed ones: k tokens for the model, then those of the level below. This
is a model, not a measurement of any trained model of that size.
"""

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter

from harness import Report, parser

from specqd import _native
from specqd._native import Context, Rows
from specqd.bench.rounds import LARGEST_READ, interleaved
from specqd.config import read_config
from specqd.model.bandwidth import bandwidth_at
from specqd.model.heads import Head, HeadFiles, load_head
from specqd.model.model import Machine, Model, Precision
from specqd.sampling import SamplingParams
from support.random_heads import HeadShape, make_head
from support.random_models import Shape

ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16)
ALPHAS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.96, 0.98)
PAPER = {"MXFP4 draft": 2.0, "several levels": 2.72}  # up to, over BF16 (arXiv 2503.13565)

PAIRS = (1, 2, 4, 8)  # of a head's first forward
MOST_GUESSES = 7
MOST_TOKENS = 32_000  # of a head's own
PROMPT = 64
# By guess, each if the one before was accepted; the last rate holds for all later guesses.
HEADS: Mapping[str, Sequence[float]] = {
    "0.55": (0.55,),
    "0.73, 0.71, 0.68": (0.73, 0.71, 0.68),
    "0.80": (0.80,),
}
ABOVE_HEADS = (0.90, 0.94, 0.96)  # acceptance rates of fp4 drafts

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


def write_head(directory: Path, model: Path) -> None:
    config = read_config(model)
    layers = config.num_layers
    shape = HeadShape(
        taps=(1, layers // 2, layers - 1),
        heads=config.num_heads,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        ffn=config.intermediate_size,
        tokens=min(MOST_TOKENS, config.vocab_size),
    )
    make_head(directory, Shape(hidden=config.hidden_size, vocab=config.vocab_size), shape, 0)


def head_costs(model: Model, directory: Path, repeats: int) -> tuple[Costs, float]:
    """Median seconds of a forward by pairs with known features, and of a forward for one guess."""
    files = HeadFiles.open(directory, model.config)
    head = Head(files, load_head(files, model), model, Precision.FP4)
    head.draft_for(model)
    picker = SamplingParams().sampler(0, 0)
    sequence = _native.Sequence([7] * PROMPT, picker, PROMPT)
    first: dict[int, list[float]] = {pairs: [] for pairs in PAIRS}
    guesses = []

    def forward() -> float:
        """Forwards the pairs that the head lacks; returns the seconds."""
        context = head.context(sequence)
        begun = perf_counter()
        head.forward([Rows(context, context.length, sequence.tokens[context.length :], 1)])
        return perf_counter() - begun

    def read() -> None:
        """The model reads all tokens but the last."""
        context = model.context(sequence)
        new = sequence.tokens[context.length : -1]
        model.forward([Rows(context, context.length, new, 0)])

    read()
    forward()
    for _ in range(repeats):
        for pairs in PAIRS:
            sequence.tokens.extend(range(pairs))
            read()
            first[pairs].append(forward())
            sequence.guess([0])
            guesses.append(forward())
            sequence.forget_guesses(1)
    head.release(sequence)
    model.release(sequence)
    return {pairs: median(seconds) for pairs, seconds in first.items()}, median(guesses)


def best_head(
    rates: Sequence[float], verify: Costs, first: Costs, guess: float
) -> tuple[float, int]:
    """The fewest seconds per token with any fixed number of guesses, and that number."""
    options, reached, tokens = [(verify[1], 0)], 1.0, 1.0
    for count in range(1, MOST_GUESSES + 1):
        reached *= rates[min(count, len(rates)) - 1]
        tokens += reached
        drafting = interpolated(first, tokens) + (count - 1) * guess
        options.append(((drafting + interpolated(verify, count + 1)) / tokens, count))
    return min(options)


def project_drafts(
    options: argparse.Namespace, machine: Machine, costs: tuple[Costs, Costs], report: Report
) -> None:
    exact, draft = costs

    def row(name: str, seconds: float) -> None:
        found = [best(alpha, seconds, exact) for alpha in ALPHAS]
        report.row(name, *(exact[1] / each for each, _ in found))
        report.note(f"{name}: k = {', '.join(str(length) for _, length in found)}")

    row("self-draft", draft[1])
    if options.small:
        small = both_costs(options.small, machine, options.repeats)[2][1]
        report.note(f"the small model's fp4 precision: {1e3 * small:.2f} ms")
        for beta in options.below:
            seconds, length = best(beta, small, draft)
            row(f"small model below, accepted at {beta:.2f} (k = {length})", seconds)
    report.note("the paper, over BF16: " + ", ".join(f"{name} {x}" for name, x in PAPER.items()))


def project_head(
    options: argparse.Namespace, machine: Machine, costs: tuple[Costs, Costs], report: Report
) -> None:
    exact, draft = costs
    model = Model.open(options.model, machine=machine, cache_positions=1024)
    first, guess = head_costs(model, options.head, options.repeats)

    def cell(seconds: float, *lengths: int) -> str:
        return f"{exact[1] / seconds:.2f} (k={', '.join(map(str, lengths))})"

    alone = (best(alpha, draft[1], exact) for alpha in ABOVE_HEADS)
    report.row("fp4 alone", None, *(cell(*each) for each in alone))
    for name, rates in HEADS.items():
        below, few = best_head(rates, draft, first, guess)
        nested = (best(alpha, below, exact) for alpha in ABOVE_HEADS)
        head = cell(*best_head(rates, exact, first, guess))
        report.row(name, head, *(cell(*each, few) for each in nested))
    pairs = ", ".join(f"{count}: {1e3 * seconds:.2f}" for count, seconds in first.items())
    report.note(f"the head, ms by pairs: {pairs}; of a guess: {1e3 * guess:.2f}")


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--shallow", type=Path)
    arguments.add_argument("--layers", type=int)
    arguments.add_argument("--small", type=Path)
    arguments.add_argument("--below", type=float, nargs="+", default=[0.6, 0.8])
    arguments.add_argument("--head", type=Path)
    arguments.add_argument("--repeats", type=int, default=7, help="0: only write the head")
    options = arguments.parse_args()
    if options.head and not options.head.exists():
        write_head(options.head, options.model)
    if options.repeats == 0:
        return
    machine = Machine.choose(options.threads, options.isa)
    *costs, bf16_bytes = costs_of(options, machine)
    columns = ["acceptance rate", *((f"{alpha:.2f}", ".2f") for alpha in ALPHAS)]
    if options.head:
        columns = ["acceptance rate", "head", *(f"fp4 {alpha:.2f}" for alpha in ABOVE_HEADS)]
    title = f"Projected speed of {options.model.name} over plain decoding"
    with Report(options, title, machine, columns) as report:
        (project_head if options.head else project_drafts)(options, machine, costs, report)
        for name, by_rows in zip(("exact", "fp4"), costs, strict=True):
            cells = (f"{rows}: {1e3 * seconds:.2f}" for rows, seconds in by_rows.items())
            report.note(f"{name}, ms by rows: {', '.join(cells)}")
        bandwidth = bandwidth_at(machine, LARGEST_READ)
        limit = bf16_bytes / bandwidth / 1e9
        report.saw([bandwidth])
        report.note(f"plain is {limit / costs[0][1]:.2f} of the BF16 limit, {limit * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
