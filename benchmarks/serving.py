"""Tokens/s of the HTTP server at 1, 4 and 16 concurrent requests, with and without drafts.

    python benchmarks/serving.py --prompts prompts.jsonl
    python benchmarks/serving.py /tmp/llama-1g --prompts prompts.jsonl --tokens 32 --plot out.png

A separate process loads the model once and serves each chain on its own port like `specqd serve`,
but without prefix reuse; one chain works at a time. Each client, plain asyncio on one connection,
sends its next request when it has the whole last answer. Clients share the cores with the server in
every arm: `client` is their share of a core.

Answers have different lengths. Answers of equal length (`--spread 0`) that start together also end
together without drafts, and their successors are prefilled together; with drafts they end one by
one. That would favour plain decoding.

Each round runs all arms over the same prompts, forwards and backwards and with another arm first
each time, so that a machine that becomes slower favours none. A ratio compares the times of one
round; its interval is bootstrapped over rounds. Texts must be equal in all arms. The last line is
one JSON object. `--chain none` compares plain decoding with itself and shows the noise.
"""

import argparse
import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import reduce
from itertools import product
from math import ceil
from multiprocessing import get_context
from multiprocessing.connection import Connection
from operator import add
from pathlib import Path
from random import Random
from statistics import median
from threading import Thread
from time import process_time

from light_clients import answers, read_answer

from specqd.bench.level_plot import require_matplotlib
from specqd.bench.levels import PLAIN, Interval, read_prompts, words_of
from specqd.engine.reports import LevelReport, Stats

PROMPT_CHARACTERS = 400  # kept from each prompt's end, because decoding is compared
CONCURRENCY = (1, 4, 16)
TEMPERATURES = (0.0, 0.8)
CHAINS = ("auto", "fp4")
ROUNDS_BY_BANDWIDTH = 8


@dataclass(frozen=True, slots=True)
class Setting:
    """Settings of the server's process."""

    model: Path | None
    chains: tuple[str, ...]  # plain decoding first
    threads: int | None
    isa: str | None
    most_at_once: int
    most_tokens: int  # per answer


@dataclass(frozen=True, slots=True)
class Run:
    """One arm's answers, and their time."""

    texts: tuple[str, ...]
    tokens: int
    seconds: float
    client_cpu_seconds: float
    target: LevelReport

    def __add__(self, other: "Run") -> "Run":
        return Run(
            self.texts + other.texts,
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            self.client_cpu_seconds + other.client_cpu_seconds,
            self.target + other.target,
        )

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class Load:
    temperature: float
    at_once: int


@dataclass(frozen=True, slots=True)
class Result:
    """One arm's results under a load, over all rounds."""

    temperature: float
    at_once: int
    chain: str
    tokens_per_s: float
    over_plain: Interval
    ratios: tuple[float, ...]  # over plain, by round
    drafted_per_round: float  # drafted tokens per forward of the target
    accepted: float | None
    bandwidth_share: float  # the target's forwards over the run's bandwidth
    client: float


# --- The server's process -------------------------------------------------------------------------


def host(setting: Setting, pipe: Connection) -> None:
    """Serves each chain on its own port. On the pipe, answers an arm's number with its statistics
    and None with the bandwidth."""
    from specqd.engine.engine import Engine
    from specqd.llm import LLM
    from specqd.model.bandwidth import bandwidth_at
    from specqd.server.app import Service, Serving
    from specqd.server.guard import Access
    from specqd.server.listening import listen, run
    from specqd.server.opening import PROMPT_ROWS

    room = setting.most_at_once * (PROMPT_CHARACTERS + setting.most_tokens + 256)
    plain = LLM(setting.model, PLAIN, setting.threads, setting.isa, cache_positions=room)
    engines, ports = [], []
    for chain in setting.chains:
        llm = plain.with_draft(words_of(chain))
        engine = Engine(
            llm.engine.level,
            llm.tokenizer,
            max_batch=setting.most_at_once,
            prompt_rows=PROMPT_ROWS,
        )
        engine.scheduler.reuses_prefixes = False  # the arms share one cache
        sock = listen("127.0.0.1", 0)
        service = Service(Serving(engine, llm.directory.name, llm.defaults, Access()))
        Thread(target=run, args=(service, sock, 0, print), daemon=True).start()
        engines.append(engine)
        ports.append(sock.getsockname()[1])
    machine, read = plain.model.machine, plain.model.bytes_per_forward
    pipe.send((ports, plain.directory.name, machine.pool.threads, machine.isa))
    while (asked := pipe.recv()) != "end":
        pipe.send(bandwidth_at(machine, read) if asked is None else Stats.of(engines[asked]))
    os._exit(0)  # the servers' threads need no cleanup


@dataclass(frozen=True, slots=True)
class Arms:
    """The client's view of the server's process."""

    pipe: Connection
    ports: tuple[int, ...]
    model: str
    threads: int
    isa: str

    def stats(self, arm: int) -> Stats:
        self.pipe.send(arm)
        counted = self.pipe.recv()
        assert isinstance(counted, Stats)
        return counted

    def gb_per_s(self) -> float:
        self.pipe.send(None)
        return float(self.pipe.recv())


@contextmanager
def hosted(setting: Setting) -> Iterator[Arms]:
    spawning = get_context("spawn")
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=host, args=(setting, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        ports, *rest = ours.recv()
        yield Arms(ours, tuple(ports), *rest)
        ours.send("end")
    finally:
        process.join(5)
        if process.is_alive():
            process.terminate()


# --- A run ----------------------------------------------------------------------------------------


def run_once(arms: Arms, arm: int, bodies: Sequence[bytes], at_once: int) -> Run:
    before, cpu = arms.stats(arm), process_time()
    got, seconds = asyncio.run(answers(arms.ports[arm], bodies, at_once))
    cpu = process_time() - cpu
    texts, counts = zip(*map(read_answer, got), strict=True)
    tokens = sum(counts)
    return Run(texts, tokens, seconds, cpu, arms.stats(arm).since(before).levels[0])


def bodies_of(
    prompts: Sequence[str], number: int, count: int, load: Load, options: argparse.Namespace
) -> list[bytes]:
    """The requests of one run: the next `count` prompts, each with its own seed."""
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    first = number * count
    return [
        json.dumps(
            {
                "prompt": prompts[i % len(prompts)][-PROMPT_CHARACTERS:],
                "max_tokens": length_of(i, options),
                "temperature": load.temperature,
                "seed": i,
                "ignore_eos": True,
                **(streamed if options.stream else {}),
            }
        ).encode()
        for i in range(first, first + count)
    ]


def length_of(request: int, options: argparse.Namespace) -> int:
    """Tokens of a request's answer, the same in every arm."""
    least, most = (options.tokens * (1 + sign * options.spread) for sign in (-1, 1))
    return max(1, round(Random(request).uniform(least, most)))


# --- Comparing ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cell:
    """A load's runs by round and arm, and the bandwidths between rounds."""

    rounds: list[list[Run]]
    gb_per_s: list[float]


def compared(
    arms: Arms, prompts: Sequence[str], loads: Sequence[Load], options: argparse.Namespace
) -> dict[Load, Cell]:
    num_arms = len(arms.ports)
    cells = {load: Cell([], []) for load in loads}
    for number, load in product(range(options.rounds), loads):
        count = max(options.least_requests, options.requests_per_client * load.at_once)
        there, back = (
            bodies_of(prompts, 2 * number + half, count, load, options) for half in (0, 1)
        )
        if number % ROUNDS_BY_BANDWIDTH == 0:
            cells[load].gb_per_s.append(arms.gb_per_s())
            for arm in range(num_arms):  # the first run after measuring bandwidth takes longer
                run_once(arms, arm, there, load.at_once)
        order = [(number + turn) % num_arms for turn in range(num_arms)]
        runs = {arm: run_once(arms, arm, there, load.at_once) for arm in order}
        for arm in reversed(order):
            runs[arm] += run_once(arms, arm, back, load.at_once)
        for arm, run in runs.items():
            if run.texts != runs[0].texts:
                raise SystemExit(f"NOT EQUAL: arm {arm} differs from plain decoding, {load}")
        cells[load].rounds.append([runs[arm] for arm in range(num_arms)])
    return cells


def results_of(chains: Sequence[str], cells: dict[Load, Cell]) -> list[Result]:
    results = []
    for load, cell in cells.items():
        for arm, chain in enumerate(chains):
            runs = [each[arm] for each in cell.rounds]
            plain = [each[0] for each in cell.rounds]
            target = reduce(add, (run.target for run in runs))
            ratios = tuple(
                a.tokens_per_s / b.tokens_per_s for a, b in zip(runs, plain, strict=True)
            )
            results.append(
                Result(
                    load.temperature,
                    load.at_once,
                    chain,
                    median(run.tokens_per_s for run in runs),
                    Interval.of(ratios),
                    ratios,
                    target.drafted / target.forwards,
                    target.acceptance,
                    target.gb_per_s / median(cell.gb_per_s),
                    sum(r.client_cpu_seconds for r in runs) / sum(r.seconds for r in runs),
                )
            )
    return results


def table_of(results: Sequence[Result]) -> str:
    lines = [
        "| at once | temperature | drafts | tokens/s | x plain | drafted a round | accepted "
        "| share of bandwidth | client |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in results:
        ratio = each.over_plain
        shown = f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        accepted = "-" if each.accepted is None else f"{each.accepted:.0%}"
        lines.append(
            f"| {each.at_once} | {each.temperature:g} | {each.chain} | {each.tokens_per_s:.1f} "
            f"| {shown} | {each.drafted_per_round:.2f} | {accepted} "
            f"| {each.bandwidth_share:.0%} | {each.client:.0%} |"
        )
    return "\n".join(lines)


def draw(path: Path, model: str, results: Sequence[Result]) -> None:
    """Plots ratios with intervals, one panel per temperature."""
    from matplotlib.figure import Figure

    temperatures = list(dict.fromkeys(each.temperature for each in results))
    loads = list(dict.fromkeys(each.at_once for each in results))
    chains = [chain for chain in dict.fromkeys(each.chain for each in results) if chain != PLAIN]
    figure = Figure(figsize=(5.0 * len(temperatures), 3.6), layout="constrained")
    figure.suptitle(f"{model}: tokens/s of the server, as a multiple of plain decoding")
    panels = figure.subplots(1, len(temperatures), squeeze=False, sharey=True)[0]
    for temperature, panel in zip(temperatures, panels, strict=True):
        for i, chain in enumerate(chains):
            mine = [r for r in results if (r.temperature, r.chain) == (temperature, chain)]
            ratios = [r.over_plain for r in mine]
            spans = [[r.median - r.low for r in ratios], [r.high - r.median for r in ratios]]
            places = [loads.index(r.at_once) + 0.12 * (i - (len(chains) - 1) / 2) for r in mine]
            medians = [r.median for r in ratios]
            panel.errorbar(places, medians, yerr=spans, fmt="o", capsize=4, label=chain)
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.set_xticks(range(len(loads)), [str(load) for load in loads])
        panel.set_xlabel(f"requests at once, temperature {temperature:g}")
        panel.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", type=Path)
    parser.add_argument("--prompts", type=Path, required=True, help='one {"prompt": ...} per line')
    parser.add_argument("--limit", type=int, default=44, help="prompts")
    parser.add_argument("--chain", dest="chains", action="append", help="default: auto, fp4")
    parser.add_argument("--at-once", type=int, nargs="+", default=CONCURRENCY)
    parser.add_argument("--temperature", type=float, nargs="+", default=TEMPERATURES)
    parser.add_argument("--tokens", type=int, default=64, help="average per answer")
    parser.add_argument(
        "--spread", type=float, default=0.5, help="relative variation of answers' lengths"
    )
    parser.add_argument("--requests-per-client", type=int, default=3, help="per run")
    parser.add_argument("--least-requests", type=int, default=2, help="per run")
    parser.add_argument("--stream", action="store_true", help="stream answers")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--isa")
    parser.add_argument("--plot", type=Path)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.plot is not None:
        require_matplotlib()
    prompts = read_prompts(options.prompts, options.limit)
    chains = (PLAIN, *(options.chains or CHAINS))
    most_tokens = ceil(options.tokens * (1 + options.spread))
    setting = Setting(
        options.model, chains, options.threads, options.isa, max(options.at_once), most_tokens
    )
    loads = [Load(t, n) for t, n in product(options.temperature, options.at_once)]
    with hosted(setting) as arms:
        cells = compared(arms, prompts, loads, options)
    results = results_of(chains, cells)
    bandwidths = [value for cell in cells.values() for value in cell.gb_per_s]
    title = f"{arms.model}, {arms.threads} threads, {arms.isa}"
    bandwidth = Interval.of(bandwidths)
    print(f"{title}; {bandwidth.median:.1f} GB/s; equal texts in all arms\n")
    print(table_of(results))
    if options.plot is not None:
        draw(options.plot, arms.model, results)
    entry = {
        "model": arms.model,
        "threads": arms.threads,
        "isa": arms.isa,
        "prompts": options.prompts.name,
        "tokens": options.tokens,
        "spread": options.spread,
        "rounds": options.rounds,
        "gb_per_s": [min(bandwidths), bandwidth.median, max(bandwidths)],
        "results": [asdict(each) for each in results],
    }
    print(json.dumps(entry))


if __name__ == "__main__":
    main()
