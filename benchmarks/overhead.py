"""Times the overhead of a draft-verify round outside forwards and sampling.

    python benchmarks/overhead.py [MODEL] [--length 4] [--steps 40]

Two levels, greedy: the target drafts a fixed number of tokens with its fp4 precision. The overhead
is the time of proposing, matching and bookkeeping.
"""

from pathlib import Path
from time import perf_counter

from harness import Report, parser

from specqd import LLM, _native
from specqd._native import DraftRequest, Level, Sequence

PROMPT = "def mean(values):\n    return sum(values) / len(values)\n\n\ndef variance(values):\n"


def round_seconds(llm: LLM, steps: int) -> tuple[float, float]:
    """Seconds per draft-verify round: in total, and outside forwards and sampling."""
    level = llm.engine.level
    levels = [each for each in level.levels if isinstance(each, Level)]
    tokens = llm.encode(PROMPT)
    sequence = Sequence(tokens, _native.Sampler(), len(tokens))
    most = llm.model.config.max_positions
    sequence.tokens.extend(level.advance([DraftRequest(sequence, 1)])[0].tokens)  # prefill

    def within() -> float:
        return sum(each.stats.seconds + each.stats.pick_seconds for each in levels)

    before, begun = within(), perf_counter()
    for _ in range(steps):
        sequence.tokens.extend(level.advance([DraftRequest(sequence, most)])[0].tokens)
    seconds = perf_counter() - begun
    overhead = seconds - (within() - before)
    level.release(sequence)
    return seconds / steps, overhead / steps


def main() -> None:
    arguments = parser(__doc__, rounds=9)
    arguments.add_argument("model", nargs="?", type=Path)
    arguments.add_argument("--length", type=int, default=4)
    arguments.add_argument("--steps", type=int, default=40, help="draft-verify rounds per timing")
    options = arguments.parse_args()
    chain = f"fp4:k={options.length}"
    llm = LLM(options.model, chain, threads=options.threads, isa=options.isa)
    title = f"A draft-verify round of {llm.directory.name} in microseconds"
    columns = ["vocabulary", "k", ("whole", ".0f"), ("outside forwards and sampling", ".1f")]
    round_seconds(llm, options.steps)
    with Report(options, title, llm.model.machine, columns) as report:
        done = report.rounds({chain: lambda _: round_seconds(llm, options.steps)})
        whole, outside = (
            [1e6 * s for s in seconds] for seconds in zip(*done.runs[chain], strict=True)
        )
        report.row(llm.model.config.vocab_size, options.length, whole, outside)


if __name__ == "__main__":
    main()
