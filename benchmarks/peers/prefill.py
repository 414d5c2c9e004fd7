"""Times prompts until the first token, beside the peers, and appends every round to a raw file.

    python benchmarks/peers/prepare.py MODEL --work .peers
    python benchmarks/peers/prefill.py MODEL --work .peers --raw RAW.jsonl
    python benchmarks/peers/prefill.py --raw RAW.jsonl --json benchmarks/results/tables/prefill.json

A round is one random prompt by every engine in BF16, with another engine first each time; memory's
bandwidth is measured before it. Each engine sees a prompt of that length once before. Ratios are
taken within a round. The times are the engines' own: of llama.cpp without picking a token.
"""

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from arms import PREFILL, Arm
from summary import Spread
from workers import Worker

from run import LARGEST_READ, machine_description
from specqd import _native
from specqd.config import read_config
from specqd.model.bandwidth import bandwidth_at
from specqd.model.model import Machine

TOKENS = (32, 128, 512, 2048)
OURS = PREFILL[0].name


def measure(
    model: Path, work: Path, arms: Sequence[Arm], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yields the workers' descriptions, then one record per round."""
    machine = Machine.choose(options.threads)
    vocabulary = read_config(model).vocab_size
    rng = np.random.default_rng()
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        for arm in arms:
            try:
                workers[arm.name] = Worker([arm], model, work, machine.pool.threads)
                stack.callback(workers[arm.name].end)
            except RuntimeError as error:
                print(f"absent: {arm.name}: {error}", file=sys.stderr)
        yield {
            "begun": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine_description(machine),
            "versions": {name: worker.version for name, worker in workers.items()},
        }
        for tokens in options.tokens:
            for number in range(options.rounds + 1):
                prompt = rng.integers(300, vocabulary, tokens).tolist()
                turn = number % len(workers)
                names = [*list(workers)[turn:], *list(workers)[:turn]]
                bandwidth = bandwidth_at(machine, LARGEST_READ)
                seconds = {
                    name: workers[name].run(workers[name].arms[0], prompt, 1).prefill_s
                    for name in names
                }
                if number > 0:  # the first prompt of a length warms up
                    record = {"model": model.name, "tokens": tokens, "seconds": seconds}
                    yield record | {"bandwidth": bandwidth}


def table(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Speeds by model and length, and ours over the faster peer of each round."""
    reports = [record for record in records if "machine" in record]
    rounds = [record for record in records if "tokens" in record]
    peers = [arm.name for arm in PREFILL[1:]]
    rows = []

    def key(record: dict[str, Any]) -> tuple[str, int]:
        return record["model"], record["tokens"]

    for (model, tokens), group in groupby(sorted(rounds, key=key), key):
        of_length = list(group)
        row: list[Any] = [f"`{model}`", tokens, len(of_length)]
        for name in (OURS, *peers):
            speeds = [tokens / r["seconds"][name] for r in of_length if name in r["seconds"]]
            row.append(_cell(speeds, 0) if speeds else None)
        ratios = [
            min(r["seconds"].get(peer, math.inf) for peer in peers) / r["seconds"][OURS]
            for r in of_length
        ]
        rows.append([*row, _cell(ratios, 2)])
    widths = [record["bandwidth"] for record in rounds]
    machine = reports[-1]["machine"]
    commits = sorted({each["machine"]["commit"] for each in reports})
    columns: list[Any] = ["model", "prompt", "rounds"]
    columns += [{"name": name, "format": ".0f"} for name in (OURS, *peers)]
    return {
        "title": "Prompt tokens/s until the first token: medians and quartiles",
        "machine": f"{machine['cpu']}, {machine['threads']} threads, {machine['isa']}; "
        f"{min(widths):.0f} to {max(widths):.0f} GB/s",
        "date": reports[-1]["begun"][:10],
        "commit": ", ".join(commits),
        "command": "make bench-prefill",
        "columns": [*columns, {"name": "ours over the faster peer", "format": ".2f"}],
        "rows": rows,
    }


def _cell(values: Sequence[float], digits: int) -> list[float]:
    low, high = Spread.of(values).quartiles
    return [round(value, digits) for value in (median(values), low, high)]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--json", type=Path, help="write the table of all rounds in the raw file")
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--rounds", type=int, default=5, help="of each length")
    parser.add_argument("--threads", type=int, default=_native.usable_threads())
    parser.add_argument("--cpu", help="its name, where the system does not tell generations apart")
    options = parser.parse_args()
    if options.model is not None:
        if options.work is None:
            parser.error("a model needs --work, the folder that prepare.py filled")
        for record in measure(options.model.resolve(), options.work.resolve(), PREFILL, options):
            with options.raw.open("a") as raw:
                raw.write(json.dumps(record) + "\n")
            if "tokens" in record:
                print(json.dumps(record), flush=True)
    if options.json is not None:
        records = [json.loads(line) for line in options.raw.read_text().splitlines()]
        for record in records:
            if "machine" in record and options.cpu:
                record["machine"]["cpu"] = options.cpu
        options.json.write_text(json.dumps(table(records), indent=1) + "\n")


if __name__ == "__main__":
    main()
