"""Compares the speeds of two builds, which take turns of a few milliseconds to seconds.

    python benchmarks/compare_builds.py OLD NEW [options] levels MODEL ... --prompts FILE
    python benchmarks/compare_builds.py OLD NEW [options] overhead|serving MODEL ...
    python benchmarks/compare_builds.py OLD NEW [options] kernels --rows 1 8 --isa avx2

OLD and NEW are Python interpreters that have one build each. Every build has a worker process that
loads a model once, then answers one turn after the other; the worker whose turn it is not is
stopped. Other programs and the clock disturb a machine for longer than a turn, so both turns of a
pair meet the same machine: their ratio is far steadier than a speed. Speed also depends on
which memory a process gets, so each sitting starts new workers, in the other order.

Prints speeds of both builds and NEW / OLD: the median of all pairs with its 95 % interval,
bootstrapped over sittings and over the pairs of each, and the least and greatest median of a
sitting. A row is `slower` if the whole interval is more than --tolerance below 1, `as fast` if none
of it is, and otherwise `unclear`. The exit status is 1 if a row is slower. Tokens must be equal in
both builds. To see the noise of the machine, name the same interpreter twice.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
from harness import Report, parser
from kernels import CACHE_WEIGHTS
from light_clients import answers
from processes import Worker

from specqd.bench.kernels import PRECISIONS
from specqd.bench.levels import read_prompts, words_of
from specqd.bench.resampling import RESAMPLES, limits
from specqd.bench.rounds import Interval, Rounds, interleaved
from specqd.bench.suggestion import DEFAULT_PROMPTS
from specqd.hub import shipped_model
from specqd.model.model import Machine

WORKER = Path(__file__).with_name("build_worker.py")
CHAINS = ("none", "auto")
PROMPT_CHARACTERS = 400  # of a request to a server, because decoding is compared

Settings = dict[str, Any]
Speeds = dict[str, float]  # of one turn, by what was measured


@dataclass(frozen=True, slots=True)
class Turn:
    """What one build did in its turn. `texts` must be equal in both builds."""

    speeds: Speeds
    texts: Any = None


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    take: Callable[[Worker, int], Turn]  # a worker's turn; the number of the pair


@dataclass(frozen=True, slots=True)
class Load:
    """What a worker loads, and the cases that it then measures."""

    settings: Settings
    cases: list[Case]


def prompts_of(options: argparse.Namespace) -> list[str]:
    if options.prompts is None:
        return list(DEFAULT_PROMPTS)
    return read_prompts(options.prompts, options.limit)


def models_of(options: argparse.Namespace) -> list[str]:
    return options.models or [str(shipped_model())]


def common(options: argparse.Namespace, model: str) -> Settings:
    return {"model": model, "threads": options.threads, "isa": options.isa}


def levels(options: argparse.Namespace) -> Iterator[Load]:
    shared = {"prompts": prompts_of(options), "tokens": options.tokens, "chat": options.chat}

    def take(worker: Worker, number: int, chain: str, temperature: float) -> Turn:
        request = {"chain": chain, "temperature": temperature, "number": number}
        found = worker.ask(request)
        speeds = dict(zip(("tokens/s", "prompt tokens/s"), found["speeds"], strict=True))
        return Turn(speeds, found["tokens"])

    for model in models_of(options):
        cases = [
            Case(
                f"{Path(model).name}, {chain}, T = {t:g}", partial(take, chain=chain, temperature=t)
            )
            for chain, t in product(options.chains or CHAINS, options.temperature)
        ]
        chains = list(options.chains or CHAINS)
        yield Load(common(options, model) | shared | {"chains": chains}, cases)


def overhead(options: argparse.Namespace) -> Iterator[Load]:
    for model in models_of(options):
        shared = {"length": options.length, "steps": options.steps}
        case = Case(f"{Path(model).name}, k = {options.length}", lambda w, _: Turn(w.ask(None)))
        yield Load(common(options, model) | shared, [case])


def serving(options: argparse.Namespace) -> Iterator[Load]:
    prompts = prompts_of(options)

    def take(worker: Worker, number: int, at_once: int, temperature: float) -> Turn:
        count = max(2, options.requests_per_client * at_once)
        bodies = [
            json.dumps(
                {
                    "prompt": prompts[i % len(prompts)][-PROMPT_CHARACTERS:],
                    "max_tokens": Random(i).randint(options.tokens // 2, options.tokens * 3 // 2),
                    "temperature": temperature,
                    "seed": i,
                    "ignore_eos": True,
                    "cache_salt": f"{temperature} {at_once} {i}",  # no prompt is cached
                }
            ).encode()
            for i in range(number * count, (number + 1) * count)
        ]
        with worker.awake():
            got, seconds = asyncio.run(answers(worker.report["port"], bodies, at_once))
        tokens = sum(each.tokens for each in got)
        return Turn({"tokens/s": tokens / seconds}, [each.text for each in got])

    for model, chain in product(models_of(options), options.chains or CHAINS):
        cases = [
            Case(
                f"{Path(model).name}, {chain}, at once {at_once}, T = {t:g}",
                partial(take, at_once=at_once, temperature=t),
            )
            for at_once, t in product(options.at_once, options.temperature)
        ]
        yield Load(common(options, model) | {"chain": words_of(chain)}, cases)


def kernels(options: argparse.Namespace) -> Iterator[Load]:
    def take(worker: Worker, number: int, case: Sequence[Any]) -> Turn:
        return Turn({"Gweights/s": worker.ask(case)["speed"] / 1e9})

    isas = options.isas or [Machine.choose(options.threads).isa]
    cases = [
        Case(f"{precision}, {isa}, rows {rows}", partial(take, case=[precision, isa, rows]))
        for precision, isa, rows in product(options.precision, isas, options.rows)
    ]
    settings = {
        "threads": options.threads,
        "inputs": options.inputs,
        "cache_weights": CACHE_WEIGHTS,
        "megabytes": 0.0 if options.cache else options.megabytes,
        "turn_ms": 2.0 if options.cache else 6.0,
    }
    yield Load(settings, cases)


def sitting(
    load: Load, number: int, options: argparse.Namespace
) -> Iterator[tuple[str, list[Speeds], list[Speeds]]]:
    """Loads both builds; yields each case's speeds of OLD and NEW."""
    first, last = number * options.pairs, options.sittings * options.pairs
    with ExitStack() as stack:
        workers = {}
        for name in ("new", "old") if number % 2 else ("old", "new"):  # each loads first in turn
            command = [getattr(options, name), WORKER, options.workload]
            workers[name] = Worker(command, load.settings)
            stack.callback(workers[name].close)
        for case in load.cases:

            def take(worker: Worker, pair: int, case: Case = case) -> Turn:
                return case.take(worker, first + pair)

            arms = {name: partial(take, worker) for name, worker in workers.items()}
            for arm in arms.values():
                arm(last - first)  # warms up with a turn that does not count
            done: Rounds[Turn, str] = interleaved(arms, options.pairs)
            for pair, turns in enumerate(zip(done.runs["old"], done.runs["new"], strict=True)):
                if turns[0].texts != turns[1].texts:
                    raise SystemExit(f"NOT EQUAL: {case.name}, pair {first + pair}: texts differ")
            old, new = ([turn.speeds for turn in done.runs[name]] for name in ("old", "new"))
            yield case.name, old, new


def interval(ratios: Sequence[Sequence[float]]) -> Interval:
    """The interval of the median over sittings and their pairs."""
    found, rng = np.array(ratios), np.random.default_rng(0)
    sittings, pairs = found.shape
    chosen = rng.integers(sittings, size=(RESAMPLES, sittings, 1))
    drawn = found[chosen, rng.integers(pairs, size=(RESAMPLES, sittings, pairs))]
    return Interval(float(np.median(found)), *limits(np.median(drawn, axis=(1, 2))))


def verdict(ratio: Interval, tolerance: float) -> str:
    if ratio.high < 1 - tolerance:
        return "slower"
    return "as fast" if ratio.low >= 1 - tolerance else "unclear"


def compared(load: Load, options: argparse.Namespace, report: Report) -> bool:
    """Adds a row for each case and figure; returns whether one of them is slower."""
    pairs: dict[tuple[str, str], list[list[tuple[float, float]]]] = {}  # by sitting
    for number in range(options.sittings):
        for name, old, new in sitting(load, number, options):
            for figure in old[0]:
                found = [(a[figure], b[figure]) for a, b in zip(old, new, strict=True)]
                pairs.setdefault((name, figure), []).append(found)
    verdicts = []
    for (name, figure), sittings in pairs.items():
        ratios = [[new / old for old, new in each] for each in sittings]
        ratio = interval(ratios)
        verdicts.append(verdict(ratio, options.tolerance))
        every = [pair for each in sittings for pair in each]
        speeds = [median(speeds) for speeds in zip(*every, strict=True)]
        medians = [median(each) for each in ratios]
        span = f"{min(medians):.3f} to {max(medians):.3f}"
        report.row(name, figure, *speeds, ratio, span, len(every), verdicts[-1])
    return "slower" in verdicts


def parsed() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("old", help="interpreter of the old build")
    made.add_argument("new", help="interpreter of the new build")
    made.add_argument("--sittings", type=int, default=4, help="new processes for each")
    made.add_argument("--pairs", type=int, default=8, help="of turns, per case and sitting")
    made.add_argument("--tolerance", type=float, default=0.01)
    workloads = made.add_subparsers(dest="workload", required=True)
    for name in ("levels", "serving", "overhead"):
        own = workloads.add_parser(name)
        own.add_argument("models", nargs="*", metavar="MODEL", help="default: the shipped one")
        if name == "overhead":
            own.add_argument("--length", type=int, default=4, help="drafted tokens per round")
            own.add_argument("--steps", type=int, default=40, help="rounds per turn")
            continue
        own.add_argument("--prompts", type=Path, help='one {"prompt": ...} per line')
        own.add_argument("--limit", type=int, default=16, help="prompts")
        own.add_argument("--chain", dest="chains", action="append", help="default: none and auto")
        own.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.8])
        own.add_argument("--tokens", type=int, default=64, help="per answer")
        if name == "levels":
            own.add_argument("--chat", action="store_true", help="apply the chat template")
        else:
            own.add_argument("--at-once", type=int, nargs="+", default=[1, 4, 16])
            own.add_argument("--requests-per-client", type=int, default=2, help="per turn")
    own = workloads.add_parser("kernels")
    own.add_argument("--isa", dest="isas", nargs="+", help="default: the fastest")
    own.add_argument("--rows", nargs="+", type=int, default=[1, 2, 4, 8, 16])
    own.add_argument("--precision", nargs="+", default=PRECISIONS)
    own.add_argument("--inputs", type=int, default=2048)
    own.add_argument("--cache", action="store_true", help="weights in the second-level cache")
    own.add_argument("--megabytes", type=float, default=40, help="of fp4 weights in memory")
    return made.parse_args([word for word in sys.argv[1:] if word != "--"])


def main() -> int:
    options = parsed()
    loads = {"levels": levels, "overhead": overhead, "serving": serving, "kernels": kernels}
    speed: list[Any] = [(name, ".4g") for name in ("old", "new")]
    columns = ["case", "figure", *speed, ("new / old", ".3f"), "sittings", "pairs", "verdict"]
    machine = Machine.choose(options.threads, options.isa)
    with Report(options, f"Two builds: {options.workload}", machine, columns) as report:
        slower = [compared(load, options, report) for load in loads[options.workload](options)]
    return int(any(slower))


if __name__ == "__main__":
    sys.exit(main())
