"""Times prompts until the first token, compared with the peers; appends each round to a raw file.

    python benchmarks/peers/prepare.py MODEL --work .peers
    python benchmarks/peers/prefill.py MODEL --work .peers --raw RAW.jsonl
    python benchmarks/peers/prefill.py --raw RAW.jsonl --json benchmarks/results/tables/prefill.json

A round of run.py is one random prompt by every engine in BF16. The first prompt of each length does
not count. Ratios are taken within a round. The times are the engines' own; that of llama.cpp
excludes the sampling of a token.
"""

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from arms import PREFILL
from prompts import Prompts
from summary import Spread

from run import Plan, measure
from specqd import _native
from specqd.config import read_config

TOKENS = (32, 128, 512, 2048)
OURS = PREFILL[0].name


def rounds(model: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields the workers' descriptions, then one record per round."""
    lengths = [tokens for tokens in options.tokens for _ in range(options.rounds + 1)]
    vocabulary, rng = read_config(model).vocab_size, np.random.default_rng()
    warm_up, *texts = (rng.integers(300, vocabulary, size).tolist() for size in (32, *lengths))
    plan = Plan("prefill", model.name, PREFILL, options.threads, 1, "random")
    prompts = Prompts(warm_up, texts, ["random"] * len(texts))
    for record in measure(plan, model, options.work.resolve(), prompts, done=0):
        if "machine" in record:
            yield {key: record[key] for key in ("begun", "machine", "versions")}
        elif record["prompt"] % (options.rounds + 1):
            seconds = {
                name: run["prefill_s"] for name, run in record["runs"].items() if "prefill_s" in run
            }
            tokens, bandwidth = lengths[record["prompt"]], max(record["before"].items())[1]
            yield {
                "model": model.name,
                "tokens": tokens,
                "seconds": seconds,
                "bandwidth": bandwidth,
            }


def table(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Speeds by model and length, and those of specqd over the faster peer of each round."""
    reports = [record for record in records if "machine" in record]
    measured = [record for record in records if "tokens" in record]
    peers = [arm.name for arm in PREFILL[1:]]
    rows = []

    def key(record: dict[str, Any]) -> tuple[str, int]:
        return record["model"], record["tokens"]

    for (model, tokens), group in groupby(sorted(measured, key=key), key):
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
    widths = [record["bandwidth"] for record in measured]
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
    spread = Spread.of(values)
    return [round(value, digits) for value in (spread.median, *spread.quartiles)]


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
        for record in rounds(options.model.resolve(), options):
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
