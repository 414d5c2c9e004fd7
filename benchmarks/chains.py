"""Chains against each other: the ratio of each to the first, sequence by sequence.

    python benchmarks/chains.py [MODEL] --prompts FILE --chain fp4 --chain auto --chain fp4

Every chain in turn continues each prompt, in a new order each time, over one loaded model; the
time is that from the first token on. Naming the first chain once more shows what the machine does
to two measurements of the same. Tokens are compared.
"""

import argparse
import random
from pathlib import Path
from time import perf_counter

import numpy as np

from specqd import LLM, SamplingParams
from specqd.bench.levels import Interval, encoded_ends, read_prompts, words_of
from specqd.engine.generation import GenerationRequest


def written(
    llm: LLM, prompts: list[list[int]], params: SamplingParams
) -> tuple[list[list[int]], float]:
    """The tokens after these prompts, decoded together, and seconds for each."""
    engine = llm.engine
    generations = engine.submit(GenerationRequest(prompts, params.resolved(llm.defaults)))
    while not all(each.count for each in generations):
        engine.step()
    begun, before = perf_counter(), sum(each.count for each in generations)
    while not engine.is_idle:
        engine.step()
    seconds = (perf_counter() - begun) / (sum(each.count for each in generations) - before)
    return [list(each.sequence.tokens) for each in generations], seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--chain", dest="chains", action="append", required=True)
    parser.add_argument("--limit", type=int, default=44, help="prompts")
    parser.add_argument("--at-once", type=int, default=1, help="sequences")
    parser.add_argument("-n", type=int, default=128, help="new tokens")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    plain = LLM(options.model, "none", threads=options.threads)
    arms = [plain.with_draft(words_of(chain)) for chain in options.chains]
    for arm in arms:
        arm.engine.scheduler.reuses_prefixes = False
    prompts = encoded_ends(plain, read_prompts(options.prompts, options.limit), options.n)
    parts = [prompts[i : i + options.at_once] for i in range(0, len(prompts), options.at_once)]
    seconds: list[list[float]] = [[] for _ in arms]
    for number in range(options.rounds * len(parts)):
        params = SamplingParams(
            max_tokens=options.n, temperature=options.temperature, seed=number, ignore_eos=True
        )
        part = parts[number % len(parts)]
        tokens = {}
        for arm in random.sample(range(len(arms)), len(arms)):
            tokens[arm], own = written(arms[arm], part, params)
            seconds[arm].append(own)
        if any(others != tokens[0] for others in tokens.values()):
            raise SystemExit("NOT EQUAL: the chains wrote different tokens")
    for chain, own in zip(options.chains, np.array(seconds), strict=True):
        ratio = Interval.of(np.array(seconds[0]) / own)
        print(
            f"{chain:30s} {1 / own.mean():8.0f} tokens/s  "
            f"x the first {ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]  "
            f"in all {sum(seconds[0]) / own.sum():.3f}"
        )


if __name__ == "__main__":
    main()
