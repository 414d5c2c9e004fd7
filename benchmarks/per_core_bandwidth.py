"""Speedups at the memory bandwidth that a core of a desktop or a server has.

    python benchmarks/per_core_bandwidth.py MODEL --prompts FILE [--small SMALL] [--isa NAME ...]

A core of a small virtual machine often has 15 to 35 GB/s, one of a desktop about 10, of a server 5
to 8. The more a core has, the dearer are rows of verification, whose arithmetic then is the limit.
Here one core decodes while the other takes bandwidth away from it, by reading or by copying memory
that no cache holds. What is left is measured beside each prompt: the ratio of arithmetic to
bandwidth is that of another machine, all else is this one. Needs two cores.
"""

import multiprocessing
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from harness import Column, Report, parser

from specqd import LLM, SamplingParams, _native
from specqd.bench.levels import make_arms, read_prompts, summarised, trials
from specqd.llm.draft_words import auto_words
from specqd.model.model import Machine

TAKEN_BYTES = 1 << 30
TAKERS = ("nothing", "reading", "copying")


def take(how: str, core: int) -> None:
    """Uses the memory until the process is ended."""
    os.sched_setaffinity(0, [core])
    block = np.ones(TAKEN_BYTES // 8)
    target = np.empty_like(block)
    while True:
        if how == "reading":
            block.max()
        else:
            np.copyto(target, block)


@contextmanager
def taken(how: str, core: int) -> Iterator[None]:
    if how == "nothing":
        yield
        return
    process = multiprocessing.get_context("spawn").Process(target=take, args=(how, core))
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def main() -> None:
    arguments = parser(__doc__, isas=[_native.available_isas()[0]])
    arguments.add_argument("model")
    arguments.add_argument("--small")
    arguments.add_argument("--prompts", type=Path, required=True)
    arguments.add_argument("--limit", type=int, default=12)
    arguments.add_argument("-n", type=int, default=64, help="new tokens")
    arguments.add_argument("--temperature", type=float, default=0.0)
    arguments.add_argument("--taking", nargs="+", default=TAKERS, choices=TAKERS)
    options = arguments.parse_args()
    ours, other, *_ = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, [ours])
    prompts = read_prompts(options.prompts, options.limit)
    params = SamplingParams(max_tokens=options.n, temperature=options.temperature, ignore_eos=True)
    chains = ["fp4", "auto"]
    if options.small:
        chains.append(shlex.join(auto_words(options.small)))
    columns: list[Column] = ["kernels", "other core", ("GB/s", ".1f"), "chain"]
    columns += [("x plain", ".2f"), ("x BF16 limit", ".2f"), ("tokens/s", ".1f")]
    title = f"One core of {Path(options.model).name} beside one that takes bandwidth"
    with Report(options, title, Machine.choose(1), columns) as report:
        for isa in options.isa:
            arms = make_arms(LLM(options.model, "none", 1, isa, small=None), chains)
            names = ["plain", "fp4", "auto", "auto with the small model"]
            for how in options.taking:
                with taken(how, other):
                    done = list(trials(arms, prompts, params))
                size = arms[0].llm.model.bf16_bytes_per_forward
                gb_per_s = [trial.gb_per_s[size] for trial in done]
                report.saw(gb_per_s)
                for name, each in zip(names, summarised(arms, done), strict=False):
                    speeds = each.over_plain, each.over_bf16_limit, each.tokens_per_s
                    report.row(isa, how, gb_per_s, name, *speeds)


if __name__ == "__main__":
    main()
