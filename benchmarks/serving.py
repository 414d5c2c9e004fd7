"""Tokens/s of the HTTP server at 1, 4 and 16 concurrent requests, with and without drafts.

    python benchmarks/serving.py --prompts prompts.jsonl
    python benchmarks/serving.py /tmp/llama-1g --prompts prompts.jsonl --tokens 32 --plot out.png

A separate process loads the model once and serves each chain on its own port; one chain works at a
time. Each client, plain asyncio on one connection, sends its next request when it has the whole
last answer. Clients share the cores with the server in every arm: `client` is their share of a
core.

Answers have different lengths. Answers of equal length (`--spread 0`) that start together also end
together without drafts, and their successors are prefilled together; with drafts they end one by
one. That would favour plain decoding.

Every round runs all arms over the same prompts, and texts must be equal in all arms. `--chain none`
compares plain decoding with itself and shows the noise.
"""

import argparse
import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from math import ceil
from operator import add
from pathlib import Path
from random import Random
from statistics import median
from time import process_time

from harness import Report, parser
from hosting import hosted
from light_clients import answers
from processes import Worker

from specqd.bench.level_plot import require_matplotlib
from specqd.bench.levels import PLAIN, read_prompts
from specqd.bench.rounds import Interval, Rounds, interleaved
from specqd.engine.reports import LevelReport
from specqd.model.model import Machine

PROMPT_CHARACTERS = 400  # kept from each prompt's end, because decoding is compared
CHAINS = ("auto", "fp4")


@dataclass(frozen=True, slots=True)
class Load:
    temperature: float
    at_once: int


@dataclass(frozen=True, slots=True)
class Run:
    """One arm's answers in a round, and their time."""

    texts: tuple[str, ...]
    tokens: int
    seconds: float
    client_cpu_seconds: float
    target: LevelReport

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


def run_once(
    host: Worker, arm: int, bodies: Sequence[Sequence[bytes]], load: Load, number: int
) -> Run:
    before, cpu = LevelReport(**host.ask(arm)), process_time()
    with host.awake():
        port = host.report["ports"][arm]
        got, seconds = asyncio.run(answers(port, bodies[number], load.at_once))
    cpu = process_time() - cpu
    texts, tokens = tuple(each.text for each in got), sum(each.tokens for each in got)
    return Run(texts, tokens, seconds, cpu, LevelReport(**host.ask(arm)).since(before))


def body_of(prompts: Sequence[str], request: int, load: Load, options: argparse.Namespace) -> bytes:
    """A request with its own seed, and an answer of the same length in every arm."""
    least, most = (options.tokens * (1 + sign * options.spread) for sign in (-1, 1))
    body = {
        "prompt": prompts[request % len(prompts)][-PROMPT_CHARACTERS:],
        "max_tokens": max(1, round(Random(request).uniform(least, most))),
        "temperature": load.temperature,
        "seed": request,
        "ignore_eos": True,
    }
    if options.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(body).encode()


def compare(
    host: Worker, load: Load, prompts: Sequence[str], options: argparse.Namespace, report: Report
) -> dict[str, Interval]:
    """Adds a row for each arm; returns their ratios over plain decoding."""
    count = max(options.least_requests, options.requests_per_client * load.at_once)
    requests = range(options.rounds * count)
    every = [body_of(prompts, request, load, options) for request in requests]
    bodies = [every[first : first + count] for first in requests[::count]]
    arms = {
        f"{arm}: {chain}": partial(run_once, host, arm, bodies, load)
        for arm, chain in enumerate((PLAIN, *options.chains))
    }
    plain = next(iter(arms))
    gb_per_s = host.ask(None)
    report.saw([gb_per_s])
    for run in arms.values():  # the first run after a measurement of the bandwidth takes longer
        run(0)
    done: Rounds[Run, str] = interleaved(arms, options.rounds)
    ratios = {}
    for name, runs in done.runs.items():
        if [run.texts for run in runs] != [run.texts for run in done.runs[plain]]:
            raise SystemExit(f"NOT EQUAL: {name} differs from plain decoding, {load}")
        ratios[name] = Interval.of(done.ratios(name, plain, lambda run: run.tokens_per_s))
        target = reduce(add, (run.target for run in runs))
        report.row(
            *(load.at_once, load.temperature, name.partition(": ")[2]),
            *(median(run.tokens_per_s for run in runs), ratios[name]),
            *(target.drafted / target.forwards, target.acceptance, target.gb_per_s / gb_per_s),
            sum(run.client_cpu_seconds for run in runs) / sum(run.seconds for run in runs),
        )
    del ratios[plain]
    return ratios


def draw(path: Path, model: str, found: dict[Load, dict[str, Interval]]) -> None:
    """Plots ratios with intervals, one panel per temperature."""
    from matplotlib.figure import Figure

    temperatures = list(dict.fromkeys(load.temperature for load in found))
    clients = list(dict.fromkeys(load.at_once for load in found))
    figure = Figure(figsize=(5.0 * len(temperatures), 3.6), layout="constrained")
    figure.suptitle(f"{model}: tokens/s of the server, as a multiple of plain decoding")
    panels = figure.subplots(1, len(temperatures), squeeze=False, sharey=True)[0]
    chains = list(next(iter(found.values())))
    for (temperature, panel), (i, chain) in product(
        zip(temperatures, panels, strict=True), enumerate(chains)
    ):
        ratios = [found[Load(temperature, at_once)][chain] for at_once in clients]
        places = [at + 0.12 * (i - (len(chains) - 1) / 2) for at in range(len(clients))]
        spans = [[r.median - r.low for r in ratios], [r.high - r.median for r in ratios]]
        medians = [r.median for r in ratios]
        label = chain.partition(": ")[2]
        panel.errorbar(places, medians, yerr=spans, fmt="o", capsize=4, label=label)
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.set_xticks(range(len(clients)), [str(each) for each in clients])
        panel.set_xlabel(f"requests at once, temperature {temperature:g}")
        panel.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def parsed() -> argparse.Namespace:
    arguments = parser(__doc__, rounds=30)
    arguments.add_argument("model", nargs="?", type=Path)
    arguments.add_argument(
        "--prompts", type=Path, required=True, help='one {"prompt": ...} per line'
    )
    arguments.add_argument("--limit", type=int, default=44, help="prompts")
    arguments.add_argument("--chain", dest="chains", action="append", help="default: auto, fp4")
    arguments.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 16])
    arguments.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
    arguments.add_argument("--tokens", type=int, default=64, help="average per answer")
    arguments.add_argument(
        "--spread", type=float, default=0.5, help="relative, of answers' lengths"
    )
    arguments.add_argument("--requests-per-client", type=int, default=3, help="per run")
    arguments.add_argument("--least-requests", type=int, default=2, help="per run")
    arguments.add_argument("--stream", action="store_true", help="stream answers")
    arguments.add_argument("--plot", type=Path)
    options = arguments.parse_args()
    options.chains = options.chains or CHAINS
    return options


def main() -> None:
    options = parsed()
    if options.plot is not None:
        require_matplotlib()
    prompts = read_prompts(options.prompts, options.limit)
    arms = [(chain, None) for chain in (PLAIN, *options.chains)]
    longest = PROMPT_CHARACTERS + ceil(options.tokens * (1 + options.spread))
    loads = [Load(t, n) for t, n in product(options.temperature, options.at_once)]
    machine = Machine.choose(options.threads, options.isa)
    columns = ["at once", ("temperature", "g"), "drafts", ("tokens/s", ".1f"), ("x plain", ".3f")]
    columns += [("drafted per round", ".2f"), ("accepted", ".0%"), ("share of bandwidth", ".0%")]
    columns += [("client", ".0%")]
    with hosted(arms, longest, options) as host:
        model = host.report["model"]
        with Report(options, f"Serving {model}, equal texts", machine, columns) as report:
            found = {load: compare(host, load, prompts, options, report) for load in loads}
        if options.plot is not None:
            draw(options.plot, model, found)


if __name__ == "__main__":
    main()
