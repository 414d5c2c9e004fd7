"""Times the first token of the HTTP server at 1, 4 and 16 clients, by the longest gap of answers.

    python benchmarks/first_token.py MODEL [--prompt-tokens 512] [--gap 0.1 0.25 1]
    python benchmarks/first_token.py MODEL --prompt-tokens 8 --beside 6000

One process loads the model and serves it on a port for each gap (`serve --max-gap`), without drafts
and without prefix reuse; one port works at a time. Clients stream answers to random prompts. With
`--beside`, a further client has sent a prompt of so many tokens half a second before. `first` is
the time from a request to its first token, `gap` the longest wait between two later pieces of an
answer: the delay that prompts of other requests cause to a running answer.
"""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from harness import Report, parser
from hosting import hosted
from light_clients import Answer, answers
from processes import Worker

from specqd.bench.levels import PLAIN
from specqd.bench.rounds import Rounds, interleaved
from specqd.model.model import Machine

VOCABULARY_FROM = 300  # smaller ids may be special tokens
HEAD_START_S = 0.5  # of the long prompt

# First, slowest first, gap, first of the long prompt, new tokens/s.
Figures = tuple[float, float, float, float, float]
Bodies = tuple[list[bytes], list[bytes]]  # of long prompts and of short ones


async def beside(port: int, long: list[bytes], bodies: list[bytes], at_once: int) -> list[Answer]:
    """The answers to `bodies`, and then to the long prompt if there is one."""
    first = asyncio.create_task(answers(port, long, len(long)))
    await asyncio.sleep(HEAD_START_S if long else 0.0)
    got, _ = await answers(port, bodies, at_once)
    return got + (await first)[0]


def load(
    host: Worker, arm: int, at_once: int, long: list[bytes], bodies: list[bytes], new_tokens: int
) -> Figures:
    with host.awake():
        got = asyncio.run(beside(host.report["ports"][arm], long, bodies, at_once))
    short = got[: len(bodies)]
    firsts = [each.times[0] for each in short]
    gaps = [float(max(np.diff(each.times), default=0.0)) for each in short]
    seconds = sum(each.times[-1] for each in short) / at_once
    last = got[-1].times[0]
    return median(firsts), max(firsts), max(gaps), last, len(bodies) * new_tokens / seconds


def main() -> None:
    arguments = parser(__doc__, rounds=3)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--prompt-tokens", type=int, default=512)
    arguments.add_argument("--new-tokens", type=int, default=16)
    arguments.add_argument("--beside", type=int, default=0, metavar="TOKENS")
    arguments.add_argument("--gap", type=float, nargs="+", default=[0.1, 0.25, 1.0])
    arguments.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument("--requests", type=int, default=2, help="per client and round")
    options = arguments.parse_args()
    longest = max(options.prompt_tokens, options.beside) + options.new_tokens
    arms = [(PLAIN, gap) for gap in options.gap]
    common = {
        "max_tokens": options.new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    columns = ["clients", "max gap, s", ("first, s", ".3f"), ("slowest first, s", ".3f")]
    columns += [("longest gap, s", ".3f"), ("long first, s", ".3f"), ("new tokens/s", ".1f")]
    machine = Machine.choose(options.threads, options.isa)
    title = f"The first token of {options.model.name}, prompts of {options.prompt_tokens} tokens"
    title += f" beside one of {options.beside}" if options.beside else ""
    rng = np.random.default_rng()

    def body(tokens: int) -> bytes:
        ids = rng.integers(VOCABULARY_FROM, host.report["vocabulary"], tokens).tolist()
        return json.dumps({"prompt": ids, **common}).encode()

    with (
        hosted(arms, longest, options) as host,
        Report(options, title, machine, columns) as report,
    ):
        for at_once in options.at_once:
            own = [
                (
                    [body(options.beside)] if options.beside else [],
                    [body(options.prompt_tokens) for _ in range(options.requests * at_once)],
                )
                for _ in range(options.rounds)
            ]

            def run(
                arm: int, number: int, at_once: int = at_once, own: Sequence[Bodies] = own
            ) -> Figures:
                return load(host, arm, at_once, *own[number], options.new_tokens)

            arms_by_gap = {str(gap): partial(run, arm) for arm, gap in enumerate(options.gap)}
            done: Rounds[Figures, str] = interleaved(arms_by_gap, options.rounds)
            for gap, runs in done.runs.items():
                report.row(at_once, float(gap), *map(list, zip(*runs, strict=True)))


if __name__ == "__main__":
    main()
