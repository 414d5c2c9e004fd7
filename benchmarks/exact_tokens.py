"""Compares tokens and log-probabilities under drafts with those of plain decoding, bit by bit.

    python benchmarks/exact_tokens.py MODEL --prompts FILE --chain fp4 --chain auto --batch 1 4

Plain decoding runs on one thread, in batches of another size. Under each chain, all prompts are
continued in batches of the given sizes by turns. The first difference ends the run with an error.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

from harness import Column, Report, parser

from specqd import LLM, SamplingParams
from specqd.bench.levels import make_arms, read_prompts
from specqd.engine.generation import TokenLogprob
from specqd.engine.reports import Stats
from specqd.llm.results import Result

PLAIN_BATCH = 6
LIKELIEST = 5  # tokens whose log-probabilities are compared at each place


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("model")
    arguments.add_argument("--prompts", type=Path, action="append", required=True)
    arguments.add_argument("--chain", action="append", required=True, help="values for --draft")
    arguments.add_argument("--limit", type=int, default=1000, help="prompts of each file")
    arguments.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="sizes by turns")
    arguments.add_argument("-n", type=int, default=128, help="new tokens")
    arguments.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    arguments.add_argument("--prompt-cache", type=Path, help="keep the prompts' KV cache here")
    options = arguments.parse_args()

    texts = [text for path in options.prompts for text in read_prompts(path, options.limit)]
    plain = LLM(options.model, "none", threads=1, prompt_cache=options.prompt_cache)
    base = LLM(
        options.model, "fp4", options.threads, options.isa, prompt_cache=options.prompt_cache
    ).with_draft("none")
    [_, *arms] = make_arms(base, options.chain)
    prompts = [plain.encode(text) for text in texts]
    title = f"{plain.directory.name}, {len(prompts)} prompts in batches of {options.batch}"
    columns: list[Column] = [
        "temperature",
        "drafts",
        ("tokens", "d"),
        ("accepted", ".3f"),
        ("longest", "d"),
    ]
    with Report(options, title, base.model.machine, columns) as report:
        for temperature in options.temperature:
            params = SamplingParams(
                max_tokens=options.n, temperature=temperature, seed=1, logprobs=LIKELIEST,
                ignore_eos=True,
            )  # fmt: skip
            wanted = list(continued(plain, prompts, [PLAIN_BATCH], params))
            for arm in arms:
                # Prompts are read once for all only where their cache is to be kept.
                arm.llm.engine.scheduler.reuses_prefixes = options.prompt_cache is not None
                before = Stats.of(arm.llm.engine)
                found = list(continued(arm.llm, prompts, options.batch, params))
                [level, *_] = Stats.of(arm.llm.engine).since(before).levels
                compare(arm.name, found, wanted)
                tokens = sum(len(each.tokens) for each in found)
                longest = max(len(each.prompt_tokens) + len(each.tokens) for each in found)
                report.row(f"{temperature:g}", arm.name, tokens, level.acceptance, longest)


def continued(
    llm: LLM, prompts: Sequence[list[int]], sizes: Sequence[int], params: SamplingParams
) -> Iterator[Result]:
    """Continues all prompts, in batches of these sizes by turns."""
    left = iter(prompts)
    for size in cycle(sizes):
        batch = list(islice(left, size))
        if not batch:
            return
        yield from llm.generate(batch, params)


def compare(name: str, found: Sequence[Result], wanted: Sequence[Result]) -> None:
    for number, pair in enumerate(zip(found, wanted, strict=True), start=1):
        for place, (row, plain) in enumerate(zip(*map(logprobs, pair), strict=True)):
            if row != plain:
                sys.exit(f"{name}, prompt {number}, new token {place}: {row}, plainly {plain}")


def logprobs(result: Result) -> list[TokenLogprob]:
    made = result.completions[0].logprobs
    assert made
    return made


if __name__ == "__main__":
    main()
