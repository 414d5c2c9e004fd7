"""Times the overhead of a draft-verify round outside forwards and picks.

    python benchmarks/overhead.py [MODEL] [--length 4] [--rounds 200]

Two levels, greedy: the target drafts a fixed number of tokens with its fp4 precision. The overhead
is the time of proposing, matching and bookkeeping. Medians over repeats, in microseconds. The last
line is one JSON object.
"""

import argparse
import json
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from specqd import LLM, _native
from specqd._native import DraftRequest, Level, Sequence

PROMPT = "def mean(values):\n    return sum(values) / len(values)\n\n\ndef variance(values):\n"


def round_seconds(llm: LLM, rounds: int) -> tuple[float, float]:
    """Seconds of a round: in total, and outside forwards and picks."""
    level = llm.engine.level
    levels = [each for each in level.levels if isinstance(each, Level)]
    tokens = llm.encode(PROMPT)
    sequence = Sequence(tokens, _native.Sampler(), len(tokens))
    most = llm.model.config.max_positions
    sequence.tokens.extend(level.advance([DraftRequest(sequence, 1)])[0].tokens)  # prefill

    def within() -> float:
        return sum(each.stats.seconds + each.stats.pick_seconds for each in levels)

    before, begun = within(), perf_counter()
    for _ in range(rounds):
        sequence.tokens.extend(level.advance([DraftRequest(sequence, most)])[0].tokens)
    seconds = perf_counter() - begun
    overhead = seconds - (within() - before)
    level.release(sequence)
    return seconds / rounds, overhead / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--length", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    llm = LLM(options.model, f"fp4:k={options.length}", threads=options.threads)
    round_seconds(llm, options.rounds)
    measured = [round_seconds(llm, options.rounds) for _ in range(options.repeats)]
    whole = 1e6 * median(each for each, _ in measured)
    outside = [1e6 * each for _, each in measured]
    low, _, high = quantiles(outside, n=4)
    print(f"{llm.directory.name}, vocabulary {llm.model.config.vocab_size}, k = {options.length}")
    print(f"a round: {whole:.0f} us; outside forwards and picks {median(outside):.0f} us")
    print(json.dumps({"round_us": whole, "overhead_us": median(outside), "quartiles": [low, high]}))


if __name__ == "__main__":
    main()
