"""Projects the speed-up of a trained draft head from measured costs and assumed acceptance rates.

    python benchmarks/make_random_llama.py /tmp/llama-1g
    python benchmarks/head_projection.py /tmp/llama-1g /tmp/llama-1g-head
        [--shallow MODEL --layers N]

The head has the shape of EAGLE-3 heads: a layer like the model's, and at most 32,000 tokens. If it
does not exist, it is written with random weights. It drafts in 4 bits. Its forwards are measured as
drafting makes them: pairs of the tokens that the model has made since, then a pair for each guess.
Costs of the model are those of projection.py, also with --shallow and --layers.

Acceptance rates are assumed: of the head's guesses under either precision of the model, and of the
model's fp4 drafts. The column `head` is the head that drafts for the model; the others are the head
that drafts for the fp4 draft. Draft lengths are the best fixed ones: k tokens for the model, then
those of the head for the draft.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from harness import Report
from projection import (
    Costs,
    add_costs,
    best,
    cost_options,
    costs_of,
    interpolated,
    limit_seconds,
)

from specqd import _native
from specqd._native import Rows
from specqd.config import read_config
from specqd.model.heads import Head, HeadFiles, load_head
from specqd.model.model import Machine, Model, Precision
from specqd.sampling import SamplingParams
from support.random_heads import HeadShape, make_head
from support.random_models import Shape

PAIRS = (1, 2, 4, 8)  # of a first forward
MOST_GUESSES = 7
MOST_TOKENS = 32_000  # of a head's own
PROMPT = 64
# By guess, each if the one before was accepted; the last rate holds for all later guesses.
HEADS: Mapping[str, Sequence[float]] = {
    "0.55": (0.55,),
    "0.73, 0.71, 0.68": (0.73, 0.71, 0.68),
    "0.80": (0.80,),
}
ALPHAS = (0.90, 0.94, 0.96)  # of fp4 drafts


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
    picker = SamplingParams().picker(0, 0)
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


def main() -> None:
    arguments = cost_options(__doc__)
    arguments.add_argument("head", type=Path)
    options = arguments.parse_args()
    if not options.head.exists():
        write_head(options.head, options.model)
    if options.repeats == 0:
        return
    machine = Machine.choose(options.threads, options.isa)
    exact, draft, bf16_bytes = costs_of(options, machine)
    model = Model.open(options.model, machine=machine, cache_positions=1024)
    first, guess = head_costs(model, options.head, options.repeats)
    limit, plain = limit_seconds(machine, bf16_bytes), exact[1]
    columns = ["acceptance rate of the head", "head", *(f"fp4 {alpha:.2f}" for alpha in ALPHAS)]
    title = f"Projected speed of {options.model.name} over plain decoding"
    with Report(options, title, machine, columns) as report:
        alone = [best(alpha, draft[1], exact) for alpha in ALPHAS]
        cells = (f"{plain / seconds:.2f} (k={k})" for seconds, k in alone)
        report.row("fp4 alone", None, *cells)
        for name, rates in HEADS.items():
            seconds, count = best_head(rates, exact, first, guess)
            below, few = best_head(rates, draft, first, guess)
            nested = [best(alpha, below, exact) for alpha in ALPHAS]
            cells = (f"{plain / each:.2f} (k={k}, {few})" for each, k in nested)
            report.row(name, f"{plain / seconds:.2f} (k={count})", *cells)
        add_costs(report, {"exact": exact, "fp4": draft, "head, pairs": first, "guess": {1: guess}})
        report.note(f"plain is {limit / plain:.2f} of the BF16 limit, {limit * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
