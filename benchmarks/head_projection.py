"""A projection: what a trained head would bring, from measured costs and an assumed acceptance.

    python benchmarks/make_random_llama.py /tmp/llama-1g
    python benchmarks/head_projection.py /tmp/llama-1g /tmp/llama-1g-head
        [--shallow MODEL --layers N]

The head has the shape that EAGLE-3 heads have: a layer like the model's, 32,000 tokens at most. It
is written with random weights where it does not exist, and drafts in 4 bits. Its forwards are
measured as drafting makes them: pairs of the tokens that the model has made since, then a pair for
each guess. Costs of the model are those of projection.py, also with --shallow and --layers.

Acceptance is assumed: of the head's guesses under either precision of the model, and of the
model's fp4 drafts. `head` drafts for the model, and `fp4 head` for that draft. Draft lengths are
the best fixed ones: k tokens for the model, and in brackets those of the head for the draft.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests"))

from projection import Costs, best, cost_options, costs_of, interpolated

from specqd import _native
from specqd._native import Rows
from specqd.config import read_config
from specqd.model.bandwidth import bandwidth_at
from specqd.model.heads import Head, HeadFiles, load_head
from specqd.model.model import Machine, Model, Precision
from specqd.sampling import SamplingParams
from support.random_heads import HeadShape, make_head
from support.random_models import Shape

PAIRS = (1, 2, 4, 8)  # of a first forward
MOST_GUESSES = 7
MOST_TOKENS = 32_000  # of a head's own
PROMPT = 64
# By guess, each if the one before was right; the last one goes on.
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
    """Seconds of a forward by pairs whose features are known, and of one of a guess: medians."""
    files = HeadFiles.open(directory, model.config)
    head = Head(files, load_head(files, model), model, Precision.FP4)
    head.draft_for(model)
    sampler = SamplingParams().sampler(0, 0)
    sequence = _native.Sequence([7] * PROMPT, sampler, PROMPT)
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
    shares: Sequence[float], verify: Costs, first: Costs, guess: float
) -> tuple[float, int]:
    """The fewest seconds a token by any fixed number of guesses, and that number."""
    options, reached, tokens = [(verify[1], 0)], 1.0, 1.0
    for count in range(1, MOST_GUESSES + 1):
        reached *= shares[min(count, len(shares)) - 1]
        tokens += reached
        drafting = interpolated(first, tokens) + (count - 1) * guess
        options.append(((drafting + interpolated(verify, count + 1)) / tokens, count))
    return min(options)


def table(exact: Costs, draft: Costs, first: Costs, guess: float) -> list[str]:
    lines = [
        "rows        " + "".join(f"{rows:8}" for rows in exact),
        "exact, ms   " + "".join(f"{seconds * 1e3:8.1f}" for seconds in exact.values()),
        "fp4, ms     " + "".join(f"{seconds * 1e3:8.1f}" for seconds in draft.values()),
        "head, pairs " + "".join(f"{pairs:8}" for pairs in first) + "   guess",
        "        ms  " + "".join(f"{s * 1e3:8.2f}" for s in (*first.values(), guess)),
        "head right        | head        | fp4 "
        + "          | ".join(f"{alpha:.2f}" for alpha in ALPHAS),
    ]
    plain = exact[1]
    alone = [best(alpha, draft[1], exact) for alpha in ALPHAS]
    cells = (f"{plain / seconds:.2f} (k={k})" for seconds, k in alone)
    lines.append("fp4 alone         |             | " + " | ".join(f"{c:12}" for c in cells))
    for name, shares in HEADS.items():
        seconds, count = best_head(shares, exact, first, guess)
        below, few = best_head(shares, draft, first, guess)
        nested = [best(alpha, below, exact) for alpha in ALPHAS]
        row = [f"{plain / each:.2f} (k={k}, {few})" for each, k in nested]
        lines.append(
            f"{name:17} | {plain / seconds:.2f} (k={count}) | "
            + " | ".join(f"{cell:12}" for cell in row)
        )
    return lines


def main() -> None:
    parser = cost_options(__doc__.splitlines()[0])
    parser.add_argument("head", type=Path)
    options = parser.parse_args()
    if not options.head.exists():
        write_head(options.head, options.model)
    if options.repeats == 0:
        return
    machine = Machine.choose(options.threads, options.isa)
    exact, draft, bf16_bytes = costs_of(options, machine)
    model = Model.open(options.model, machine=machine, cache_positions=1024)
    first, guess = head_costs(model, options.head, options.repeats)
    bandwidth = bandwidth_at(machine, 10**9) * 1e9
    print(machine)
    print("\n".join(table(exact, draft, first, guess)))
    limit = bf16_bytes / bandwidth
    print(f"{bandwidth / 1e9:.1f} GB/s; plain is {limit / exact[1]:.2f} of the BF16 limit")


if __name__ == "__main__":
    main()
