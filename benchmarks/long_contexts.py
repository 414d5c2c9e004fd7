"""Times drafts behind long prompts, where they read a part of the cache, against plain decoding.

    python benchmarks/long_contexts.py MODEL --prompts FILE --chain fp4 --chain fp4:context=all

Every chain continues the same prompts in turns, and must make the same tokens. The first one reads
a prompt; the others find it in the cache, so that only decoding is timed. With --batch, so many
prompts are continued at once. "first" is the acceptance rate of the first token of a proposal,
"accepted" that of all; "reads" is the share of the keys and values that the first draft reads.
"""

from collections.abc import Sequence
from functools import reduce
from operator import add
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from harness import Report, parser

from specqd import LLM, SamplingParams
from specqd.bench.levels import Arm, make_arms, read_prompts
from specqd.bench.rounds import quotients, turns
from specqd.engine.generation import GenerationRequest
from specqd.engine.reports import Stats
from specqd.model.bandwidth import bandwidth_at

MOST_PROMPTS = 1000
WARM_UP_TOKENS = 16


class Run:
    """One chain's continuation of a batch of prompts."""

    def __init__(self, arm: Arm, prompts: Sequence[Sequence[int]], params: SamplingParams) -> None:
        engine, request = arm.llm.engine, params.resolved(arm.llm.defaults)
        generations = engine.submit(GenerationRequest(list(prompts), request))
        while not all(each.count for each in generations):
            engine.step()
        begun, before = perf_counter(), Stats.of(engine)
        made = sum(each.count for each in generations)
        while not all(each.finish_reason for each in generations):
            engine.step()
        self.seconds = perf_counter() - begun
        self.tokens = [each.tokens for each in generations]
        self.tokens_per_s = (sum(map(len, self.tokens)) - made) / self.seconds
        self.levels = Stats.of(engine).since(before).levels


def main() -> None:
    arguments = parser(__doc__, rounds=1)
    arguments.add_argument("model")
    arguments.add_argument("--prompts", type=Path, action="append", required=True)
    arguments.add_argument("--chain", action="append", required=True, help="values for --draft")
    arguments.add_argument("--limit", type=int, default=MOST_PROMPTS, help="prompts of each file")
    arguments.add_argument("--batch", type=int, default=1, help="prompts at once")
    arguments.add_argument("-n", type=int, default=96, help="new tokens")
    arguments.add_argument("--temperature", type=float, default=0.0)
    arguments.add_argument("--prompt-cache", type=Path, help="keep the prompts' KV cache here")
    options = arguments.parse_args()
    params = SamplingParams(
        max_tokens=options.n, temperature=options.temperature, seed=1, ignore_eos=True
    )
    longest = max(path.stat().st_size for path in options.prompts)  # bytes of a file
    plain = LLM(
        options.model,
        "fp4",
        options.threads,
        options.isa,
        cache_positions=min(longest, 40_000) * (options.batch + 1),
        prompt_cache=options.prompt_cache,
    ).with_draft("none")
    arms = make_arms(plain, options.chain)
    title = f"{plain.directory.name}, temperature {options.temperature:g}, batch {options.batch}"
    columns = [
        *("prompts", ("tokens before", ".0f"), "drafts", ("tokens/s", ".1f")),
        *(("x plain", ".2f"), ("first", ".3f"), ("accepted", ".3f"), ("reads", ".2f")),
    ]
    with Report(options, title, plain.model.machine, columns) as report:
        for path in options.prompts:
            prompts = [plain.encode(text) for text in read_prompts(path, options.limit)]
            size = options.batch
            batches = [prompts[i : i + size] for i in range(0, len(prompts), size)]
            runs = runs_of(arms, batches * options.rounds, params)
            for arm, done in zip(arms, runs, strict=True):
                length = median(map(len, prompts))
                report.row(path.stem, length, arm.name, *figures(done, runs[0]))
            report.saw([bandwidth_at(plain.model.machine, plain.model.bf16_bytes_per_forward)])


def runs_of(
    arms: Sequence[Arm], batches: Sequence[Sequence[Sequence[int]]], params: SamplingParams
) -> list[list[Run]]:
    """By arm: its runs of all batches."""
    runs: list[list[Run]] = [[] for _ in arms]
    for arm in arms:
        arm.llm.engine.scheduler.reuses_prefixes = True
    for number, batch in enumerate(batches):
        for arm in arms:  # reads the prompts, and warms up
            Run(arm, batch, SamplingParams(max_tokens=WARM_UP_TOKENS, temperature=0.0))
        made = {at: Run(arms[at], batch, params) for at in turns(number, len(arms))}
        for at, run in made.items():
            assert run.tokens == made[0].tokens, f"{arms[at].chain} differs from plain decoding"
            runs[at].append(run)
    return runs


def figures(done: Sequence[Run], plain: Sequence[Run]) -> list[Any]:
    """The cells of an arm: its speed, that over plain decoding, acceptance, and the share read."""
    levels = [reduce(add, each) for each in zip(*(run.levels for run in done), strict=True)]
    speeds = [run.tokens_per_s for run in done]
    ratios = quotients(speeds, [run.tokens_per_s for run in plain])
    read = levels[1].cache_share if len(levels) > 1 else None
    [first, *_] = levels[0].acceptance_at or [None]
    return [median(speeds), ratios, first, levels[0].acceptance, read]


if __name__ == "__main__":
    main()
