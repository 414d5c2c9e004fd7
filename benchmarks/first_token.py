"""Times the first token of the HTTP server at 1, 4 and 16 clients, by rows of prompts in a round.

    python benchmarks/first_token.py MODEL [--prompt-tokens 512] [--rows 64 128 256 512]

One process loads the model and serves it on a port for each number of rows, without drafts and
without prefix reuse; one port works at a time. Clients stream answers to random prompts. `first` is
the time from a request to its first token, `gap` the longest wait between two later pieces of an
answer: the delay that prompts of other requests cause to a running answer.
"""

import asyncio
import json
from pathlib import Path
from statistics import median

import numpy as np
from harness import Report, parser
from hosting import hosted
from light_clients import answers
from processes import Worker

from specqd.bench.levels import PLAIN
from specqd.bench.rounds import interleaved
from specqd.model.model import Machine

VOCABULARY_FROM = 300  # smaller ids may be special tokens

Figures = tuple[float, float, float, float]  # first, slowest first, gap, new tokens/s


def load(host: Worker, arm: int, at_once: int, bodies: list[bytes], new_tokens: int) -> Figures:
    with host.awake():
        got, seconds = asyncio.run(answers(host.report["ports"][arm], bodies, at_once))
    firsts = [each.times[0] for each in got]
    gaps = [float(max(np.diff(each.times), default=0.0)) for each in got]
    return median(firsts), max(firsts), median(gaps), len(got) * new_tokens / seconds


def main() -> None:
    arguments = parser(__doc__, rounds=3)
    arguments.add_argument("model", type=Path)
    arguments.add_argument("--prompt-tokens", type=int, default=512)
    arguments.add_argument("--new-tokens", type=int, default=16)
    arguments.add_argument("--rows", type=int, nargs="+", default=[64, 128, 256, 512])
    arguments.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument("--requests", type=int, default=2, help="per client and round")
    options = arguments.parse_args()
    longest = options.prompt_tokens + options.new_tokens
    arms = [(PLAIN, rows) for rows in options.rows]
    common = {
        "max_tokens": options.new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    columns = ["clients", "rows", ("first, s", ".3f"), ("slowest first, s", ".3f")]
    columns += [("longest gap, s", ".3f"), ("new tokens/s", ".1f")]
    machine = Machine.choose(options.threads, options.isa)
    title = f"The first token of {options.model.name}, prompts of {options.prompt_tokens} tokens"
    with (
        hosted(arms, longest, options) as host,
        Report(options, title, machine, columns) as report,
    ):
        for at_once in options.at_once:
            shape = (options.rounds, options.requests * at_once, options.prompt_tokens)
            prompts = np.random.default_rng().integers(
                VOCABULARY_FROM, host.report["vocabulary"], shape
            )
            bodies = [
                [json.dumps({"prompt": ids, **common}).encode() for ids in own]
                for own in prompts.tolist()
            ]
            done = interleaved(
                {
                    str(rows): lambda number, arm=arm, at_once=at_once, bodies=bodies: load(
                        host, arm, at_once, bodies[number], options.new_tokens
                    )
                    for arm, rows in enumerate(options.rows)
                },
                options.rounds,
            )
            for rows, runs in done.runs.items():
                report.row(at_once, int(rows), *map(list, zip(*runs, strict=True)))


if __name__ == "__main__":
    main()
